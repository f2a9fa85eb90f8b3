#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=200
# Packets of IPv6 that are longer than the path's MTU and wait in a queue hold up the end of no network device, and with it
# of no network namespace.
source "$(dirname "$0")/../lib/guest.sh"
readonly LENGTH=2048 COUNT=20

narrow() { ip -n h1 -6 route replace fd77::/64 dev eth0 proto kernel metric 256 mtu 1280; }
# The burst of the queue goes.
wait_still() { [[ $(backlog h1 ifb0) -ge $((COUNT / 2)) ]]; }
# The other end of its veth pair goes with the namespace.
namespace_ends() {
	ip netns add other && ip link add mine type veth peer name theirs netns other && ip netns del other &&
		wait_for 20 bash -c '[[ ! -e /sys/class/net/mine ]]'
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "a queue on host 1" keeper 1
check "RoCEv2 packets go there" redirect 1 egress ipv6 ifb0
check "a narrow path" narrow
check "datagrams are sent" python3 "$(dirname "$0")/narrow.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" \
	$HOST2_V6 $COUNT $LENGTH
check "they wait" wait_for 10 wait_still
check "host 2 goes, and with it the network device" ip netns del h2
DEV1=''
check "other network namespaces end" namespace_ends
check "the datagrams still wait" wait_still
# If the network device waited for them, host 1 would never end.
in1 tc qdisc del dev ifb0 root
