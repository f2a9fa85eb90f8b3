#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Tests the measures against forged packets that Documentation/security.rst recommends, between two
# hosts over a veth pair: the nftables rules of rrxe-guard.nft, a link over WireGuard, and IPsec for
# the RoCE port.
source "$(dirname "$0")/../lib/guest.sh"
HERE=$(dirname "$0")
readonly TUNNEL_PORT=51820

# pingpong_over DEVICE1 ADDRESS1 DEVICE2 ADDRESS2 [TRANSPORT]: runs a pingpong from host 1 to host
# 2. The programs exchange their QPNs over TCP on eth0.
pingpong_over() {
	local device1=$1 address1=$2 device2=$3 address2=$4 program=ibv_${5:-rc}_pingpong
	wait_for 10 gid_index "$device1" "$address1" && wait_for 10 gid_index "$device2" "$address2" || return
	run_server_and_client "$program" -c -n 30 -s 1000 -d "$device2" -g "$(gid_index "$device2" "$address2")" -- \
		"$program" -c -n 30 -s 1000 -d "$device1" -g "$(gid_index "$device1" "$address1")" $HOST2_V4
}

# capture_wire FILTER: captures on eth0 of host 2 the unencrypted packets to the RoCE port
# (/tmp/unencrypted), and the packets that FILTER selects (/tmp/encrypted), until only_encrypted.
capture_wire() {
	# The output of earlier captures must not be taken for that of the new ones.
	rm -f /tmp/unencrypted /tmp/encrypted /tmp/tcpdump[12]
	in2 tcpdump -lnni eth0 "udp port 4791" >/tmp/unencrypted 2>/tmp/tcpdump1 &
	CAPTURES=($!)
	in2 tcpdump -lnni eth0 "$1" >/tmp/encrypted 2>/tmp/tcpdump2 &
	CAPTURES+=($!)
	wait_for 20 grep -q listening /tmp/tcpdump1 && wait_for 20 grep -q listening /tmp/tcpdump2
}
only_encrypted() {
	local counts
	wait_for 20 bash -c '[[ $(wc -l </tmp/encrypted) -ge 60 ]]'
	kill "${CAPTURES[@]}"
	wait "${CAPTURES[@]}"
	counts="$(wc -l </tmp/unencrypted) unencrypted, $(wc -l </tmp/encrypted) encrypted"
	echo "$counts"
	[[ $(wc -l </tmp/unencrypted) -eq 0 && $(wc -l </tmp/encrypted) -ge 60 ]]
}

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2

# The nftables guard.
forge() { python3 "$HERE/guard_rules.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$1"; }
dropped_by_guard() { in2 nft list table inet rrxe_guard | grep -q "counter packets $1 "; }
check "without the guard, datagrams forged by a user of the peer's host are received" forge lands
check "the guard is loaded" in2 nft -f /payload/rrxe-guard.nft
check "with the guard, no UDP socket sends to the RoCE port" forge refused
check "the guard counts the refused datagrams" dropped_by_guard 16
check "an RC pingpong runs with the guard" pingpong -n 50
check "a UD pingpong runs with the guard" pingpong6 -T ud -s 1000 -n 50
check "the guard is loaded a second time" in2 nft -f /payload/rrxe-guard.nft
check "the guard is removed" in2 nft delete table inet rrxe_guard

# WireGuard: the link is on the tunnel's network device.
modprobe wireguard
for host in 1 2; do
	ip -n h$host link add wg0 type wireguard
	ip netns exec h$host python3 "$HERE/wireguard.py" wg0 $host 10.77.0.$((3 - host)) $TUNNEL_PORT ||
		fail "WireGuard on host $host"
	ip -n h$host addr add 10.83.0.$host/24 dev wg0
	ip -n h$host addr add fd83::$host/64 dev wg0
	ip -n h$host link set wg0 up
	check "link on the WireGuard device of host $host" \
		ip netns exec h$host rdma link add wg$host type rrxe netdev wg0
done
check "tcpdump captures the packets of WireGuard" capture_wire "udp port $TUNNEL_PORT"
# A handshake may take longer than all retries of a pingpong.
check "the tunnel is up" wait_for 20 in1 ping -q -c 1 -W 5 10.83.0.2
for transport in rc uc ud; do
	check "$transport pingpong over WireGuard" \
		pingpong_over wg1 10.83.0.1 wg2 10.83.0.2 $transport
done
check "rc pingpong over IPv6 and WireGuard" pingpong_over wg1 fd83::1 wg2 fd83::2
# Any host of the LAN can announce a route to the peer with a longer prefix by a router
# advertisement. While there is such a route, ib_core can connect no QP: no host on eth0 answers its
# neighbour solicitations. So the test adds the route while a QP is connected.
sent() { cat /sys/class/infiniband/wg1/ports/1/hw_counters/sent_pkts; }
has_begun() { [[ $(sent) -ge $((before + 100)) ]]; }
before=$(sent)
run_server_and_client ib_send_lat -F "${SECOND[@]}" -n 3000 -d wg2 -x "$(gid_index wg2 fd83::2)" -- \
	ib_send_lat -F "${SECOND[@]}" -n 3000 -d wg1 -x "$(gid_index wg1 fd83::1)" $HOST2_V4 \
	>/tmp/ib_send_lat 2>&1 &
connection=$!
check "QPs are connected over WireGuard" wait_for 60 has_begun
check "a longer route through another network device is added" \
	ip -n h1 route add fd83::2/128 dev eth0
check "the connection has not ended when the route is added" test "$(sent)" -lt $((before + 3000))
wait $connection
check "the connection stays on WireGuard and ends well" test $? == 0 || note "$(</tmp/ib_send_lat)"
ip -n h1 route del fd83::2/128 dev eth0
check "no RoCE packet over WireGuard is unencrypted" only_encrypted
for host in 1 2; do ip netns exec h$host rdma link del wg$host; done

# IPsec: policies for the RoCE port.
check "IPsec policies for IPv4 are set" ipsec transport 1 32 10.77.0.
check "IPsec policies for IPv6 are set" ipsec transport 2 128 fd77::
for family in v4 v6; do
	first=HOST1_${family^^} second=HOST2_${family^^}
	check "tcpdump captures ESP packets, IP$family" capture_wire "esp or ip6 proto 50"
	for transport in rc ud; do
		check "$transport pingpong over IPsec, IP$family" \
			pingpong_over "$DEV1" "${!first}" "$DEV2" "${!second}" $transport
	done
	check "no RoCE packet over IPsec is unencrypted, IP$family" only_encrypted
done

check "link on host 1 is deleted" link_del 1
check "link on host 2 is deleted" link_del 2
check "the module is removed" wait_for 20 rmmod rrxe
