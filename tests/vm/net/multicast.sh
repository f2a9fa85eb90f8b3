#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=300
# Tests multicast groups: the members that receive a datagram, the datagrams that the driver drops,
# the groups and MAC addresses that a host's network device joins and leaves, and rdma_rxe (the C
# driver) as the peer. Two hosts are connected by a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
# The groups of `rrxe-check hold-group`, and their MAC addresses (RFC 1112, RFC 2464).
readonly GROUP_V4=239.77.1.9 MAC_V4=01:00:5e:4d:01:09 GROUP_V6=ff0e::7709 MAC_V6=33:33:00:00:77:09

run_check() { rrxe-check "$@" || fail "rrxe-check exits with status 0" "status $?"; }

# in_group FAMILY: attaches a QP of host 2 to the group, until `end_holder`.
in_group() { start_holder rrxe-check "$DEV1" "$DEV2" "$1" hold-group; }

joined() { ip -n h2 maddr show dev eth0 | grep -q "$1\$"; }
left() { ! joined "$1"; }

# If the host of the guest preempts a virtual CPU that copies a packet, the time counts as CPU time
# of softirqs. With a lower softirq_percent, the driver would then drop datagrams to groups for a
# while.
check "the module loads with softirq_percent=100" modprobe rrxe softirq_percent=100
check "two hosts" hosts_up 1500
check "link on host 1" link_add 1 rrxe
check "link on host 2" link_add 2 rrxe
for family in v4 v6; do
	group=GROUP_${family^^} mac=MAC_${family^^}
	run_check "$DEV1" "$DEV2" $family group group-sender
	run_check "$DEV1" "$DEV1" $family group group-sender
	check "a QP attaches to an IP$family group" in_group $family
	check "the host has joined the IP$family group" joined "${!group}"
	check "the network device accepts the MAC address of the IP$family group" joined "${!mac}"
	check "the QP detaches from the IP$family group" end_holder
	check "the host has left the IP$family group" left "${!group}"
	check "the network device no longer accepts the MAC address of the IP$family group" left "${!mac}"
	in_group $family
	kill -9 $HOLDER
	end_holder 2>/dev/null
	check "the host leaves the IP$family group when the process is killed" wait_for 10 left "${!group}"
done

# A VRF replaces the network device (`skb->dev`) of packets that its ports receive, so some of the
# following tests run once outside of a VRF and once inside.
move_into_vrf() {
	ip -n h1 link add vrf0 type vrf table 100 && ip -n h1 link set vrf0 up &&
		in1 sysctl -qw net.ipv4.udp_l3mdev_accept=1 && ip -n h1 link set eth0 master vrf0 || return
	# The kernel removes eth0's IPv6 addresses when eth0 joins or leaves a VRF.
	ip -n h1 addr replace $HOST1_V6/64 dev eth0 nodad && wait_for 20 dad_finished 1
}
move_out_of_vrf() {
	ip -n h1 link set eth0 nomaster
	ip -n h1 link del vrf0
	ip -n h1 addr replace $HOST1_V6/64 dev eth0 nodad
}
link_local() { ip -n h1 -6 -o addr show dev eth0 scope link | sed 's/.*inet6 \([^/]*\).*/\1/'; }
check_groups() {
	local address indexes=()
	for address in $HOST1_V4 $HOST1_V6 "$(link_local)"; do
		wait_for 10 gid_index "$DEV1" "$address"
		indexes+=("$(gid_index "$DEV1" "$address")")
	done
	python3 "$(dirname "$0")/group.py" "$DEV1" "${indexes[@]}" "$(link_local)" "$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" ||
		fail "group.py exits with status 0" "status $?"
}
# Host 1 receives its own packets over IPv6, in the buffers that it sent.
check "host 2 sends back RoCEv2 packets over IPv6" redirect 2 ingress ipv6 eth0
check_groups
check "eth0 of host 1 is in a VRF" move_into_vrf
check_groups
move_out_of_vrf
check "host 2 stops sending packets back" in2 tc qdisc del dev eth0 clsact

check_foreign_sources() {
	wait_for 10 gid_index "$DEV1" $HOST1_V6
	python3 "$(dirname "$0")/foreign.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" ||
		fail "foreign.py exits with status 0" "status $?"
}
check_foreign_sources
check "eth0 of host 1 is in a VRF again" move_into_vrf
check_foreign_sources
move_out_of_vrf

# Gives host 2 an ipvlan device on top of dummy0 of host 1. In mode l3 the IP layer of host 1 sends
# the packets that host 2 sends through the ipvlan device.
add_ipvlan() {
	ip -n h1 link add dummy0 type dummy && ip -n h1 addr add fd78::1/64 dev dummy0 nodad &&
		ip -n h1 link set dummy0 up && in1 rdma link add other type rrxe netdev dummy0 &&
		wait_for 10 grep -q ACTIVE /sys/class/infiniband/other/ports/1/state &&
		ip -n h1 link add link dummy0 name ipv0 netns h2 type ipvlan mode l3 &&
		ip -n h2 addr add fd78::2/64 dev ipv0 nodad && ip -n h2 link set ipv0 up &&
		in2 tc qdisc add dev ipv0 root pfifo limit 1000
}
check "host 2 has an ipvlan device on top of dummy0 of host 1" add_ipvlan
python3 "$(dirname "$0")/ipvlan.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" other ||
	fail "ipvlan.py exits with status 0" "status $?"
check "host 2 stops changing datagrams" in2 tc qdisc del dev eth0 clsact
in1 rdma link del other
ip -n h1 link del dummy0

link_del 1
check "C driver on host 1" link_add 1 rxe
run_check "$DEV1" "$DEV2" v4 group
run_check "$DEV1" "$DEV2" v6 group

# From here on both links are of rrxe: the tests below remove its module and the network devices.
link_del 1
check "link on host 1 again" link_add 1 rrxe
check "a QP attaches to the IPv4 group before rmmod" in_group v4
check "the host has joined the IPv4 group before rmmod" joined "$GROUP_V4"
check "rmmod returns while a QP is attached" rmmod rrxe
check "the host has left the IPv4 group after rmmod" left "$GROUP_V4"
# The program may fail to detach, because the device is gone.
end_holder || true
check "the module is loaded again" modprobe rrxe
check "link on host 1, with the module loaded again" link_add 1 rrxe
check "link on host 2, with the module loaded again" link_add 2 rrxe
check "a QP attaches to the IPv4 group before its network device is deleted" in_group v4
check "the veth pair is deleted while a QP is attached" patiently 20 ip -n h2 link del eth0
DEV1='' DEV2=''
check "the RDMA devices of both hosts are removed with their network devices" \
	wait_for 20 bash -c '! rdma link show | grep -q rxe'
# The program may fail to detach, because the device is gone.
end_holder || true
