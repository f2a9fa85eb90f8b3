#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=240
# vm-debug: skip The script tests a program of user space.
# Injects faults into host 2 and the network. `rrxe doctor PEER` on host 1 must name each one with
# its remedy, and no other fault.
source "$(dirname "$0")/../lib/guest.sh"
source "$(dirname "$0")/lib.sh"

# The peer responds at once if it responds at all. A busy machine may need longer.
patient() { doctor --wait $((15 * LIMIT_FACTOR)) "$@"; }
# Each fault below keeps the peer from responding.
brief() { doctor --wait 2 "$@"; }
healthy() { check "no fault is found $1" patient "$2"; }

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
healthy "over IPv4" $HOST2_V4
healthy "over IPv6" $HOST2_V6
healthy "of this host itself" $HOST1_V4

check "a name without an address" finds 1 "name no.such.host.invalid has no address" "/etc/hosts" \
	patient no.such.host.invalid
check "no route" finds 1 "no route to 203.0.113.1" "ip route add" patient 203.0.113.1
ip -n h1 link add spare0 type dummy
ip -n h1 link set spare0 up
ip -n h1 route add 203.0.113.0/24 dev spare0
check "a route through another network device" finds 1 "network device spare0, which has no link" \
	"rrxe add NAME spare0" patient 203.0.113.1
ip -n h1 link del spare0
check "an absent peer" finds 1 "answers neither pings nor RoCE" "cables" brief 10.77.0.99

link_del 2
check "a peer without a link" finds 1 "rejects packets to UDP port 4791: it has no RoCE link" "rrxe add. adds a link there" \
	brief $HOST2_V4
check "link on host 2" link_add 2

in2 nft "add table ip t; add chain ip t in { type filter hook input priority 0; }
	add rule ip t in udp dport 4791 drop"
check "a firewall of the peer that drops" finds 1 "answers pings, but no RoCE" "pass UDP port 4791" brief $HOST2_V4
in2 nft "flush chain ip t in; add rule ip t in udp dport 4791 reject with icmp admin-prohibited"
check "a firewall of the peer that rejects" finds 1 "UDP port 4791 of $HOST2_V4 fails" "pass UDP port 4791" \
	brief $HOST2_V4
in2 nft "flush chain ip t in; add rule ip t in icmp type echo-request drop"
healthy "if the peer drops pings" $HOST2_V4
in2 nft "flush chain ip t in; add rule ip t in icmp type echo-request numgen inc mod 3 0 drop"
check "loss" finds 1 "4 of 10 pings to $HOST2_V4 were lost" "drop counters" patient $HOST2_V4
in2 nft delete table ip t
in1 nft "add table ip t; add chain ip t out { type filter hook output priority 0; }
	add rule ip t out ip daddr $HOST2_V4 udp dport 4791 drop"
check "a rule of this host against the peer" finds 2 "drops outgoing RoCE packets over IPv4" \
	"nft insert rule ip t out" brief $HOST2_V4
in1 nft delete table ip t

ip -n h2 link set eth0 mtu 700
check "a peer with a smaller MTU" finds 1 "none with the length of a RoCE packet of 1024" "same MTU" \
	patient $HOST2_V4
ip -n h2 link set eth0 mtu 1500
healthy "after all faults" $HOST2_V4

check "link on host 1 is deleted" link_del 1
check "link on host 2 is deleted" link_del 2
