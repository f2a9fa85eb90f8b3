#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Forged management datagrams from neighbours that don't exist. If ib_core had to look up the MAC
# address of each sender, it would sleep in work items that set up the connections of all devices.
# So rrxe gives ib_core another address as the sender's, which needs no look-up (gsi.rs). Tests that
# connections are set up and memory doesn't grow meanwhile, that invalid datagrams are refused
# without a line in the log, and that a device can be removed meanwhile. Host 2 forges the datagrams
# (mads.py) to host 1 over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=60
MADS=$(dirname "$0")/mads.py
COUNT=100000
# The full number takes half an hour on an emulated debug kernel.
[[ -z $DEBUG_KERNEL ]] || COUNT=3000
readonly MADS ROUNDS=5 COUNT

start_forger() {
	python3 "$MADS" "$@" 2>/tmp/forger &
	FORGER=$!
}

stop_forger() {
	terminate $FORGER && return
	cat /tmp/forger
	return 1
}

sent() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts")"; }
has_sent() { [[ $(sent) -ge $1 ]]; }

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
memory_is_bounded() {
	local before
	before=$(unreclaimable)
	python3 "$MADS" connection 0 --count $COUNT || return
	note "$(($(unreclaimable) - before)) KiB more after $COUNT datagrams" >/dev/console
	[[ $(($(unreclaimable) - before)) -lt 20000 ]]
}

# Prints ib_cm's count of repeated requests to end connections (DREQ). It includes requests for
# connections that ib_cm doesn't know, such as rrxe's own probes (gsi/probe.rs).
probes() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/cm_rx_duplicates/dreq")"; }
probes_reach() { [[ $(probes) -ge $1 ]]; }
# counter_reaches COUNTER COUNT: succeeds if a drop counter of host 1's device is at least COUNT.
counter_reaches() { [[ $(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/$1") -ge $2 ]]; }
# ib_mad logs these lines without a rate limit (validate_mad(), find_mad_agent(),
# drivers/infiniband/core/mad.c).
ib_mad_is_silent() { ! kernel_said "$1"; }

# Succeeds if ib_core repeats a reply within seconds, although the requester gave a response timeout
# of hours.
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
	check "$kind: host 2 starts to forge MADs" start_forger $kind 20
	sleep 3
	check "$kind: connections are set up while forged MADs come" rping_connects 20
	check "$kind: host 1 sends packets in response to forged MADs" \
		wait_for 20 has_sent $(($(sent) + 40))
	check "$kind: host 2 stops forging MADs" stop_forger
done
check "MADs from nonexistent neighbours don't use up kernel memory" memory_is_bounded
check "host 2 forges MADs with a wrong base version" python3 "$MADS" unversioned 0 --count 1000
check "MADs with a wrong base version are dropped" wait_for 20 counter_reaches drop_invalid 100
check "ib_mad logs no MAD with a wrong base version" \
	ib_mad_is_silent "MAD received with unsupported base version"
check "host 2 forges MAD responses without a request" python3 "$MADS" foreign_response 0 --count 20000
check "MAD responses without a request are dropped" wait_for 20 counter_reaches drop_unasked 100
check "ib_mad logs no MAD response without a request" \
	ib_mad_is_silent "No receive handler for client"
probes_before=$(probes)
check "host 2 forges CM messages that have no response" python3 "$MADS" final 400 --count 1500
check "rrxe probes whether ib_cm has handled CM messages without a response" \
	wait_for 20 probes_reach $((probes_before + 2))
check "connections are set up after CM messages without a response" rping_connects 20
check "ib_core repeats a reply after seconds though the request's timeout is hours" \
	reply_is_repeated
# Removes the device while datagrams come: ib_core must not use objects that it frees with the
# device.
for ((round = 1; round <= ROUNDS; round++)); do
	check "round $round: host 2 starts to forge MADs" start_forger counters 0
	sleep 1
	check "round $round: link del returns while forged MADs come" \
		patiently 20 ip netns exec h1 rdma link del "$DEV1"
	check "round $round: host 2 stops forging MADs" stop_forger
	check "round $round: the link is added again" link_add 1
done
