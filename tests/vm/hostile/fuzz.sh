#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=600 append=slub_debug=FZP,kmalloc-*
# Tests that hostile users of the driver harm neither the kernel nor other users. The fuzzer
# (rrxe-fuzz, tests/fuzz) starts attackers: processes that make random calls of verbs on the links
# of two hosts, which a veth pair connects. A pair of honest QPs transfers data at the same time,
# and compares it. Settings of the environment, with their defaults:
#
#   FUZZ_SECONDS    duration of each run in seconds (20)
#   FUZZ_SEEDS      seeds of the runs with the honest pair, separated by commas (1,2)
#   FUZZ_UNLOAD     seeds of runs without the honest pair, in which the module is removed, too (3)
#   FUZZ_FOCI       foci of further runs, in which attackers choose from few operations, without the
#                   honest pair and without changes of devices and namespaces (--chaos) ()
#   FUZZ_ARGUMENTS  more arguments of rrxe-fuzz, separated by commas ()
#   FUZZ_COVERAGE   if set, the module's symbols are printed, for tests/tools/coverage.py ()
#
# The test also bounds the work that resizing a CQ does with interrupts disabled. The duration of
# that work is no useful bound, because any duration can occur on a busy host. So a kprobe records
# each copy of more than AT_ONCE completions (drivers/infiniband/sw/rrxe/verbs/cq/resize.rs), and
# whether interrupts are disabled then. It works on the debug kernel only: stock kernels have no
# probes on Rust functions, because those have no entry for ftrace.
source "$(dirname "$0")/../lib/guest.sh"
: "${FUZZ_SECONDS:=20}" "${FUZZ_SEEDS=1,2}" "${FUZZ_UNLOAD=3}" "${FUZZ_FOCI=}" "${FUZZ_ARGUMENTS=}" "${FUZZ_COVERAGE=}"
readonly CGROUP=/sys/fs/cgroup/fuzz FAULTS=/sys/kernel/debug TRACING=/sys/kernel/tracing
readonly COPIES=$TRACING/instances/fuzz AT_ONCE=1024
IFS=, read -ra ARGUMENTS <<<"$FUZZ_ARGUMENTS"

# Makes the cgroup of the attackers. It limits memory and processes as a user's session is limited.
make_cgroup() {
	echo "+memory +pids" >/sys/fs/cgroup/cgroup.subtree_control &&
		mkdir -p $CGROUP && echo 700M >$CGROUP/memory.max && echo 800 >$CGROUP/pids.max
}

# Gives the attackers huge pages, and DMA buffers (udmabuf) if the kernel has them.
offer_memory() {
	[[ -e /dev/udmabuf ]] || modprobe udmabuf 2>/dev/null
	[[ ! -e /dev/udmabuf ]] || chmod 666 /dev/udmabuf || return
	echo 40 >/proc/sys/vm/nr_hugepages
}

# Sets up fault injection for the attackers' allocations and copies, without log messages. Fails if
# the kernel has no fault injection.
set_up_fault_injection() {
	local kind
	[[ -e $FAULTS/failslab ]] || return
	for kind in failslab fail_page_alloc fail_usercopy; do
		[[ ! -e $FAULTS/$kind ]] || echo 0 >$FAULTS/$kind/verbose
		[[ ! -e $FAULTS/$kind/ignore-gfp-wait ]] || echo N >$FAULTS/$kind/ignore-gfp-wait
		[[ ! -e $FAULTS/$kind/min-order ]] || echo 0 >$FAULTS/$kind/min-order
		# Without a filter there is no need to unwind the stack at each allocation.
		[[ ! -e $FAULTS/$kind/stacktrace-depth ]] || echo 0 >$FAULTS/$kind/stacktrace-depth
	done
}

# Puts a kprobe on the function that copies elements of a ring. The fifth argument of the function
# is their number. The probe stays when the module is removed.
probe_copies() {
	local function
	function=$(awk '$4 == "[rrxe]" && $3 ~ /^_R.*4Ring13copy_elements$/ { print $3 }' /proc/kallsyms)
	mkdir -p $COPIES || return
	if ! echo "p:fuzz/copies rrxe:$function count=%r8:u32 flags=%flags" >>$TRACING/kprobe_events; then
		note "this kernel has no probes on Rust's functions"
		[[ ! -e $FAULTS/kmemleak ]]
		return
	fi
	echo "count > $AT_ONCE" >$COPIES/events/fuzz/copies/filter && echo 1 >$COPIES/events/fuzz/copies/enable
}

# Fails if the kprobe has recorded a long copy with interrupts disabled. Clears the record.
copies_are_short() {
	local flags long=0 disabled=0
	while read -r flags; do
		long=$((long + 1))
		# Bit 9 of the CPU's flags (IF): interrupts are enabled.
		[[ $((flags & 512)) -ne 0 ]] || disabled=$((disabled + 1))
	done < <(sed -n 's/.*copies: .* flags=//p' $COPIES/trace)
	note "$long copies of more than $AT_ONCE completions, $disabled of them with interrupts disabled"
	echo >$COPIES/trace
	[[ $disabled -eq 0 ]]
}

# fuzz SEED ARGUMENT...: makes one run and shows its report.
fuzz() {
	local seed=$1 log=/tmp/fuzz.log rc=0
	shift
	rrxe-fuzz --seed "$seed" --seconds "$FUZZ_SECONDS" --cgroup $CGROUP "$@" \
		"${KERNEL_ARGUMENTS[@]}" "${ARGUMENTS[@]}" >$log 2>&1 || rc=$?
	note "$(<$log)"
	return $rc
}

# run NAME COMMAND...: as check, but shows all output of the command, not only after a failure.
run() {
	local name=$1 rc=0
	shift
	"$@" || rc=$?
	if [[ $rc -eq 0 ]]; then pass "$name"; else fail "$name" "status $rc: $*"; fi
}

links_up() {
	wait_for 10 modprobe rrxe shared_xrcd=1 || return
	[[ -e $COPIES ]] || probe_copies || return
	link_add 1 && link_add 2
}

# Deletes the links, the attackers' network namespaces and the module, each of which ends objects of
# the attackers. Fails if devices or work queues of the module remain.
remove_all() {
	local place
	link_del 1
	link_del 2
	for place in 0 1 2; do ip netns del fz$place 2>/dev/null; done
	[[ ! -e /sys/module/rrxe ]] || wait_for 60 rmmod rrxe || return
	! ls -d /sys/devices/virtual/workqueue/rrxe* 2>/dev/null &&
		! ls -d /sys/class/infiniband/rrxe* 2>/dev/null
}

# fuzz_beside_pair SEED ARGUMENT...: makes one run with the pair of honest QPs.
fuzz_beside_pair() { fuzz "$@" --victims "$DEV1,$DEV2"; }

# attack NAME CLAIM COMMAND...: makes new links, runs the command, and deletes the links. CLAIM is
# the expected result of the command.
attack() {
	local name=$1 claim=$2
	shift 2
	check "$name: the module loads, and the links are made" links_up
	[[ -z $FUZZ_COVERAGE ]] || sed -n '/\[rrxe\]/s/^/symbol: /p' /proc/kallsyms
	run "$name: $claim" "$@"
	[[ ! -e $COPIES/events/fuzz ]] ||
		run "$name: resizing a CQ copies few completions with interrupts disabled" copies_are_short
	check "$name: no device or work queue is left when the module is removed" remove_all
}

check "two hosts" hosts_up 4200
check "the cgroup of the attackers limits memory and processes" make_cgroup
check "the attackers have huge pages" offer_memory
KERNEL_ARGUMENTS=()
if set_up_fault_injection; then KERNEL_ARGUMENTS=(--faults); fi
# The debug kernel is slower: KASAN, lockdep and kmemleak check each access, lock and allocation.
[[ ! -e $FAULTS/kmemleak ]] || KERNEL_ARGUMENTS+=(--slow 5)
note "arguments for this kernel: ${KERNEL_ARGUMENTS[*]:-none, without fault injection}"

for seed in ${FUZZ_SEEDS//,/ }; do
	attack "seed $seed" "the honest pair's data is right, and its transfers go on" \
		fuzz_beside_pair "$seed" --chaos
done
for seed in ${FUZZ_UNLOAD//,/ }; do
	attack "seed $seed" "the module can be removed under attack" fuzz "$seed" --chaos --unload
done
for focus in ${FUZZ_FOCI//,/ }; do
	attack "focus $focus" "the attackers find no fault" fuzz 1 --focus "$focus"
done
