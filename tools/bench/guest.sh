#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# In the guest: runs the benchmark's cases and prints a line of JSON for each. Two hosts are network
# namespaces over a veth pair. "device" cases have both QPs on one RDMA device.
#
# Environment: DRIVERS is a list of rxe (the C driver), rrxe (with stock librxe) and librrxe (rrxe
# with its own library). OPERATIONS is a list of send, write and read. PART is "instructions" (all
# drivers, then TCP), "gate" (fewer cases, of rrxe only), "loss" (rxe and rrxe unless DRIVERS is
# set, then TCP, over a network that loses packets) or "latency". SCALE multiplies the numbers of
# RDMA messages. GUARD loads tools/rrxe-guard.nft on both hosts.
source /payload/tests/vm/lib/guest.sh
: "${SCALE:=1}" "${PART:=instructions}" "${OPERATIONS:=send write read}"

# Prints the arguments of each case of rrxe-bench: OP PATTERN SIZE COUNT DEPTH EVERY. SIZE is in
# bytes. One message in EVERY is signaled.
cases() {
	local op
	for op in $OPERATIONS; do
		echo "$op stream 64 $((4096 * SCALE)) 128 32"
		echo "$op stream 4096 $((2048 * SCALE)) 128 32"
		echo "$op stream 65536 $((192 * SCALE)) 32 8"
		echo "$op stream 1048576 $((24 * SCALE)) 16 4"
		echo "$op roundtrip 8 $((400 * SCALE)) 1 1"
		echo "$op roundtrip 4096 $((400 * SCALE)) 1 1"
	done
}

# Prints the cases of `make bench-gate`, in the same form.
gate_cases() {
	local op
	for op in $OPERATIONS; do
		echo "$op stream 64 4096 128 32"
		echo "$op stream 4096 1024 128 32"
		echo "$op stream 1048576 64 16 4"
		echo "$op roundtrip 8 400 1 1"
	done
}

# run DRIVER PATH COMMAND...: adds the driver and the path to the line of JSON that the command
# prints.
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
	${CASES:-cases} | while read -r case; do
		# shellcheck disable=SC2086 # a list of words
		run "$driver" veth rrxe-bench verbs "$DEV1" "$DEV2" $case
		# shellcheck disable=SC2086
		run "$driver" device rrxe-bench verbs "$DEV1" "$DEV1" $case
	done
}

# calls DRIVER: measures the instructions of each verbs call until it returns, system call included.
calls() {
	rrxe-bench calls "$DEV1" | while read -r line; do run "$1" device echo "$line"; done
}

# Prints the addresses of the functions of the kernel and of its modules, as they are now. The
# counts of the cases before this call are divided by these functions.
symbols() {
	sed -n 's/^[0-9a-f]* [tTwW] /symbol &/p' /proc/kallsyms
}

# spin DRIVER: measures the time from a post to its completion in a program that polls its CQ.
spin() {
	local op
	for op in send write read; do
		run "$1" veth rrxe-bench verbs "$DEV1" "$DEV2" $op spin 8 $((4000 * SCALE)) 1 1
		run "$1" device rrxe-bench verbs "$DEV1" "$DEV1" $op spin 8 $((4000 * SCALE)) 1 1
	done
}

# spin_beside_ringer DRIVER: measures the same beside a process that rings all its doorbells all the
# time (tests/vm/doorbell/hostile_doorbells.py).
spin_beside_ringer() {
	local line ringer
	[[ $1 == librrxe ]] || return 0
	coproc DOORBELLS { exec python3 /payload/tests/vm/doorbell/hostile_doorbells.py "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" 1 bells; }
	ringer=$DOORBELLS_PID
	read -r line <&"${DOORBELLS[0]}"
	sleep 1
	line=$(rrxe-bench verbs "$DEV1" "$DEV1" write spin 8 $((4000 * SCALE)) 1 1)
	run "$1" device echo "${line/spin/spin, hostile neighbour}"
	kill "$ringer"
	wait "$ringer" 2>/dev/null
}

# Prints the round-trip times and the shares of lost packets of the part "loss".
networks() {
	local rtt
	for rtt in 0 100us 500us; do printf '%s\n' "$rtt 0%" "$rtt 0.1%" "$rtt 1%"; done
}

# set_network RTT LOSS: each host delays its packets by half of the round-trip time, and loses a
# share of them. The queues have room for all packets.
set_network() {
	netem "delay $((${1%us} / 2))us loss $2 limit 20000"
}

# over_networks MEASURE...: calls the function over each network, with the network's name as its
# last argument.
over_networks() {
	local rtt share
	while read -r rtt share; do
		set_network "$rtt" "$share" || exit 1
		"$@" "$rtt/$share"
	done < <(networks)
	netem_off
}

# stream DRIVER NETWORK: measures WRITEs and READs of 1 MiB.
stream() {
	local op
	for op in write read; do
		run "$1" "$2" rrxe-bench verbs "$DEV1" "$DEV2" $op stream 1048576 $((64 * SCALE)) 16 4
	done
}

tcp_stream() {
	run tcp "$1" ip netns exec h1 rrxe-bench tcp $HOST2_V4 stream 1048576 $((64 * SCALE)) ip netns exec h2 rrxe-bench tcp-server
}

loss() { over_networks stream "$1"; }

# for_each_driver MEASURE...: adds links of each driver in turn, and calls these functions with the
# driver.
for_each_driver() {
	local driver measure
	for driver in ${DRIVERS:-rxe rrxe librrxe}; do
		unset RDMAV_DRIVERS
		[[ $driver != librrxe ]] || export RDMAV_DRIVERS=rrxe
		link_add 1 "${driver#lib}" && link_add 2 "${driver#lib}" || exit 1
		for measure in "$@"; do $measure "$driver"; done
		link_del 1
		link_del 2
	done
	unset RDMAV_DRIVERS
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
echo "kernel $(uname -r)"
# Loads the guard of Documentation/security.rst on both hosts.
if [[ -n ${GUARD:-} ]]; then
	for host in 1 2; do ip netns exec h$host nft -f /payload/rrxe-guard.nft || exit 1; done
fi
case $PART in
instructions)
	# The default of pollers is half the number of CPUs, which is none with one CPU.
	modprobe rrxe pollers=1 poll_idle_us=1000000
	for_each_driver calls
	symbols
	rmmod rrxe
	for_each_driver verbs_cases
	tcp_cases
	symbols
	;;
gate)
	# A long message takes fewer instructions if the pages of its memory lie together. Whether they
	# do depends on which memory is free. In this part they never do.
	export RRXE_BENCH_SCATTER=1
	CASES=gate_cases DRIVERS="rrxe librrxe"
	for_each_driver verbs_cases
	symbols
	;;
loss)
	# The timeout of perftest. The RDMA connection manager computes a longer one.
	export RRXE_BENCH_TIMEOUT=14
	DRIVERS=${DRIVERS:-rxe rrxe}
	for_each_driver loss
	over_networks tcp_stream
	;;
latency) for_each_driver spin spin_beside_ringer ;;
esac
