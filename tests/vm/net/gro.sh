#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=300
# Tests that a QP goes on sending after GRO has cleared the destructors of its packets.
#
# The destructor of a packet's buffer tells the driver that the packet is no longer in flight, so
# the packet no longer counts for the QP's tx limit. GRO clears the destructor of a buffer that it
# merges into another one, without calling it (skb_gro_receive(), net/core/gro.c). The driver must
# find such packets, and subtract them. The administrator of a container (h2) causes this: host 1
# sends packets over a veth pair to h2, which rewrites them into TCP segments and passes them
# through MACsec devices to GRO.
source "$(dirname "$0")/../lib/guest.sh"
readonly PORT=4791 KEY=0123456789abcdef0123456789abcdef

# Creates two MACsec devices on a veth pair within the container. The cipher is asynchronous, so the
# decrypted packets reach GRO with their destructors. gro_flush_timeout has GRO keep packets for
# merging for 100 ms.
add_macsec_devices() {
	local mac
	ip -n h2 link add vA mtu 9000 type veth peer name vB mtu 9000 && ip -n h2 link set vA up && ip -n h2 link set vB up || return
	mac=$(in2 cat /sys/class/net/vA/address)
	ip -n h2 link add link vA macsec0 type macsec port 1 encrypt on && in2 ip macsec add macsec0 tx sa 0 pn 1 on key 01 $KEY &&
		ip -n h2 link add link vB macsec1 type macsec port 1 && in2 ip macsec add macsec1 rx port 1 address "$mac" &&
		in2 ip macsec add macsec1 rx port 1 address "$mac" sa 0 pn 1 on key 01 $KEY || return
	ip -n h2 link set macsec0 up && ip -n h2 link set macsec1 up &&
		in2 sh -c 'echo 100000000 >/sys/class/net/macsec1/gro_flush_timeout'
}
# Rewrites RoCEv2 packets into TCP segments, and redirects them to the MACsec devices. A packet of
# odd PSN gets the sequence number that follows the packet of even PSN, so GRO merges the two. A
# segment has 1,028 bytes of data: the message and the ICRC. Its TCP header replaces UDP header and
# BTH.
rewrite_to_tcp() {
	local odd
	in2 tc qdisc add dev eth0 clsact || return
	for odd in 0 1; do
		in2 tc filter add dev eth0 ingress protocol ip prio $((odd + 1)) u32 match ip protocol 17 0xff \
			match u16 $PORT 0xffff at 22 match u8 $odd 1 at 39 \
			action pedit munge offset 9 u8 set 6 munge offset 20 u32 set 0x10001001 \
			munge offset 24 u32 set $((1000 + odd * 1028)) munge offset 28 u32 set 1 munge offset 32 u32 set 0x5010ffff \
			munge offset 36 u32 set 0 pipe action csum ip4h tcp pipe action mirred egress redirect dev macsec0 || return
	done
}
decrypted() { in2 cat /sys/class/net/macsec1/statistics/rx_packets; }
# Prints the number of packets that have reached the IP layer. The IP layer drops and counts them,
# because their destination MAC address is that of another network device.
reached_ip() { ip -n h2 -s -s -j link show macsec1 | sed -n 's/.*"otherhost":\([0-9]*\).*/\1/p'; }

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
wait_for 10 gid_index "$DEV1" $HOST1_V4
check "the kernel instantiates an asynchronous cipher" \
	python3 "$(dirname "$0")/cipher.py" "pcrypt(gcm(aes))"
check "the cipher is registered" wait_for 20 grep -q '^driver *: pcrypt(' /proc/crypto
check "host 2 has two MACsec devices" add_macsec_devices
check "host 2 rewrites RoCEv2 packets into TCP segments" rewrite_to_tcp
python3 "$(dirname "$0")/gro.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" $HOST2_V4 || fail "gro.py exits with status 0" "status $?"
note "$(decrypted) decrypted packets, of which the IP layer received $(reached_ip)"
check "GRO has merged packets" test "$(reached_ip)" -lt "$(decrypted)"
