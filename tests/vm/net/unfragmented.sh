#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=300
# Tests that the IPv6 layer never fragments a QP's packets that are longer than the path MTU.
#
# The driver gives such a packet a routing entry of its own, which the kernel frees after the RCU
# read-side critical section that sends the packet (route.rs). Fragments would refer to the entry
# after that. Here the administrator of a namespace has netfilter lengthen the packets beyond the
# network device's MTU: the SIP helper (nf_nat_sip) replaces a short address by a long one in
# payload that looks like SIP. kprobes count the calls of ip6_dst_alloc() and ip6_fragment(). Two
# hosts are connected by a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
readonly SHORT=fd77::1 LONG=fd77:1111:2222:3333:4444:5555:6666:7777 PORT=4791
# Bytes. A datagram with a payload of 4,096 bytes has 4,168, and fits until the helper lengthens it.
readonly MTU=4184

send() { in1 python3 "$(dirname "$0")/send_datagrams.py" "$DEV1" "$gid" $HOST2_V6 "$@"; }
add_sip_helper() {
	in1 nft -f - <<-RULES
		table inet help {
			ct helper sip6 { type "sip" protocol udp; l3proto ip6; }
			chain out { type filter hook output priority filter; udp dport $PORT ct helper set "sip6"; }
		}
		table inet nat {
			chain post { type nat hook postrouting priority srcnat; ip6 saddr $SHORT udp dport $PORT snat ip6 to $LONG; }
		}
		table netdev lengths {
			counter too_long { }
			chain out { type filter hook egress device eth0 priority 0; meta length > $((MTU + 14)) counter name too_long; }
		}
	RULES
}
# Prints the number of frames that left through eth0 with a packet longer than its MTU.
too_long() { in1 nft list counter netdev lengths too_long | awk '$1 == "packets" { print $2 }'; }
count_calls() {
	echo "p:$1 $2" >>/sys/kernel/tracing/kprobe_events && echo 1 >"/sys/kernel/tracing/events/kprobes/$1/enable"
}
calls() { awk -v name="$1" '$1 == name { print $2 }' /sys/kernel/tracing/kprobe_profile; }

check "two hosts" hosts_up $MTU
check "link on host 1" link_add 1
gid=$(gid_index "$DEV1" $HOST1_V6)
check "the route to host 2 has an MTU of 1280 bytes" \
	ip -n h1 -6 route replace fd77::/64 dev eth0 proto kernel metric 256 mtu 1280
check "the modules of the SIP helper are loaded" modprobe -a nf_nat_sip nf_conntrack_sip
check "netfilter translates addresses and uses the SIP helper" add_sip_helper
check "netfilter translates the source of the first packet" send 1 64
# Without the table, the kernel translates no further packets of the connection. The helper still
# rewrites their payload.
check "the rules of the address translation are deleted" in1 nft delete table inet nat
count_calls dst_alloc ip6_dst_alloc
count_calls fragment ip6_fragment
check "datagrams that the helper lengthens complete" send 20 4096 "Via: SIP/2.0/UDP [$SHORT]:49153"
check "the helper has lengthened each datagram beyond the MTU" test "$(too_long)" -ge 20
check "each long packet has had a routing entry of its own" test "$(calls dst_alloc)" -ge 20
check "the IPv6 layer has fragmented no packet" test "$(calls fragment)" -eq 0
echo 0 >/sys/kernel/tracing/events/kprobes/enable
echo >/sys/kernel/tracing/kprobe_events
