#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Forged management datagrams from neighbours that don't exist. ib_core would sleep to look up each
# sender, in work items that set up the connections of all devices. rrxe gives ib_core another
# sender. Tests that connections are set up and memory doesn't grow meanwhile, that invalid
# datagrams are refused without a line in the log, and that a device can be removed meanwhile. Host
# 2 forges the datagrams (mads.py) to host 1 over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=60
MADS=$(dirname "$0")/mads.py
COUNT=100000
# The full number takes half an hour on an emulated debug kernel.
[[ -z $DEBUG_KERNEL ]] || COUNT=3000
readonly MADS ROUNDS=5 COUNT

begin() {
	python3 "$MADS" "$@" &
	FORGER=$!
}

end() { terminate $FORGER; }

sent() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts")"; }
answered() { [[ $(sent) -ge $1 ]]; }

# KASAN keeps freed objects until their cache is shrunk. A directory that is a symbolic link names a
# cache that another directory names, too (merged caches).
shrink_caches() {
	local file
	for file in /sys/kernel/slab/*/shrink; do
		[[ -L ${file%/shrink} ]] || echo 1 >"$file"
	done
}

unreclaimable() {
	[[ -z $DEBUG_KERNEL ]] || shrink_caches
	awk '/^SUnreclaim/ { print $2 }' /proc/meminfo
}

# Forges COUNT connection requests. Fails if the kernel's unreclaimable slab memory grows by 20,000
# KiB or more.
grows_little() {
	local before
	before=$(unreclaimable)
	python3 "$MADS" connection 0 --count $COUNT || return
	note "$(($(unreclaimable) - before)) KiB more after $COUNT datagrams" >/dev/console
	[[ $(($(unreclaimable) - before)) -lt 20000 ]]
}

# Prints the number of requests to end a connection (DREQ) that ib_cm doesn't have. rrxe's own
# probes are such requests (gsi/probe.rs).
probes() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/cm_rx_duplicates/dreq")"; }
probed() { [[ $(probes) -ge $1 ]]; }
# refused COUNTER COUNT: succeeds if a drop counter of host 1's device is at least COUNT.
refused() { [[ $(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/$1") -ge $2 ]]; }
# ib_mad logs these lines without a rate limit (validate_mad(), find_mad_agent(),
# drivers/infiniband/core/mad.c).
ib_mad_is_silent() { ! kernel_said "$1"; }

# Succeeds if ib_core repeats a reply after seconds to a requester that named a response timeout of
# hours.
reply_is_repeated() {
	local server status
	ip netns exec h1 rping -s -P -a $HOST1_V4 >/tmp/rping 2>&1 &
	server=$!
	wait_for 20 _cm_listening && patiently 30 python3 "$(dirname "$0")/mads-times.py"
	status=$?
	terminate $server && return $status
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
for kind in counters connection; do
	check "$kind: datagrams are forged" begin $kind 20
	sleep 3
	check "$kind: connections are set up beside them" rping_connects 20
	check "$kind: ib_core answers them" wait_for 20 answered $(($(sent) + 40))
	check "$kind: no more are forged" end
done
check "datagrams from nowhere cost no memory" grows_little
check "datagrams of another base version" python3 "$MADS" unversioned 0 --count 1000
check "they are refused" wait_for 20 refused drop_invalid 100
check "ib_mad logs none of them" ib_mad_is_silent "MAD received with unsupported base version"
check "responses from nowhere" python3 "$MADS" response 0 --count 20000
check "nobody asked for these" wait_for 20 refused drop_unasked 100
check "ib_mad logs none of those" ib_mad_is_silent "No receive handler for client"
questions=$(probes)
check "datagrams of connection management without answers" python3 "$MADS" final 400 --count 1500
check "rrxe asks at times whether ib_cm has handled them" wait_for 20 probed $((questions + 2))
check "connections are set up after them" rping_connects 20
check "a sender names a time of hours, and ib_core waits for seconds" reply_is_repeated
# Removes the device while datagrams come: ib_core must not use objects that it frees with the
# device.
for ((round = 1; round <= ROUNDS; round++)); do
	check "round $round: datagrams are forged" begin counters 0
	sleep 1
	check "round $round: the link goes meanwhile" patiently 20 ip netns exec h1 rdma link del "$DEV1"
	check "round $round: no more are forged" end
	check "round $round: the link again" link_add 1
done
