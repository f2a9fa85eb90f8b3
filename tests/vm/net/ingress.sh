#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# Tests which packets the driver accepts, by their source and by the network device that they come
# through.
#
# The driver drops forged packets from the host's own sockets, and packets that come through another
# network device than the one with the destination address (ingress.py). It accepts the packets of
# QPs over VLAN, macvlan, bridge and VRF devices. Two hosts are connected by a veth pair.
source "$(dirname "$0")/../lib/guest.sh"

# pingpong_over DEVICE1 ADDRESS1 DEVICE2 ADDRESS2 [TRANSPORT]: runs a pingpong from host 1 to host
# 2. The programs exchange their QPNs by TCP to the address SERVER_ADDRESS.
pingpong_over() {
	local device1=$1 address1=$2 device2=$3 address2=$4 program=ibv_${5:-rc}_pingpong
	wait_for 10 gid_index "$device1" "$address1" && wait_for 10 gid_index "$device2" "$address2" || return
	run_server_and_client "$program" -c -n 30 -s 1000 -d "$device2" -g "$(gid_index "$device2" "$address2")" -- \
		"$program" -c -n 30 -s 1000 -d "$device1" -g "$(gid_index "$device1" "$address1")" \
		"$SERVER_ADDRESS"
}
SERVER_ADDRESS=$HOST2_V4
# ping_through NETDEV ADDRESS: succeeds if host 2 answers a ping from host 1 through NETDEV.
ping_through() { in1 ping -q -c 1 -W 2 -I "$1" "$2"; }

# check_over NAME NUMBER NETDEV [4]: tests RC and UD over addresses of NETDEV of both hosts: IPv4
# and IPv6, or IPv4 only. NUMBER is a part of the addresses, NAME of the results.
check_over() {
	local name=$1 number=$2 netdev=$3 only=${4:-} host transport
	for host in 1 2; do
		ip -n h$host addr add "10.9$number.0.$host/24" dev "$netdev"
		ip -n h$host addr add "fd9$number::$host/64" dev "$netdev" nodad
		ip -n h$host link set "$netdev" up
	done
	# A network device that has just come up forwards no packets for a while. A QP fails if no
	# neighbour answers in time, so wait until ping succeeds.
	check "ping passes over $name, IPv4" wait_for 20 ping_through "$netdev" "10.9$number.0.2"
	[[ $only == 4 ]] || check "ping passes over $name, IPv6" \
		wait_for 20 ping_through "$netdev" "fd9$number::2"
	for transport in rc ud; do
		check "$transport over $name, IPv4" pingpong_over "$DEV1" "10.9$number.0.1" "$DEV2" "10.9$number.0.2" $transport
		[[ $only == 4 ]] || check "$transport over $name, IPv6" pingpong_over "$DEV1" "fd9$number::1" "$DEV2" "fd9$number::2" $transport
	done
}

drop_counts() {
	cat "/sys/class/infiniband/$1/ports/1/hw_counters/drop_"{local,interface} | paste -sd' '
}
nothing_is_dropped() {
	[[ $(drop_counts "$DEV1") == "0 0" && $(drop_counts "$DEV2") == "0 0" ]] || {
		drop_counts "$DEV1"
		drop_counts "$DEV2"
		return 1
	}
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
for host in 1 2; do
	ip -n h$host link add link eth0 name vlan5 type vlan id 5
	ip -n h$host link add link eth0 name macvlan0 type macvlan mode bridge
done
check_over "a VLAN" 1 vlan5
check_over "a macvlan" 2 macvlan0
check "no packet was dropped in drop_local and drop_interface over VLAN and macvlan" \
	nothing_is_dropped

# Network devices on top of eth0 that are segments of their own: a VXLAN tunnel, VLAN 7, and VLAN 7
# within VLAN 5 (inner7). Each has an address, so that the GID table has an entry of it.
for host in 1 2; do
	ip -n h$host link add vx0 type vxlan id 7 dev eth0 remote 10.77.0.$((3 - host)) dstport 4789
	ip -n h$host link add link eth0 name vlan7 type vlan id 7
	ip -n h$host link add link vlan5 name inner7 type vlan id 7
	ip -n h$host addr add 10.95.0.$host/24 dev vx0
	ip -n h$host addr add 10.96.0.$host/24 dev inner7
	ip -n h$host addr add 10.97.0.$host/24 dev vlan7
	for netdev in vx0 vlan7 inner7; do ip -n h$host link set $netdev up; done
done
for number in 5 6 7; do
	check "10.9$number.0.1 is a GID of the link on host 1" \
		wait_for 10 gid_index "$DEV1" 10.9$number.0.1
done

# The macvlan device of the container h3, on top of eth0 of h1, gets the same interface index as
# eth1 of h1. The index is unique within a network namespace only.
ip netns add h3
ip link add eth1 netns h1 index 77 type veth peer name eth1 netns h2
for host in 1 2; do
	ip -n h$host addr add 10.78.0.$host/24 dev eth1
	ip -n h$host addr add fd78::$host/64 dev eth1 nodad
	ip -n h$host link set eth1 up
done
ip -n h1 link add link eth0 name macvlan3 index 77 netns h3 type macvlan mode bridge
ip -n h3 addr add 10.77.0.33/24 dev macvlan3
ip -n h3 link set macvlan3 up
python3 "$(dirname "$0")/ingress.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$(gid_index "$DEV1" $HOST1_V6)" \
	"$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" "$(gid_index "$DEV1" 10.97.0.1)" || fail "ingress.py exits with status 0" "status $?"

# The macvlan device is deleted explicitly. `ip netns del` deletes it only later, and until then
# eth0 cannot become a port of a bridge.
ip -n h3 link del macvlan3
ip netns del h3
for host in 1 2; do
	for netdev in vx0 inner7 vlan7; do ip -n h$host link del $netdev; done
done

# eth0 becomes a port of a bridge. The addresses of the bridge are GIDs of the link on eth0, too.
for host in 1 2; do
	ip -n h$host link del macvlan0
	ip -n h$host link add br0 type bridge
	ip -n h$host link set eth0 master br0
	in$host sysctl -qw net.ipv4.udp_l3mdev_accept=1
done
before=$(drop_counts "$DEV1")
SERVER_ADDRESS=10.93.0.2
check_over "a bridge" 3 br0
SERVER_ADDRESS=$HOST2_V4
for host in 1 2; do
	ip -n h$host link set eth0 nomaster
	ip -n h$host link del br0
	ip -n h$host link add vrf0 type vrf table 100
	ip -n h$host link set vrf0 up
	ip -n h$host link add link eth0 name vlan6 type vlan id 6
	ip -n h$host link set vlan6 master vrf0
done
# Host 1 also has the VRF addresses of host 2, on a device outside of the VRF. IPv4 accepts packets
# from such an address only if the VRF's table is consulted before the table of local addresses.
ip -n h1 link add dummy0 type dummy
ip -n h1 addr add 10.94.0.2/32 dev dummy0
ip -n h1 addr add fd94::2/128 dev dummy0 nodad
ip -n h1 link set dummy0 up
for version in -4 -6; do
	ip -n h1 $version rule add pref 32765 table local
	ip -n h1 $version rule del pref 0
done
check_over "a VLAN in a VRF" 4 vlan6
# With Linux's default rules, which consult the table of local addresses first, IPv6 accepts these
# packets, too.
ip -n h1 -6 rule add pref 0 table local
ip -n h1 -6 rule del pref 32765
for transport in rc ud; do
	check "$transport over a VLAN in a VRF with Linux's default rules, IPv6" \
		pingpong_over "$DEV1" fd94::1 "$DEV2" fd94::2 $transport
done
check "no packet was dropped in drop_local and drop_interface over bridge and VRF" \
	test "$(drop_counts "$DEV1")" == "$before"
