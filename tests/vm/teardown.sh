#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=600
# Devices and QPs end soon, whatever hostile processes do meanwhile.
source "$(dirname "$0")/lib.sh"

# RRXE_ENV="QPS=64 DEPTH=65535 WINDOWS=500000" gives the figures of a release.
: "${QPS:=16}" "${DEPTH:=16383}" "${WINDOWS:=40000}"
# Of an emulated machine that others slow down: twenty times as much as a quiet one takes.
: "${WORST_MS:=20000}"
OPPONENTS=$(dirname "$0")/teardown.py

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# begin DEVICE HOW [ARGUMENT...]: starts an opponent on a device of host 1, and waits until it is ready.
declare -A PROCESSES INPUTS
begin() {
	local device=$1 how=$2 index input
	shift 2
	index=$(gid_index "$DEV1" $HOST1_V4)
	mkfifo "/tmp/in-$how"
	in1 python3 "$OPPONENTS" "$how" "$device" "$index" "$@" <"/tmp/in-$how" >"/tmp/out-$how" 2>&1 &
	PROCESSES[$how]=$!
	exec {input}>"/tmp/in-$how"
	INPUTS[$how]=$input
	rm "/tmp/in-$how"
	check "a process: $how $*" wait_for 300 grep -q ready "/tmp/out-$how" || note "$(<"/tmp/out-$how")"
}

# finish HOW: the process ends by itself; its last words are LAST.
finish() {
	local input=${INPUTS[$1]}
	exec {input}>&-
	wait "${PROCESSES[$1]}"
	LAST=$(tail -n 1 "/tmp/out-$1")
}

# timed NAME COMMAND...: takes no longer than it may.
timed() {
	local name=$1 start took
	shift
	start=$(now)
	_capture "$@" || fail "$name" "$OUTPUT"
	took=$(($(now) - start))
	note "$name: $took ms"
	check "$name ends soon" test "$took" -le "$WORST_MS"
}

up() {
	check "two hosts" hosts_up 4200
	check "link on host 1" link_add 1
}

few_flushes() {
	finish spin
	note "$LAST WQEs flushed"
	[[ $LAST -le $((2 * 1024)) ]]
}

# A QP that bound a window is destroyed; its time must not depend on how many windows others have.
destroyed_in() {
	in1 python3 "$OPPONENTS" bound "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" >/tmp/out-bound && LAST=$(</tmp/out-bound)
}

up
begin "$DEV1" spin 1 1023
check "the device goes" link_del 1
check "a spinning producer's WQEs are flushed once" few_flushes

check "link on host 1" link_add 1
check "a QP with a window" destroyed_in
alone=$LAST
begin "$DEV1" windows "$WINDOWS"
check "a QP with a window beside $WINDOWS" destroyed_in
note "destroy_qp with a window bound: $alone us; beside $WINDOWS windows: $LAST us"
check "others' windows don't matter" test "$LAST" -le $((20 * alone))
begin "$DEV1" spin "$QPS" "$DEPTH"
timed "link del" link_del 1
finish spin
finish windows
