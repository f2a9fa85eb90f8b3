#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Tests that a host that keeps all received RoCEv2 packets in a queue does not stop traffic to other
# hosts: neither connection management nor UD datagrams.
#
# Host 1 is a bridge whose ports are veth pairs to hosts 2 and 3. Host 2 redirects its received
# RoCEv2 packets to a queueing discipline that hardly sends. They stay there in the buffers that
# host 1 sent, so they stay in flight for QP 1 and for the UD QPs of host 1.
source "$(dirname "$0")/../lib/guest.sh"
# Address of host 3; number of requests of a round; tx limit of QP 1 in packets (limits.rs:
# GSI_PACKETS_IN_FLIGHT).
readonly HOST3_V4=10.77.0.3 REQUESTS=600 GSI_TX_LIMIT=256

# Creates three namespaces. eth0 of h1 is a bridge that connects h2 and h3.
three_hosts() {
	local host
	for host in 1 2 3; do
		ip netns add h$host && ip -n h$host link set lo up || return
	done
	ip -n h1 link add eth0 type bridge
	for host in 2 3; do
		ip link add port$host netns h1 type veth peer name eth0 netns h$host || return
		ip -n h1 link set port$host master eth0 up
		ip -n h$host addr add 10.77.0.$host/24 dev eth0
		ip -n h$host link set eth0 up
	done
	ip -n h1 addr add $HOST1_V4/24 dev eth0
	ip -n h1 link set eth0 up
	wait_for 20 in1 ping -q -c 1 -W 5 $HOST2_V4 && wait_for 20 in1 ping -q -c 1 -W 5 $HOST3_V4
}

keep_all_packets() { add_queueing_ifb 2 && redirect 2 ingress ip ifb0; }

host2_keeps() { [[ $(backlog h2 ifb0) -ge $1 ]]; }

check "three hosts" three_hosts
check "link on host 1" link_add 1
check "link on host 3" link_add 3
check "host 3 connects to host 1 by rdma_cm" rping_connects 30 3
check "host 2 keeps all IPv4 packets to the RoCE port in a queue" keep_all_packets
# QP 1 limits the rate of the requests that it takes from one address, so several rounds may be
# needed.
for round in {1..10}; do
	check "host 2 sends requests to QP 1 of host 1, round $round" \
		python3 "$(dirname "$0")/port_counters.py" h2 $HOST2_V4 $HOST1_V4 $REQUESTS
	! wait_for 1 host2_keeps $((GSI_TX_LIMIT + 44)) || break
done
check "host 2 keeps more responses than the tx limit of QP 1" host2_keeps $((GSI_TX_LIMIT + 44))
note "$(backlog h2 ifb0) packets wait"
check "host 3 connects to host 1 although host 2 keeps responses of QP 1" rping_connects 30 3
python3 "$(dirname "$0")/queueing_host.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" $HOST2_V4 $HOST3_V4 10.77.0.255 ||
	fail "queueing_host.py exits with status 0" "status $?"
check "link del on host 1 returns while host 2 keeps packets" link_del 1
check "link on host 3 is deleted" link_del 3
check "rmmod returns while host 2 keeps packets" wait_for 20 rmmod rrxe
check "host 2 still keeps packets after rmmod" host2_keeps $GSI_TX_LIMIT
ip netns del h3
