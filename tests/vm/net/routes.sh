#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=400
# Tests the route and priority of packets: VLANs and their priorities, mqprio queues, added
# addresses, forged path MTUs, and destinations on the same host. Two hosts are connected by a veth
# pair with two queues.
source "$(dirname "$0")/../lib/guest.sh"

# pingpong_between SERVER-HOST DEVICE ADDRESS CLIENT-HOST DEVICE ADDRESS [ARGUMENT...]: runs
# ibv_rc_pingpong between two links, or over one link. Both links may be on the same host.
pingpong_between() {
	local options=("${@:7}")
	local server=(timeout -k 5 "$((60 * LIMIT_FACTOR))" ip netns exec "h$1" ibv_rc_pingpong -c -n 50 -d "$2" "${options[@]}")
	local client=(patiently 60 ip netns exec "h$4" ibv_rc_pingpong -c -n 50 -d "$5" "${options[@]}")
	local server_address=10.77.0.$1
	wait_for 10 gid_index "$2" "$3" && wait_for 10 gid_index "$5" "$6" || return
	"${server[@]}" -g "$(gid_index "$2" "$3")" 2>&1 &
	wait_for 20 ip netns exec "h$1" sh -c 'ss -Hltn | grep -q ":18515 "'
	"${client[@]}" -g "$(gid_index "$5" "$6")" "$server_address" && wait $!
}

check "two hosts" hosts_up 4200 2
check "link on host 1" link_add 1
check "link on host 2" link_add 2

for host in 1 2; do
	ip -n h$host link add link eth0 name vlan5 type vlan id 5
	ip -n h$host addr add 10.79.0.$host/24 dev vlan5
	ip -n h$host link set vlan5 up
done
check "pingpong over a VLAN's addresses" pingpong_between 2 "$DEV2" 10.79.0.2 1 "$DEV1" 10.79.0.1

# The priority of a QP's packets (`skb->priority`) is its service level, or 6 if the service level
# is higher. The VLAN maps this priority to the priority in the VLAN tag.
in1 ip link set vlan5 type vlan egress-qos-map 3:5 6:1
# packets_are_tagged PRIORITY COMMAND...: succeeds if RoCE packets that host 1 sends while COMMAND
# runs have this priority in their VLAN tags.
packets_are_tagged() {
	local priority=$1 dump
	shift
	rm -f /tmp/tags /tmp/tcpdump
	in2 tcpdump -lnnei eth0 -c 20 "vlan 5 and src host 10.79.0.1 and udp port 4791" >/tmp/tags 2>/tmp/tcpdump &
	dump=$!
	wait_for 20 grep -q listening /tmp/tcpdump
	"$@" || return
	wait_for 20 bash -c '[[ $(wc -l </tmp/tags) -ge 20 ]]'
	kill $dump 2>/dev/null
	wait $dump
	[[ $(grep -c "vlan 5, p $priority, ethertype IPv4" /tmp/tags) -ge 20 ]] || {
		cat /tmp/tags /tmp/tcpdump
		return 1
	}
}
for words in "0 0" "3 5" "7 1"; do
	read -r level priority <<<"$words"
	check "service level $level is priority $priority in the VLAN" packets_are_tagged "$priority" \
		pingpong_between 2 "$DEV2" 10.79.0.2 1 "$DEV1" 10.79.0.1 -l "$level"
done

# The priority also selects a traffic class of mqprio, which has a transmit queue of its own.
check "eth0 of host 1 has an mqprio qdisc with two traffic classes" \
	in1 tc qdisc add dev eth0 root handle 8: mqprio num_tc 2 map 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 \
	queues 1@0 1@1 hw 0
# queue_packets QUEUE: prints the number of packets that left through this queue.
queue_packets() {
	in1 tc -s class show dev eth0 |
		sed -n "/class mqprio 8:$1 /,/Sent/s/.* bytes \\([0-9]*\\) pkt.*/\\1/p"
}
for words in "0 1 2" "7 2 1"; do
	read -r level by other <<<"$words"
	before=("$(queue_packets "$by")" "$(queue_packets "$other")")
	check "a pingpong of service level $level" pingpong_between 2 "$DEV2" $HOST2_V4 1 "$DEV1" $HOST1_V4 -l "$level"
	sent=$(($(queue_packets "$by") - before[0])) others=$(($(queue_packets "$other") - before[1]))
	note "queue $by sent $sent packets, queue $other $others"
	# ARP packets, and those of the TCP connection between the programs, have priority 0.
	check "the pingpong of service level $level leaves through queue $by" \
		test "$sent" -ge 50 -a "$others" -lt 50
done
in1 tc qdisc del dev eth0 root

# The driver finds routes for addresses that were added after the link.
ip -n h1 addr add 10.78.0.1/24 dev eth0
ip -n h2 addr add 10.78.0.2/24 dev eth0
check "pingpong over a second address" pingpong_between 2 "$DEV2" 10.78.0.2 1 "$DEV1" 10.78.0.1

# Host 2 sends forged ICMP messages with the source address of a third host. They report a small
# path MTU. The driver obeys only the MTU of the network device.
mac_address=$(in1 cat /sys/class/net/eth0/address)
for words in "10.77.0.99 $HOST1_V4 $HOST2_V4 576" "${HOST1_V6%:*}:99 $HOST1_V6 $HOST2_V6 1280"; do
	read -r stranger victim peer mtu <<<"$words"
	check "a forged ICMP message of a third address reports a path MTU to $peer" \
		python3 "$(dirname "$0")/path_mtu.py" h2 eth0 "$mac_address" "$stranger" "$victim" "$peer" "$mtu"
	check "the IP layer uses the forged path MTU to $peer" wait_for 10 path_mtu_is "$peer" "$mtu"
	check "a pingpong to $peer ignores the forged path MTU" \
		_pingpong "$victim" "$peer" -n 50 -s 16384 -m 4096
done
# If the reassembled buffer has a socket, the debug kernel reports a wrong count of the socket's
# bytes.
python3 "$(dirname "$0")/reassembled.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" || fail "reassembled.py exits with status 0" "status $?"

# Packets between QPs of one host pass no network device. The links are on dummy devices. A dummy
# device discards the packets that it should transmit, and counts them.
for end in 0 1; do
	ip -n h1 link add dummy$end type dummy
	ip -n h1 addr add 10.80.$end.1/24 dev dummy$end
	ip -n h1 link set dummy$end up
	in1 rdma link add local$end type rrxe netdev dummy$end
done
# no_packets_leave COMMAND...: succeeds if fewer than 50 packets leave through network devices of
# host 1 while COMMAND runs.
no_packets_leave() {
	local before after
	before=$(tx_packets)
	"$@" || return
	after=$(tx_packets)
	[[ $((after - before)) -lt 50 ]]
}
tx_packets() { in1 bash -c 'echo $(($(cat /sys/class/net/*/statistics/tx_packets | paste -sd+)))'; }
check "a pingpong on one device sends no packets through network devices" \
	no_packets_leave pingpong_between 1 local0 10.80.0.1 1 local0 10.80.0.1
check "a pingpong between two devices of a host sends no packets through network devices" \
	no_packets_leave pingpong_between 1 local1 10.80.1.1 1 local0 10.80.0.1
