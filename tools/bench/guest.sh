#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The benchmark's cases, in the guest: rrxe, the C driver and TCP in the same boot. A line of JSON each.
source /payload/tests/vm/lib.sh
: "${SCALE:=1}"

# OP PATTERN SIZE COUNT DEPTH EVERY
cases() {
	local op
	for op in send write read; do
		echo "$op stream 64 $((4096 * SCALE)) 128 32"
		echo "$op stream 4096 $((2048 * SCALE)) 128 32"
		echo "$op stream 65536 $((192 * SCALE)) 32 8"
		echo "$op stream 1048576 $((24 * SCALE)) 16 4"
		echo "$op roundtrip 8 $((400 * SCALE)) 1 1"
		echo "$op roundtrip 4096 $((400 * SCALE)) 1 1"
	done
}

# run DRIVER PATH COMMAND...: prefixes the program's JSON with what it ran over.
run() {
	local driver=$1 path=$2 line
	shift 2
	if line=$(timeout 600 "$@"); then
		echo "{\"driver\": \"$driver\", \"path\": \"$path\", ${line#\{}"
	else
		fail "$driver $path: $*"
	fi
}

verbs_cases() {
	local driver=$1 case
	cases | while read -r case; do
		# shellcheck disable=SC2086 # a list of words
		run "$driver" veth rrxe-bench verbs "$DEV1" "$DEV2" $case
		# shellcheck disable=SC2086
		run "$driver" device rrxe-bench verbs "$DEV1" "$DEV1" $case
	done
}

tcp_cases() {
	local case
	for case in "stream 64 8192" "stream 4096 4096" "stream 65536 512" "stream 1048576 64" \
		"roundtrip 8 400" "roundtrip 4096 400"; do
		# shellcheck disable=SC2086
		run tcp veth ip netns exec h1 rrxe-bench tcp $HOST2_V4 $case ip netns exec h2 rrxe-bench tcp-server
	done
}

hosts_up 4200 || exit 1
for driver in ${DRIVERS:-rxe rrxe}; do
	link_add 1 $driver && link_add 2 $driver || exit 1
	verbs_cases $driver
	link_del 1
	link_del 2
done
tcp_cases
