#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=200
# Tests that packets in a queue do not delay the deletion of their network device, nor of a network
# namespace.
#
# The driver gives an IPv6 packet that is longer than the path MTU a routing entry of its own, which
# refers to the network device (route.rs). A queue must not keep that reference. Here host 1
# redirects such packets from eth0, a veth device, to a queueing discipline of ifb0 that hardly
# sends; then the veth pair is deleted.
source "$(dirname "$0")/../lib/guest.sh"
# Bytes of a datagram: more than the path MTU of 1,280; number of datagrams.
readonly LENGTH=2048 COUNT=20

lower_path_mtu() { ip -n h1 -6 route replace fd77::/64 dev eth0 proto kernel metric 256 mtu 1280; }
# Half of the packets: the token bucket filter of ifb0 lets its burst of 5,000 bytes pass at once.
packets_wait() { [[ $(backlog h1 ifb0) -ge $((COUNT / 2)) ]]; }
# Deletes a namespace with one end of a veth pair. The other end is then deleted, too.
delete_other_namespace() {
	ip netns add other && ip link add mine type veth peer name theirs netns other && ip netns del other &&
		wait_for 20 bash -c '[[ ! -e /sys/class/net/mine ]]'
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "ifb0 of host 1 keeps packets in a queue" add_queueing_ifb 1
check "RoCEv2 packets that leave eth0 are redirected to ifb0" redirect 1 egress ipv6 ifb0
check "the route to host 2 has an MTU of 1280 bytes" lower_path_mtu
check "datagrams that are longer than the path MTU complete" \
	python3 "$(dirname "$0")/send_datagrams.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" \
	$HOST2_V6 $COUNT $LENGTH
check "the datagrams wait in the queue" wait_for 10 packets_wait
check "host 2 and the veth pair are deleted" ip netns del h2
DEV1=''
check "another network namespace can be deleted while the datagrams wait" delete_other_namespace
check "the datagrams still wait after the deletions" packets_wait
# Were a reference to the network device left, the deletion of host 1 would never end.
in1 tc qdisc del dev ifb0 root
