#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# Management datagrams from senders whose MAC address ib_core cannot find for a response: the
# neighbour is known on receipt but answers ARP no more, or ib_core's look-up takes another route or
# network device than RoCE packets do. If rrxe did not give ib_core an address of this host in place
# of the sender's (`gsi.rs`), ib_core would sleep in each look-up, in work items that set up
# connections. Tests that connections are still set up meanwhile, and that a device can be removed
# while it gets datagrams. Host 2 forges datagrams (mads.py) over a veth pair; local_mads.py sends
# others from a second device of host 1.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=60
HERE=$(dirname "$0")
readonly HERE COUNT=3000 ROUNDS=3

counter() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/$1")"; }

link_local() { ip -n h1 -6 -o addr show dev "$1" scope link | awk '{ sub("/.*", "", $4); print $4 }'; }

# Adds VLAN 10 to both hosts. Host 2 has the address fe80::bad on it.
vlans_up() {
	local host
	modprobe 8021q
	for host in 1 2; do
		ip -n h$host link add link eth0 name eth0.10 type vlan id 10 && ip -n h$host link set eth0.10 up || return
	done
	ip -n h2 addr add fe80::bad/64 dev eth0.10 nodad &&
		wait_for 20 in2 ping -q -c 1 -W 5 -I fe80::bad%eth0.10 "$(link_local eth0.10)%eth0.10"
}

# count_gids GID: prints the number of entries of the device's GID table that have this GID.
count_gids() { grep -lxiF "$1" "/sys/class/infiniband/$DEV1/ports/1/gids/"* | wc -l; }

# exploded_address ADDRESS: prints an IPv6 address with all its digits, as sysfs shows GIDs.
exploded_address() {
	python3 -c 'import ipaddress, sys; print(ipaddress.ip_address(sys.argv[1]).exploded)' "$1"
}

# The VLAN device has the MAC address of eth0, and so the same link-local address.
has_both_gids() { [[ $(count_gids "$(exploded_address "$(link_local eth0.10)")") -ge 2 ]]; }

# Adds a second link to host 1, on eth1. For each device's address there is a neighbour entry, with
# a MAC address that no host has, on the other device's network device: ib_core would find this
# entry if it looked the address up on that network device.
second_link() {
	ip -n h1 link add eth1 type veth peer name eth1p netns h1 &&
		ip -n h1 addr add 10.88.0.1/24 dev eth1 && ip -n h1 link set eth1 up && ip -n h1 link set eth1p up &&
		in1 rdma link add rrxeB type rrxe netdev eth1 &&
		wait_for 20 grep -q ACTIVE /sys/class/infiniband/rrxeB/ports/1/state &&
		ip -n h1 neigh replace 10.88.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent &&
		ip -n h1 neigh replace $HOST1_V4 lladdr 02:00:00:00:00:02 dev eth1 nud permanent
}

# Sends management datagrams from host 1's second device to its first one, until `stop_sender`.
start_own_mads() {
	local index target
	index=$(gid_index rrxeB 10.88.0.1) && target=$(gid_index "$DEV1" $HOST1_V4) || return
	target=$(<"/sys/class/infiniband/$DEV1/ports/1/gids/$target")
	RECEIVED=$(counter rcvd_pkts)
	ip netns exec h1 python3 "$HERE/local_mads.py" rrxeB "$index" "$target" &
	SENDER=$!
}

# start_forger KIND RATE: forges datagrams from a neighbour whose MAC address host 1 has learned,
# until `stop_sender`.
start_forger() {
	python3 "$HERE/mads.py" "$1" "$2" --source 10.77.0.150 --announce &
	SENDER=$!
}

stop_sender() { terminate $SENDER; }

is_receiving() { [[ $(counter rcvd_pkts) -gt $((RECEIVED + 300)) ]]; }

# ib_mad logs this line when it responds to a datagram of a device whose MAD agent it has freed.
all_agents_found() { ! kernel_said "Unable to find port agent"; }

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2

check "a neighbour that stopped answering ARP sends connection requests" \
	python3 "$HERE/mads.py" connection 0 --seconds 8 --source 10.77.0.150 --announce
check "connections are set up after the requests of that neighbour" rping_connects 20

check "a neighbour starts to send MAD responses without a request" start_forger answer 50
sleep 3
check "connections are set up while MAD responses without a request come" rping_connects 20
check "the neighbour stops sending MAD responses" stop_sender

in1 ip route add 10.77.0.0/24 via $HOST2_V4 dev eth0 table 100
in1 ip rule add pref 10 ipproto udp dport 4791 lookup 100
check "with a route for RoCE only, nonexistent neighbours send connection requests" \
	python3 "$HERE/mads.py" connection 0 --count $COUNT
check "with a route for RoCE only, other connections are set up" rping_connects 20
in1 ip rule del pref 10

check "a VLAN has the link-local address of its lower network device" vlans_up
check "the GID table has that link-local address twice" wait_for 20 has_both_gids
check "a neighbour on the VLAN sends connection requests" \
	python3 "$HERE/mads.py" connection 0 --count $COUNT --source fe80::bad --target "$(link_local eth0.10)" --device eth0.10
check "other connections are set up after the requests from the VLAN" rping_connects 20

check "a second link is added to host 1" second_link
for ((round = 1; round <= ROUNDS; round++)); do
	check "round $round: host 1 starts to send MADs to its own device" start_own_mads
	check "round $round: the device receives the MADs of its own host" wait_for 20 is_receiving
	check "round $round: link del returns while MADs come" \
		patiently 20 ip netns exec h1 rdma link del "$DEV1"
	check "round $round: host 1 stops sending MADs" stop_sender
	check "round $round: the link is added again" link_add 1
done
check "ib_mad responds to no MAD of a removed device" all_agents_found
