#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Captures packets of C rdma_rxe for the test vectors. Runs in the virtual machine. Two network
# namespaces are connected by a veth pair and have an rdma_rxe device each. traffic.py makes each
# operation between them. The packets at host1 are written to standard output, as a pcap file in
# base64.
#
# usage: RRXE_MODULE=none tools/rrxe vm tests/vectors/traffic.sh | tests/vectors/capture.py >rxe.txt
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
{
	modprobe rdma_rxe
	for host in 1 2; do
		ip netns add "host$host"
	done
	ip link add veth1 netns host1 type veth peer veth2 netns host2
	for host in 1 2; do
		in_host=(ip netns exec "host$host")
		"${in_host[@]}" ip addr add "192.0.2.$host/24" dev "veth$host"
		"${in_host[@]}" ip addr add "2001:db8::$host/64" dev "veth$host" nodad
		"${in_host[@]}" ip link set "veth$host" up
	done
	for host in 1 2; do
		ip netns exec "host$host" rdma link add "rxe$host" type rxe netdev "veth$host"
	done
	ip netns exec host1 tcpdump -Z root -i veth1 -U -w /tmp/rxe.pcap udp port 4791 &
	tcpdump=$!
	sleep 2
	python3 "$here/traffic.py"
	sleep 1
	kill $tcpdump
	wait $tcpdump || true
} >&2
echo "pcap of C rdma_rxe in $(uname -r):"
base64 /tmp/rxe.pcap
