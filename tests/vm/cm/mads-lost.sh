#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# Management datagrams from senders whose MAC address ib_core would not find when it responds: the
# neighbour is known on receipt but answers ARP no more, or ib_core's look-up takes another route or
# network device than RoCE packets. ib_core would sleep in each look-up, in work items that set up
# connections. Tests that connections are still set up meanwhile, and that a device can be removed
# while it gets datagrams. Host 2 forges the datagrams (mads.py) over a veth pair; mads-own.py sends
# datagrams from a second device of host 1.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=60
HERE=$(dirname "$0")
readonly HERE COUNT=3000 ROUNDS=3

counter() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/$1")"; }

link_local() { ip -n h1 -6 -o addr show dev "$1" scope link | awk '{ sub("/.*", "", $4); print $4 }'; }

vlans_up() {
	local host
	modprobe 8021q
	for host in 1 2; do
		ip -n h$host link add link eth0 name eth0.10 type vlan id 10 && ip -n h$host link set eth0.10 up || return
	done
	ip -n h2 addr add fe80::bad/64 dev eth0.10 nodad &&
		wait_for 20 in2 ping -q -c 1 -W 5 -I fe80::bad%eth0.10 "$(link_local eth0.10)%eth0.10"
}

# entries GID: prints the number of entries of the device's GID table that have this GID.
entries() { grep -lxiF "$1" "/sys/class/infiniband/$DEV1/ports/1/gids/"* | wc -l; }

# whole ADDRESS: prints an IPv6 address with all its digits, as sysfs shows GIDs.
whole() { python3 -c 'import ipaddress, sys; print(ipaddress.ip_address(sys.argv[1]).exploded)' "$1"; }

# The VLAN device has the MAC address of eth0, and so the same link-local address.
has_both() { [[ $(entries "$(whole "$(link_local eth0.10)")") -ge 2 ]]; }

# Adds a second link to host 1, on eth1. For each device's address there is a neighbour entry, with
# a MAC address that no host has, on the other device's network device: ib_core would find it if it
# looked the address up there.
second_link() {
	ip -n h1 link add eth1 type veth peer name eth1p netns h1 &&
		ip -n h1 addr add 10.88.0.1/24 dev eth1 && ip -n h1 link set eth1 up && ip -n h1 link set eth1p up &&
		in1 rdma link add rrxeB type rrxe netdev eth1 &&
		wait_for 20 grep -q ACTIVE /sys/class/infiniband/rrxeB/ports/1/state &&
		ip -n h1 neigh replace 10.88.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent &&
		ip -n h1 neigh replace $HOST1_V4 lladdr 02:00:00:00:00:02 dev eth1 nud permanent
}

begin() {
	local index target
	index=$(gid_index rrxeB 10.88.0.1) && target=$(gid_index "$DEV1" $HOST1_V4) || return
	target=$(<"/sys/class/infiniband/$DEV1/ports/1/gids/$target")
	RECEIVED=$(counter rcvd_pkts)
	ip netns exec h1 python3 "$HERE/mads-own.py" rrxeB "$index" "$target" &
	SENDER=$!
}

# send KIND RATE: forges datagrams from a neighbour whose MAC address host 1 has learned, until
# `end`.
send() {
	python3 "$HERE/mads.py" "$1" "$2" --source 10.77.0.150 --announce &
	SENDER=$!
}

end() { terminate $SENDER; }

flows() { [[ $(counter rcvd_pkts) -gt $((RECEIVED + 300)) ]]; }

# ib_mad logs this line when it responds to a datagram of a device whose MAD agent it has freed.
unanswered() { ! kernel_said "Unable to find port agent"; }

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2

check "a neighbour that answers ARP no more asks for connections" \
	python3 "$HERE/mads.py" connection 0 --seconds 8 --source 10.77.0.150 --announce
check "connections are set up after that" rping_connects 20

check "datagrams that get no answer" send answer 50
sleep 3
check "connections are set up beside datagrams without answer" rping_connects 20
check "no more of these" end

in1 ip route add 10.77.0.0/24 via $HOST2_V4 dev eth0 table 100
in1 ip rule add pref 10 ipproto udp dport 4791 lookup 100
check "a route for RoCE only: neighbours that don't exist ask for connections" \
	python3 "$HERE/mads.py" connection 0 --count $COUNT
check "a route for RoCE only: connections are set up" rping_connects 20
in1 ip rule del pref 10

check "a VLAN with the link-local address of the network device below" vlans_up
check "the address is in the table twice" wait_for 20 has_both
check "a neighbour on the VLAN asks for connections" \
	python3 "$HERE/mads.py" connection 0 --count $COUNT --source fe80::bad --target "$(link_local eth0.10)" --device eth0.10
check "connections are set up beside the VLAN" rping_connects 20

check "a second link on host 1" second_link
for ((round = 1; round <= ROUNDS; round++)); do
	check "round $round: datagrams of this host" begin
	check "round $round: they come" wait_for 20 flows
	check "round $round: the link goes meanwhile" patiently 20 ip netns exec h1 rdma link del "$DEV1"
	check "round $round: no more are sent" end
	check "round $round: the link again" link_add 1
done
check "ib_core answered none of a device that was gone" unanswered
