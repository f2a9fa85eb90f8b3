#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=300
# Tests packets of QPs that IPsec makes longer than the MTU: they leave in fragments and arrive.
#
# The limit is the MTU of the network device, or the path MTU of a forged ICMP message. For a packet
# without a socket (`sk_buff.sk`) whose sender passes a socket to the IP layer, the kernel's IPv6
# dereferences a null pointer (xfrm_local_error(), net/xfrm/xfrm_output.c) if IPsec in tunnel mode
# drops the packet for its length. So the driver passes no socket for packets that IPsec protects
# (sender_socket.rs). Two hosts are connected by a veth pair; ESP protects the packets to the RoCE
# port.
source "$(dirname "$0")/../lib/guest.sh"
HERE=$(dirname "$0")
# Bytes. A payload of 4,096 bytes fits with its headers, over IPv4 also with those of ESP in
# transport mode. Over IPv6 the first packet of a WRITE does not fit with those of ESP.
readonly MTU=4200

remove_ipsec() {
	for host in 1 2; do
		ip -n h$host xfrm policy flush && ip -n h$host xfrm state flush || return
	done
}
# Prints the number of IPv4 and IPv6 fragments that host 1 has created.
fragments_created() {
	in1 sh -c 'nstat -asz IpFragCreates Ip6FragCreates' |
		awk '/FragCreates/ { sum += $2 } END { print sum }'
}
# long_messages PREFIX: sends messages of several packets both ways, by rping. Its QPs give up after
# 4 s: 8 timeouts that the kernel's rdma_cm sets. ibv_rc_pingpong gives up after 0.5 s, in which the
# debug kernel does not always encrypt four packets and their acknowledgment.
long_messages() { _rping 60 "${1}1" 2 -S 16384; }
ipsec_has_encrypted() { in1 ip -s xfrm state | grep -q "(bytes), [1-9][0-9]*(packets)"; }

check "two hosts" hosts_up $MTU
check "link on host 1" link_add 1
check "link on host 2" link_add 2
mac_address=$(in1 cat /sys/class/net/eth0/address)
families=("1 32 10.77.0. 576" "2 128 fd77:: 1280")
# under_ipsec MODE FAMILY: tests messages of this address family under IPsec in this mode. FAMILY is
# a line of `families`: SPI, prefix length, address prefix, and path MTU of the forged message.
under_ipsec() {
	local mode=$1 number bits prefix mtu
	read -r number bits prefix mtu <<<"$2"
	check "IPsec of $prefix is configured, mode $mode" ipsec "$mode" "$number" "$bits" "$prefix"
	check "long messages to $prefix arrive, mode $mode" long_messages "$prefix"
	check "IPsec has encrypted packets to $prefix, mode $mode" ipsec_has_encrypted
	check "a forged ICMP message of a third address reports a path MTU to $prefix, mode $mode" \
		python3 "$HERE/path_mtu.py" h2 eth0 "$mac_address" "${prefix}99" "${prefix}1" "${prefix}2" "$mtu"
	check "the IP layer uses the forged path MTU to $prefix, mode $mode" \
		wait_for 10 path_mtu_is "${prefix}2" "$mtu"
	fragments=$(fragments_created)
	check "long messages to $prefix arrive despite the forged path MTU, mode $mode" \
		long_messages "$prefix"
	check "packets to $prefix leave in fragments, mode $mode" \
		test "$(fragments_created)" -gt "$fragments"
	check "IPsec is removed" remove_ipsec
}

for family in "${families[@]}"; do
	for mode in transport tunnel; do under_ipsec $mode "$family"; done
done
# The same with an asynchronous cipher: after the encryption, xfrm goes on with the buffer's socket,
# and these buffers have none, instead of a socket that the sender passes to the IP layer.
check "the kernel instantiates an asynchronous cipher" \
	python3 "$HERE/cipher.py" "pcrypt(rfc4106(gcm(aes)))"
check "the cipher is registered" wait_for 20 grep -q '^driver *: pcrypt(' /proc/crypto
for family in "${families[@]}"; do under_ipsec transport "$family"; done
# While IPsec waits for its keys, and with xfrm_larval_drop=0, xfrm_lookup_route() returns a routing
# entry that queues packets. The driver's lookup fails instead. For IPv6 packets that are longer
# than the forged path MTU, the driver uses a copy of the entry, and the copy of an entry that
# queues packets would oops.
queue_without_keys() { in1 sh -c "echo $((1 - $1)) >/proc/sys/net/core/xfrm_larval_drop"; }
keys_are_requested() { grep -q "proto esp" /tmp/acquired; }
for family in "${families[@]}"; do
	read -r number bits prefix mtu <<<"$family"
	check "IPsec queues packets while it has no keys" queue_without_keys 1
	in1 stdbuf -oL ip xfrm monitor acquire >/tmp/acquired 2>&1 &
	daemon=$!
	check "a policy without keys for $prefix" ip -n h1 xfrm policy add src "${prefix}1/$bits" dst "${prefix}2/$bits" \
		proto udp dport 4791 dir out tmpl src "${prefix}1" dst "${prefix}2" proto esp mode transport
	check "a forged ICMP message of a third address reports a path MTU to $prefix, without keys" \
		python3 "$HERE/path_mtu.py" h2 eth0 "$mac_address" "${prefix}99" "${prefix}1" "${prefix}2" "$mtu"
	check "the IP layer uses the forged path MTU to $prefix, without keys" \
		wait_for 10 path_mtu_is "${prefix}2" "$mtu"
	refuse "packets to $prefix are lost without keys" \
		"retry counter exceeded" _pingpong "${prefix}1" "${prefix}2" -n 1 -s 16384 -m 4096
	check "the kernel requests keys for $prefix" wait_for 10 keys_are_requested
	kill $daemon
	check "IPsec is removed" remove_ipsec
	check "IPsec of $prefix gets its keys" ipsec transport "$number" "$bits" "$prefix"
	check "long messages to $prefix arrive with keys" long_messages "$prefix"
	check "IPsec is removed" remove_ipsec
	check "IPsec queues no packets" queue_without_keys 0
done
check "link on host 1 is deleted" link_del 1
check "link on host 2 is deleted" link_del 2
