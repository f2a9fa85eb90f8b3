#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=600
# Devices and QPs end soon, whatever hostile processes do meanwhile.
source "$(dirname "$0")/../lib/guest.sh"

# RRXE_ENV="QPS=64 DEPTH=65535 WINDOWS=500000 MANY_WINDOWS=500000 CHUNKS=20000" gives the figures of a release.
# On the debug kernel each object that is freed takes milliseconds, for KASAN unwinds the stack and looks up the module of each
# frame.
[[ -z $DEBUG_KERNEL ]] || : "${QPS:=4}" "${WINDOWS:=1000}" "${CHUNKS:=100}"
: "${QPS:=16}" "${DEPTH:=16383}" "${WINDOWS:=10000}" "${CHUNKS:=400}" "${MANY_WINDOWS:=$((4 * WINDOWS))}"
# Of an emulated machine that others slow down: twenty times as much as a quiet one takes.
: "${WORST_MS:=$((5000 * PATIENCE))}" "${MEDIAN_US:=200000}"
OPPONENTS=$(dirname "$0")/teardown.py

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# begin DEVICE HOW [ARGUMENT...]: starts an opponent on a device. It is not in the device's namespace, which may end.
declare -A PROCESSES INPUTS
begin() {
	local device=$1 how=$2 index input
	shift 2
	index=$(gid_index "$device" "${ADDRESS:-$HOST1_V4}")
	# Its lines are not to be taken for those of the one before.
	: >"/tmp/out-$how"
	mkfifo "/tmp/in-$how"
	(
		# Or the others' inputs would not end before this process.
		for input in "${INPUTS[@]}"; do exec {input}>&-; done
		exec python3 "$OPPONENTS" "$how" "$device" "$index" "$@" <"/tmp/in-$how" >"/tmp/out-$how" 2>&1
	) &
	PROCESSES[$how]=$!
	exec {input}>"/tmp/in-$how"
	INPUTS[$how]=$input
	rm "/tmp/in-$how"
}

# ready HOW: waits until the opponent has what it needs.
ready() {
	check "a process: $1" wait_for 300 grep -q ready "/tmp/out-$1" || note "$(<"/tmp/out-$1")"
}

# finish HOW: the process ends by itself; its last words are LAST.
finish() {
	local input=${INPUTS[$1]}
	exec {input}>&-
	unset "INPUTS[$1]"
	wait "${PROCESSES[$1]}"
	LAST=$(tail -n 1 "/tmp/out-$1")
}

# load HOW...: opponents on the device of host 1, each with what a release is tried with.
load() {
	local how
	for how; do
		case $how in
		spin) begin "$DEV1" spin "$QPS" "$DEPTH" ;;
		windows) begin "$DEV1" windows "$WINDOWS" ;;
		chunks) begin "$DEV1" chunks "$CHUNKS" ;;
		esac
	done
	for how; do ready "$how"; done
}

unload() {
	local how
	for how; do finish "$how"; done
}

# From now on producers spin without a pause, if there are any.
hurry() { [[ -z ${INPUTS[spin]:-} ]] || echo go >&"${INPUTS[spin]}"; }

# timed NAME COMMAND...: takes no longer than it may, beside producers that spin. Of a short time much may be theirs.
timed() {
	local name=$1 start took TIMEFORMAT=%S
	shift
	hurry
	start=$(now)
	{ time _capture "$@" || fail "$name" "$OUTPUT"; } 2>/tmp/cpu
	took=$(($(now) - start))
	note "$name: $took ms; the command took $(</tmp/cpu) s of system time"
	check "$name ends soon" test "$took" -le "$WORST_MS"
}

# beside DEVICE NAME COMMAND...: as timed, while another process deregisters regions of DEVICE.
beside() {
	local device=$1 median worst count
	shift
	begin "$device" dereg
	ready dereg
	echo go >&"${INPUTS[dereg]}"
	timed "$@"
	finish dereg
	read -r median worst count <<<"$LAST"
	note "dereg_mr of another process meanwhile: median $median us, worst $worst us, of $count"
	check "dereg_mr of another process meanwhile" test "$median" -le "$MEDIAN_US"
}

up() {
	check "two hosts" hosts_up 4200
	check "link on host 1" link_add 1
}

# another HOST: a link that has nothing to do with the wire; OTHER is its name.
another() {
	OTHER=${TYPE}1$1
	ip -n "h$1" link add eth1 type dummy
	ip -n "h$1" addr add "10.78.0.$1/24" dev eth1
	ip -n "h$1" link set eth1 up
	check "another link on host $1" ip netns exec "h$1" rdma link add "$OTHER" type "$TYPE" netdev eth1
}

few_flushes() {
	finish spin
	note "$LAST WQEs flushed"
	[[ $LAST -le $((2 * 1024)) ]]
}

# A QP that bound a window is destroyed; its time must not depend on how many windows others have.
destroyed_in() {
	python3 "$OPPONENTS" bound "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" >/tmp/out-bound && LAST=$(</tmp/out-bound)
}

is_leaving() { ! grep -qsx "$1" /sys/class/infiniband_verbs/uverbs*/ibdev; }

# Who waits for advice goes on when the device goes; what follows the advice ends with the piece in hand.
advice_ends() {
	local device=$DEV1 deletion
	begin "$DEV1" advice
	ready advice
	in1 rdma link del "$device" &
	deletion=$!
	DEV1=''
	wait_for 30 is_leaving "$device" || return
	# The deletion has the input as well, so that it would not end.
	echo go >&"${INPUTS[advice]}"
	finish advice
	wait $deletion || return
	note "advice: errno and pieces: $LAST"
	[[ $LAST == "5 0" || $LAST == "5 1" ]]
}

end_all() {
	local how
	for how in spin windows chunks; do kill -KILL "${PROCESSES[$how]}"; done
	for how in spin windows chunks; do wait "${PROCESSES[$how]}"; done 2>/dev/null
	true
}

namespace_ends() {
	ip netns del h1
	while [[ -e /sys/class/infiniband/$DEV1 ]]; do sleep 0.01; done
}

up
begin "$DEV1" spin 1 1023
ready spin
hurry
check "the device goes" link_del 1
check "a spinning producer's WQEs are flushed once" few_flushes

check "link on host 1" link_add 1
check "advice that waits doesn't hold the device up" advice_ends

check "link on host 1" link_add 1
check "a QP with a window" destroyed_in
alone=$LAST
# A walk through all windows shows among many only.
few=$WINDOWS
WINDOWS=$MANY_WINDOWS
load windows
check "a QP with a window beside $WINDOWS" destroyed_in
note "destroy_qp with a window bound: $alone us; beside $WINDOWS windows: $LAST us"
check "others' windows don't matter" test "$LAST" -le $((20 * alone))
timed "link del with $WINDOWS windows" link_del 1
unload windows
WINDOWS=$few

check "link on host 1" link_add 1
load chunks
timed "link del with $CHUNKS chunks" link_del 1
unload chunks

check "link on host 1" link_add 1
load spin
timed "link del with $QPS QPs of $DEPTH WQEs" link_del 1
unload spin

check "link on host 1" link_add 1
another 1
load spin windows chunks
beside "$DEV1" "kill -9 with all of it" end_all
load spin windows chunks
ADDRESS=10.78.0.1 beside "$OTHER" "link del with all of it" link_del 1
unload spin windows chunks

check "link on host 1" link_add 1
load chunks
refuse "the module stays under regions on demand" "in use" rmmod "$TYPE"
unload chunks
load spin windows
# The chunks are released after their process has ended.
timed "rmmod with all of it" wait_for 10 rmmod "$TYPE"
unload spin windows
DEV1=''

check "the module" modprobe "$TYPE"
check "link on host 1" link_add 1
another 2
load spin windows chunks
ADDRESS=10.78.0.2 beside "$OTHER" "namespace exit with all of it" namespace_ends
unload spin windows chunks
DEV1=''
