#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=300
# Packets that IPsec makes longer than the network device's MTU, or than what a forged message says of the path, leave in
# fragments. The kernel's IPv6 dereferences a null pointer for a packet whose sender names a socket and which has none
# (xfrm_local_error(), net/xfrm/xfrm_output.c), if IPsec in tunnel mode drops it for its length.
source "$(dirname "$0")/lib.sh"
HERE=$(dirname "$0")
# Packets of 4,096 bytes and their headers fit, and with those of ESP they do not.
readonly MTU=4200

unprotected() { for host in 1 2; do ip -n h$host xfrm policy flush && ip -n h$host xfrm state flush || return; done; }
protected() { in1 ip -s xfrm state | grep -q "(bytes), [1-9][0-9]*(packets)"; }

check "two hosts" hosts_up $MTU
check "link on host 1" link_add 1
check "link on host 2" link_add 2
hardware=$(in1 cat /sys/class/net/eth0/address)
families=("1 32 10.77.0. 576" "2 128 fd77:: 1280")
for words in "${families[@]}"; do
	read -r number bits prefix mtu <<<"$words"
	for mode in transport tunnel; do
		check "IPsec of $prefix, mode $mode" ipsec $mode "$number" "$bits" "$prefix"
		check "long packets pass" _pingpong "${prefix}1" "${prefix}2" -n 30 -s 16384 -m 4096
		check "IPsec has protected them" protected
		check "a stranger narrows the path" \
			python3 "$HERE/path_mtu.py" h2 eth0 "$hardware" "${prefix}99" "${prefix}1" "${prefix}2" "$mtu"
		check "the IP layer believes it" wait_for 10 narrow "${prefix}2" "$mtu"
		check "long packets pass all the same" _pingpong "${prefix}1" "${prefix}2" -n 30 -s 16384 -m 4096
		check "without IPsec" unprotected
	done
done
check "link on host 1 goes" link_del 1
check "link on host 2 goes" link_del 2
