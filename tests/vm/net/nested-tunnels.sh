#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=300
# Tests that the kernel stack suffices when a QP's packet passes several nested network devices.
#
# Hosts 1 and 2 are network namespaces. The administrator of host 1 redirects its RoCEv2 packets (tc
# mirred) over three dummy devices to the innermost of three nested VXLAN tunnels. Each level of
# this recursion takes stack, on top of the stack frames of the sender. Here the sender is a softirq
# of host 1: host 2 issues RDMA READs, and the softirq sends the responses. A stack overflow shows
# as a kernel splat, which guest.sh reports.
source "$(dirname "$0")/../lib/guest.sh"
readonly PORT=4791

# add_tunnel HOST ID LOCAL REMOTE: creates the VXLAN device vxID from address LOCAL to REMOTE.
add_tunnel() {
	ip -n "h$1" link add "vx$2" mtu 8000 type vxlan id "$2" dstport $((5000 + $2)) \
		local "$3" remote "$4"
}
# add_nested_tunnels HOST OTHER: creates three nested tunnels to host OTHER: vx1 over vx2 over vx3
# over eth0.
add_nested_tunnels() {
	local host=$1 other=$2 id
	add_tunnel "$host" 3 10.77.0.$host 10.77.0.$other &&
		add_tunnel "$host" 2 10.83.0.$host 10.83.0.$other &&
		add_tunnel "$host" 1 10.82.0.$host 10.82.0.$other || return
	for id in 3 2 1; do
		ip -n "h$host" addr add 10.8$id.0.$host/24 dev vx$id && ip -n "h$host" link set vx$id up || return
	done
}
# Redirects RoCEv2 packets that leave host 1 through eth0: over three dummy devices to vx1. The
# tunnels' own packets have other UDP ports, so they leave through eth0.
redirect_to_tunnels() {
	local from=eth0 to
	for to in dummy1 dummy2 dummy3; do
		ip -n h1 link add $to mtu 8000 type dummy && ip -n h1 link set $to up || return
	done
	for to in dummy1 dummy2 dummy3 vx1; do
		in1 tc qdisc add dev $from clsact &&
			in1 tc filter add dev $from egress protocol ip flower ip_proto udp dst_port $PORT \
				action mirred egress redirect dev $to || return
		from=$to
	done
}
tx_packets() { in1 cat "/sys/class/net/$1/statistics/tx_packets"; }

check "the module loads with softirq_percent=100" modprobe rrxe softirq_percent=100
check "two hosts" hosts_up 9000
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "a pingpong completes before the redirection" _pingpong $HOST1_V4 $HOST2_V4 -n 10
check "host 1 has three nested VXLAN tunnels" add_nested_tunnels 1 2
check "host 2 has three nested VXLAN tunnels" add_nested_tunnels 2 1
check "ping reaches host 2 through the nested tunnels" wait_for 20 in1 ping -q -c 1 -W 2 10.81.0.2
check "RoCEv2 packets of host 1 are redirected to the nested tunnels" redirect_to_tunnels
# Host 2 issues READs, and a softirq of host 1 responds. Host 2 drops the responses, because the
# redirected frames have the MAC address of its eth0 and arrive through its vx1. So the client fails
# after its retries.
in1 ib_read_lat -d "$DEV1" -x "$(gid_index "$DEV1" $HOST1_V4)" -n 20 -s 64 -u 10 >/dev/null 2>&1 &
reader=$!
before=$(tx_packets vx1)
wait_for 20 in1 sh -c 'ss -Hltn | grep -q ":18515 "'
in2 timeout 20 ib_read_lat -d "$DEV2" -x "$(gid_index "$DEV2" $HOST2_V4)" -n 20 -s 64 -u 10 $HOST1_V4 >/dev/null 2>&1
kill $reader 2>/dev/null
wait $reader
# The client repeats its first READ, and host 1 responds to each repetition.
check "READ responses of host 1 leave through the nested tunnels" test "$(tx_packets vx1)" -ge $((before + 3))
note "$(($(tx_packets vx1) - before)) packets through vx1, $(tx_packets eth0) through eth0"
