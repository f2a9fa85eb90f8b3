#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together
# Tests that an RC connection survives the invalidation of its route (`struct dst_entry`).
#
# The kernel may replace the network device of an invalid entry at any time, also while the driver
# builds a packet for it. The new device (blackhole_netdev; dst_dev_put(), net/core/dst.c) has an
# MTU of 68 bytes. The packet is lost, but the driver must not conclude that the packet is too long:
# that would end the connection. Here forged ICMP messages create entries in the kernel's table of
# route exceptions, and `ip route flush cache` invalidates them. Two hosts are connected by a veth
# pair.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4400
check "link on host 1" link_add 1
check "link on host 2" link_add 2
# The forged messages come from host 2 with the source address fd77::99, and a path MTU of 4,350.
mac_address=$(in1 cat /sys/class/net/eth0/address)
python3 "$(dirname "$0")/invalidate_routes.py" /tmp/stop /tmp/invalidations "ip -n h1 -6 route flush cache" \
	h2 eth0 "$mac_address" fd77::99 $HOST1_V6 $HOST2_V6 4350 &
invalidator=$!
wait_for 10 test -s /tmp/invalidations
messages=4000
[[ -z $DEBUG_KERNEL ]] || messages=200
check "an RC connection survives the invalidation of its routes" \
	_pingpong $HOST1_V6 $HOST2_V6 -n $messages -s 65536 -m 4096
touch /tmp/stop
invalidator_succeeds() { wait $invalidator; }
check "the script that invalidates routes succeeds" invalidator_succeeds
note "$(wc -l </tmp/invalidations) invalidations"
check "link on host 1 is deleted" link_del 1
check "link on host 2 is deleted" link_del 2
