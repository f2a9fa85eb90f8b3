#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=600 append=slub_debug=FZP,kmalloc-*
# Hostile users: the fuzzer (tests/fuzz), beside a pair of honest QPs.
#
#   FUZZ_SECONDS    how long each run takes (20)
#   FUZZ_SEEDS      the seeds of the runs with the honest pair, separated by commas (1,2)
#   FUZZ_UNLOAD     seeds of runs in which the module is removed, too, and there is no honest pair (3)
#   FUZZ_FOCI       runs of attackers that have only this focus, and nobody beside them ()
#   FUZZ_ARGUMENTS  more arguments for rrxe-fuzz, separated by commas
#   FUZZ_COVERAGE   set to print the module's symbols, for coverage.py
#
# A busy host makes any duration useless as a limit on the time with interrupts disabled. So the completions that
# resizing a CQ copies then are counted (drivers/infiniband/sw/rrxe/verbs/cq/resize.rs: AT_ONCE), on the debug kernel: stock
# kernels have no probes on Rust's functions, because these have no entry for ftrace.
source "$(dirname "$0")/../lib/guest.sh"
: "${FUZZ_SECONDS:=20}" "${FUZZ_SEEDS=1,2}" "${FUZZ_UNLOAD=3}" "${FUZZ_FOCI=}" "${FUZZ_ARGUMENTS=}" "${FUZZ_COVERAGE=}"
readonly CGROUP=/sys/fs/cgroup/fuzz FAULTS=/sys/kernel/debug TRACING=/sys/kernel/tracing
readonly COPIES=$TRACING/instances/fuzz AT_ONCE=1024
IFS=, read -ra ARGUMENTS <<<"$FUZZ_ARGUMENTS"

# Attackers have as much memory and as many processes as a user's session has.
limits() {
	echo "+memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
	mkdir -p $CGROUP && echo 700M >$CGROUP/memory.max && echo 800 >$CGROUP/pids.max
	echo 40 >/proc/sys/vm/nr_hugepages
	chmod 666 /dev/udmabuf 2>/dev/null || modprobe udmabuf 2>/dev/null && chmod 666 /dev/udmabuf 2>/dev/null
	return 0
}

# Where the kernel can make allocations and copies fail, it does so for attackers, and says nothing of it.
faults() {
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

# A probe on the function that copies a ring's elements. Its fifth argument is their number. The probe survives the module.
watch_copies() {
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

# No long copy was made with interrupts disabled, where copies are counted. What was counted is forgotten.
copies_are_short() {
	local flags long=0 disabled=0
	[[ -e $COPIES/events/fuzz ]] || return 0
	while read -r flags; do
		long=$((long + 1))
		# Bit 9 of the flags: interrupts are enabled.
		[[ $((flags & 512)) -ne 0 ]] || disabled=$((disabled + 1))
	done < <(sed -n 's/.*copies: .* flags=//p' $COPIES/trace)
	note "$long copies of more than $AT_ONCE completions, $disabled of them with interrupts disabled"
	echo >$COPIES/trace
	[[ $disabled -eq 0 ]]
}

# fuzz SEED ARGUMENT...: one run, whose report is shown.
fuzz() {
	local seed=$1 log=/tmp/fuzz.log rc=0
	shift
	rrxe-fuzz --seed "$seed" --seconds "$FUZZ_SECONDS" --cgroup $CGROUP "$@" "${FAULTY[@]}" "${ARGUMENTS[@]}" >$log 2>&1 || rc=$?
	note "$(<$log)"
	return $rc
}

# run NAME COMMAND...: as check, with all output shown, for a report.
run() {
	local name=$1 rc=0
	shift
	"$@" || rc=$?
	if [[ $rc -eq 0 ]]; then pass "$name"; else fail "$name" "status $rc: $*"; fi
}

links_up() {
	wait_for 10 modprobe rrxe shared_xrcd=1 || return
	[[ -e $COPIES ]] || watch_copies || return
	link_add 1 && link_add 2
}

# Everything goes, and nothing is left of it: each is the end of something that attackers had.
all_goes() {
	local place
	link_del 1
	link_del 2
	for place in 0 1 2; do ip netns del fz$place 2>/dev/null; done
	[[ ! -e /sys/module/rrxe ]] || wait_for 60 rmmod rrxe || return
	! ls -d /sys/devices/virtual/workqueue/rrxe* 2>/dev/null && ! ls -d /sys/class/infiniband/rrxe* 2>/dev/null
}

# fuzz_beside_pair SEED ARGUMENT...: one run, with the pair of honest QPs.
fuzz_beside_pair() { fuzz "$@" --victims "$DEV1,$DEV2"; }

# attack NAME CLAIM COMMAND...: the command of a run, between new links and their end.
attack() {
	local name=$1 claim=$2
	shift 2
	check "$name: links" links_up
	[[ -z $FUZZ_COVERAGE ]] || sed -n '/\[rrxe\]/s/^/symbol: /p' /proc/kallsyms
	run "$name: $claim" "$@"
	run "$name: resizing a CQ copies few completions with interrupts disabled" copies_are_short
	check "$name: nothing is left" all_goes
}

check "two hosts" hosts_up 4200
check "attackers have limits" limits
FAULTY=()
if faults; then FAULTY=(--faults); fi
# KASAN, lockdep and kmemleak check each access, lock and allocation.
[[ ! -e $FAULTS/kmemleak ]] || FAULTY+=(--slow 5)
note "fault injection: ${FAULTY[*]:-this kernel has none}"

for seed in ${FUZZ_SEEDS//,/ }; do
	attack "seed $seed" "honest data is right and goes on" fuzz_beside_pair "$seed" --chaos
done
for seed in ${FUZZ_UNLOAD//,/ }; do
	attack "seed $seed" "the module can be removed at any time" fuzz "$seed" --chaos --unload
done
for focus in ${FUZZ_FOCI//,/ }; do
	attack "focus $focus" "attackers find nothing" fuzz 1 --focus "$focus"
done
