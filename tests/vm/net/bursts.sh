#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=900
# Tests that large messages pass through the network stack in bursts (bursts.py), and that no
# message arrives with wrong data, whatever the network stack does with the bursts.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=120
readonly NOWHERE=fd88::9

# transfers NAME EXPECTED [ADDRESS1 ADDRESS2 [DESTINATION]]: runs bursts.py.
transfers() {
	python3 "$(dirname "$0")/bursts.py" "$DEV1" "$(gid_index "$DEV1" "${3:-$HOST1_V4}")" \
		"$DEV2" "$(gid_index "$DEV2" "${4:-$HOST2_V4}")" "$1" "$2" ${5:+"$5"} ||
		fail "bursts.py exits with status 0" "$1: status $?"
}

# sniff HOST [FILE]: starts tcpdump on the host, which writes to FILE; unsniff ends it.
sniff() {
	rm -f /tmp/sniff
	ip netns exec "h$1" tcpdump -Z root -ni eth0 -w "${2:-/dev/null}" "udp port 4791" 2>/tmp/sniff &
	SNIFFER=$!
	wait_for 20 grep -q listening /tmp/sniff
}
unsniff() {
	kill "$SNIFFER"
	wait "$SNIFFER" 2>/dev/null
}
icrcs_cover() { python3 "$(dirname "$0")/burst_icrcs.py" /tmp/bursts.pcap "$1"; }

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2

transfers "over IPv4" bursts
transfers "over IPv6" bursts $HOST1_V6 $HOST2_V6

check "tcpdump runs on host 2" sniff 2 /tmp/bursts.pcap
# READ requests of host 2 do not permit responses in bursts while tcpdump runs there.
transfers "while the receiver of half of them runs tcpdump" some $HOST1_V6 $HOST2_V6
unsniff
check "the ICRC of a burst covers the headers" icrcs_cover headers
check "tcpdump runs on host 1" sniff 1
SNIFFER1=$SNIFFER
check "tcpdump runs on host 2" sniff 2
transfers "while both hosts run tcpdump" singles
unsniff
kill "$SNIFFER1"

# No burst is sent through a queueing discipline, because some disciplines drop bursts.
netem "corrupt 1%"
transfers "over a queueing discipline" singles
netem_off

# drop_long HOOK: drops bursts, whose length is that of all packets, at this hook of both hosts.
drop_long() {
	local host
	for host in 1 2; do
		ip netns exec h$host nft "table inet long { chain c { type filter hook $1 priority 0; meta length gt 8000 drop; }; }" || return
	done
}
check "bursts are dropped on arrival" drop_long input
transfers "over a path that drops bursts" few
for host in 1 2; do ip netns exec h$host nft delete table inet long; done
check "bursts are dropped by their own host" drop_long output
transfers "while the sender's host drops bursts" few
for host in 1 2; do ip netns exec h$host nft delete table inet long; done

for host in 1 2; do ip netns exec h$host ethtool -K eth0 tx-udp_tnl-segmentation off >/dev/null; done
transfers "over network devices without segmentation of UDP tunnels" singles
for host in 1 2; do ip netns exec h$host ethtool -K eth0 tx-udp_tnl-segmentation on gso off >/dev/null; done
transfers "over network devices with gso off" singles
for host in 1 2; do ip netns exec h$host ethtool -K eth0 gso on >/dev/null; done
transfers "over network devices with gso on again" bursts

# lengthen_headers PROTOCOL ACTIONS: lets tc change the packets of host 1 and send them through the
# veth device m1 to nowhere.
lengthen_headers() {
	# shellcheck disable=SC2086 # a list of words
	in1 tc qdisc add dev eth0 clsact &&
		in1 tc filter add dev eth0 egress protocol "$1" flower ip_proto udp dst_port 4791 $2 pipe \
			action mirred egress redirect dev m1
}
# repeat COUNT WORDS: prints the words as often, with "pipe" between.
repeat() {
	local all=$2 index
	for ((index = 1; index < $1; index++)); do all+=" pipe $2"; done
	echo "$all"
}
mute_link_up() {
	ip -n h1 link add m1 mtu 9000 type veth peer name m2 mtu 9000 && ip -n h1 link set m1 up && ip -n h1 link set m2 up
}
check "a veth pair to nowhere" mute_link_up
check "tc pushes 30 MPLS labels" lengthen_headers ip "$(repeat 30 "action mpls push protocol mpls_uc label 699050 tc 5 ttl 170")"
transfers "while tc pushes MPLS labels" lost
in1 tc qdisc del dev eth0 clsact
in1 ethtool -K m1 tx-udp_tnl-segmentation off >/dev/null
check "tc pushes two VLAN tags" lengthen_headers ipv6 "$(repeat 2 "action vlan push id 5")"
transfers "while tc pushes VLAN tags" lost $HOST1_V6 $HOST2_V6
in1 tc qdisc del dev eth0 clsact

# Host 2 forwards the packets through IPsec in BEET mode (between IPv6 hosts, over IPv4). tc declares
# the packets TCP segments, so xfrm4_beet_gso_segment() (net/ipv4/esp4_offload.c) has them segmented as
# such. tc also pushes a VLAN tag on m1. The VLAN offload of m1 is off, so the network stack inserts
# the tag, and segments the packets before m1 sends them.
forward_as_tcp() {
	local tcp=(action pedit munge offset 6 u8 set 6 munge offset 52 u8 set 0x20)
	local cipher=(aead "rfc4106(gcm(aes))" 0x0102030405060708090a0b0c0d0e0f1011121314 128)
	ip -n h2 link add m1 mtu 9000 type veth peer name m2 mtu 9000 &&
		ip -n h2 link set m1 up && ip -n h2 link set m2 up && ip -n h2 addr add 10.99.0.1/24 dev m1 &&
		in2 sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv4.ip_forward=1 &&
		ip -n h2 neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev m1 &&
		ip -n h2 neigh add $NOWHERE lladdr 02:00:00:00:00:02 dev m1 && ip -n h2 route add $NOWHERE dev m1 &&
		in2 ethtool -K m1 tx-vlan-offload off >/dev/null &&
		in2 tc qdisc add dev m1 clsact && in2 tc filter add dev m1 egress matchall action vlan push id 5 &&
		in2 tc qdisc add dev eth0 clsact &&
		in2 tc filter add dev eth0 ingress protocol ipv6 flower ip_proto udp dst_port 4791 "${tcp[@]}" &&
		ip -n h2 xfrm state add src 10.99.0.1 dst 10.99.0.2 proto esp spi 0x100 mode beet "${cipher[@]}" \
			sel src fd77::/64 dst fd88::/64 offload dev m1 dir out &&
		ip -n h2 xfrm policy add src fd77::/64 dst fd88::/64 dir out tmpl src 10.99.0.1 dst 10.99.0.2 \
			proto esp spi 0x100 mode beet &&
		ip -n h1 route add fd88::/64 via $HOST2_V6
}
encrypted() { in2 ip -s xfrm state | grep -q "(bytes), [1-9][0-9]*(packets)"; }

vlan_up() {
	local host
	for host in 1 2; do
		ip -n h$host link add link eth0 name eth0.5 type vlan id 5 &&
			ip -n h$host addr add 10.79.0.$host/24 dev eth0.5 && ip -n h$host link set eth0.5 up || return
	done
	wait_for 20 gid_index "$DEV1" 10.79.0.1 && wait_for 20 gid_index "$DEV2" 10.79.0.2
}
check "host 2 forwards packets through IPsec" forward_as_tcp
transfers "while a router encrypts them as TCP segments" lost $HOST1_V6 $HOST2_V6 $NOWHERE
check "IPsec has encrypted bursts" encrypted
in2 tc qdisc del dev eth0 clsact

check "VLANs" vlan_up
transfers "over a VLAN" bursts 10.79.0.1 10.79.0.2

check "the module is removed" rmmod rrxe
check "the module loads with burst_icrc=1" modprobe rrxe burst_icrc=1
check "link on host 1 with burst_icrc=1" link_add 1
check "link on host 2 with burst_icrc=1" link_add 2
check "tcpdump runs on host 2 with burst_icrc=1" sniff 2 /tmp/bursts.pcap
transfers "with burst_icrc=1" some $HOST1_V6 $HOST2_V6
unsniff
check "the ICRC of a burst covers the payload with burst_icrc=1" icrcs_cover payload
