#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=600
# Time of the teardown: devices and QPs end soon, whatever hostile processes (teardown.py) do
# meanwhile. The processes have many QPs that are posted to all the time, memory windows, chunks
# (2 MiB each) of on-demand memory, or advice about memory. Tests `rdma link del`, the end of the
# processes, rmmod and the end of a network namespace. Topology: two hosts over a veth pair; the
# processes use the device of host 1.
source "$(dirname "$0")/../lib/guest.sh"

# Numbers of objects. RRXE_ENV="QPS=64 DEPTH=65535 WINDOWS=500000 MANY_WINDOWS=500000 CHUNKS=20000"
# sets the numbers with which a release is tested. The numbers are small on the debug kernel, where
# the free of each object takes milliseconds: KASAN unwinds the stack and looks up the module of
# each frame.
[[ -z $DEBUG_KERNEL ]] || : "${QPS:=4}" "${WINDOWS:=1000}" "${CHUNKS:=100}"
: "${QPS:=16}" "${DEPTH:=16383}" "${WINDOWS:=10000}" "${CHUNKS:=400}" "${MANY_WINDOWS:=$((4 * WINDOWS))}"
# Limits of a teardown in ms, and of the median of dereg_mr in another process in us: twenty times
# as much as on a quiet machine, for an emulated machine on a busy host.
: "${WORST_MS:=$((5000 * LIMIT_FACTOR))}" "${MEDIAN_US:=200000}"
HOSTILE=$(dirname "$0")/teardown.py

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# start_hostile DEVICE HOW [ARGUMENT...]: starts a hostile process on a device. The process is not
# in the namespace of the device, as that namespace may end. ADDRESS is the device's address, by
# default that of host 1.
declare -A PROCESSES INPUTS
start_hostile() {
	local device=$1 how=$2 index input
	shift 2
	index=$(gid_index "$device" "${ADDRESS:-$HOST1_V4}")
	# The output of an earlier process must not be mistaken for that of this one.
	: >"/tmp/out-$how"
	mkfifo "/tmp/in-$how"
	(
		# Otherwise this process would keep the inputs of the other processes open.
		for input in "${INPUTS[@]}"; do exec {input}>&-; done
		exec python3 "$HOSTILE" "$how" "$device" "$index" "$@" <"/tmp/in-$how" >"/tmp/out-$how" 2>&1
	) &
	PROCESSES[$how]=$!
	exec {input}>"/tmp/in-$how"
	INPUTS[$how]=$input
	rm "/tmp/in-$how"
}

# wait_ready HOW: waits until the process has its objects.
wait_ready() {
	check "the process $1 has its objects" \
		wait_for 300 grep -q ready "/tmp/out-$1" || note "$(<"/tmp/out-$1")"
}

# finish_hostile HOW: closes the input of the process and waits for its end. Stores its last line in
# LAST.
finish_hostile() {
	local input=${INPUTS[$1]}
	exec {input}>&-
	unset "INPUTS[$1]"
	wait "${PROCESSES[$1]}"
	LAST=$(tail -n 1 "/tmp/out-$1")
}

# start_load HOW...: starts hostile processes on the device of host 1, with the numbers of objects
# above.
start_load() {
	local how
	for how; do
		case $how in
		spin) start_hostile "$DEV1" spin "$QPS" "$DEPTH" ;;
		windows) start_hostile "$DEV1" windows "$WINDOWS" ;;
		chunks) start_hostile "$DEV1" chunks "$CHUNKS" ;;
		esac
	done
	for how; do wait_ready "$how"; done
}

finish_load() {
	local how
	for how; do finish_hostile "$how"; done
}

# Has the process `spin`, if there is one, change its producer indices without a pause from now on.
spin_without_pause() { [[ -z ${INPUTS[spin]:-} ]] || echo go >&"${INPUTS[spin]}"; }

# timed NAME COMMAND...: checks that the command takes at most WORST_MS while `spin`, if there is
# one, spins. If the time is short, a large part of it may be CPU time of `spin`.
timed() {
	local name=$1 start took TIMEFORMAT=%S
	shift
	spin_without_pause
	start=$(now)
	{ time _capture "$@" || fail "$name" "$OUTPUT"; } 2>/tmp/cpu
	took=$(($(now) - start))
	note "$name: $took ms; the command took $(</tmp/cpu) s of system time"
	check "$name takes at most $WORST_MS ms" test "$took" -le "$WORST_MS"
}

# timed_beside_dereg DEVICE NAME COMMAND...: as timed, while another process deregisters regions of
# DEVICE. Checks the median time of deregistration, too.
timed_beside_dereg() {
	local device=$1 median worst count
	shift
	start_hostile "$device" dereg
	wait_ready dereg
	echo go >&"${INPUTS[dereg]}"
	timed "$@"
	finish_hostile dereg
	read -r median worst count <<<"$LAST"
	note "dereg_mr of another process meanwhile: median $median us, worst $worst us, of $count"
	check "$1: the median dereg_mr of another process takes at most $MEDIAN_US us" \
		test "$median" -le "$MEDIAN_US"
}

host1_up() {
	check "two hosts" hosts_up 4200
	check "link on host 1" link_add 1
}

# add_dummy_link HOST: adds a link on a dummy network device of the host. Stores its name in OTHER.
add_dummy_link() {
	OTHER=${TYPE}1$1
	ip -n "h$1" link add eth1 type dummy
	ip -n "h$1" addr add "10.78.0.$1/24" dev eth1
	ip -n "h$1" link set eth1 up
	check "a link on a dummy network device of host $1 is added" \
		ip netns exec "h$1" rdma link add "$OTHER" type "$TYPE" netdev eth1
}

# Ends `spin`, which has one QP. Succeeds if its CQ has at most one completion for each element of
# the rings of the send queue and the receive queue, which have 1,024 elements each.
flushed_once() {
	finish_hostile spin
	note "$LAST WQEs flushed"
	[[ $LAST -le $((2 * 1024)) ]]
}

# Measures the time to destroy a QP that has bound a window, and stores it in LAST. It must not
# depend on the number of other windows.
measure_destroy_qp() {
	python3 "$HOSTILE" bound "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" >/tmp/out-bound &&
		LAST=$(</tmp/out-bound)
}

# has_no_device_file DEVICE: succeeds once the removal of the device has begun: uverbs has removed
# its device file.
has_no_device_file() { ! grep -qsx "$1" /sys/class/infiniband_verbs/uverbs*/ibdev; }

# A thread that waits for its advice (ibv_advise_mr()) to be followed returns when the device ends.
# The thread that follows the advice ends after the piece (1 MiB) of memory that it has begun.
advice_ends() {
	local device=$DEV1 deletion
	start_hostile "$DEV1" advice
	wait_ready advice
	in1 rdma link del "$device" &
	deletion=$!
	DEV1=''
	wait_for 30 has_no_device_file "$device" || return
	# `rdma link del` in the background has inherited the input, so closing it here would not end
	# the process. A line does.
	echo go >&"${INPUTS[advice]}"
	finish_hostile advice
	wait $deletion || return
	note "advice: errno and pieces: $LAST"
	[[ $LAST == "5 0" || $LAST == "5 1" ]]
}

kill_all() {
	local how
	for how in spin windows chunks; do kill -KILL "${PROCESSES[$how]}"; done
	for how in spin windows chunks; do wait "${PROCESSES[$how]}"; done 2>/dev/null
	true
}

# Deletes the namespace of host 1, and waits until its device is gone.
namespace_ends() {
	ip netns del h1
	while [[ -e /sys/class/infiniband/$DEV1 ]]; do sleep 0.01; done
}

host1_up
start_hostile "$DEV1" spin 1 1023
wait_ready spin
spin_without_pause
check "link del returns while a producer spins" link_del 1
check "link del flushes each queue of a spinning producer once at most" flushed_once

check "link on host 1" link_add 1
check "link del returns while advice waits for a page fault, and the advice fails with EIO" \
	advice_ends

check "link on host 1" link_add 1
check "a QP that has bound a window is destroyed" measure_destroy_qp
alone=$LAST
# The time of a walk through all windows only shows if there are many.
few=$WINDOWS
WINDOWS=$MANY_WINDOWS
start_load windows
check "a QP that has bound a window is destroyed beside $WINDOWS windows" measure_destroy_qp
note "destroy_qp with a window bound: $alone us; beside $WINDOWS windows: $LAST us"
check "the time to destroy a QP with a window doesn't depend on other windows" \
	test "$LAST" -le $((20 * alone))
timed "link del with $WINDOWS windows" link_del 1
finish_load windows
WINDOWS=$few

check "link on host 1" link_add 1
start_load chunks
timed "link del with $CHUNKS chunks" link_del 1
finish_load chunks

check "link on host 1" link_add 1
start_load spin
timed "link del with $QPS QPs of $DEPTH WQEs" link_del 1
finish_load spin

check "link on host 1" link_add 1
add_dummy_link 1
start_load spin windows chunks
timed_beside_dereg "$DEV1" "kill -9 of all hostile processes" kill_all
start_load spin windows chunks
ADDRESS=10.78.0.1 timed_beside_dereg "$OTHER" "link del with all hostile processes" link_del 1
finish_load spin windows chunks

check "link on host 1" link_add 1
start_load chunks
refuse "rmmod is refused while on-demand regions exist" "in use" rmmod "$TYPE"
finish_load chunks
start_load spin windows
# The kernel releases chunks after their process has ended, so rmmod may fail for a moment.
timed "rmmod with spinning producers and windows" wait_for 10 rmmod "$TYPE"
finish_load spin windows
DEV1=''

check "the module is loaded again" modprobe "$TYPE"
check "link on host 1" link_add 1
add_dummy_link 2
start_load spin windows chunks
ADDRESS=10.78.0.2 timed_beside_dereg "$OTHER" "namespace exit with all hostile processes" \
	namespace_ends
finish_load spin windows chunks
DEV1=''
