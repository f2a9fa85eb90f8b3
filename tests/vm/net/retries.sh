#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: append=threadirqs timeout=300
# Tests which events count against an RC QP's retry counter (retries.py): an acknowledgment that
# waits in the backlog of a CPU does not, nor do packets that the sender's own host drops.
#
# Two hosts are connected by a veth pair. Softirqs run in threads (kernel parameter `threadirqs`),
# so that a real-time thread can delay them.
source "$(dirname "$0")/../lib/guest.sh"

receive_on_cpus() {
	ip netns exec "h$1" sh -c "echo $2 >/sys/class/net/eth0/queues/rx-0/rps_cpus"
}

add_neighbours() {
	in1 ip neigh replace $HOST2_V4 lladdr "$(in2 cat /sys/class/net/eth0/address)" dev eth0 nud permanent &&
		in2 ip neigh replace $HOST1_V4 lladdr "$(in1 cat /sys/class/net/eth0/address)" dev eth0 nud permanent
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "host 1 receives on CPU 1" receive_on_cpus 1 2
check "host 2 receives on CPU 0" receive_on_cpus 2 1
check "both hosts have permanent neighbour entries" add_neighbours
python3 "$(dirname "$0")/retries.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" ||
	fail "retries.py exits with status 0" "status $?"
