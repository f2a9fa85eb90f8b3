#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: append=ipv6.disable=1 timeout=200
# Tests the driver on a kernel without IPv6 (kernel parameter `ipv6.disable=1`). ib_core still gives
# each port a link-local GID. The driver sends no packet from that GID, and IPv4 works. Two hosts
# are connected by a veth pair.
source "$(dirname "$0")/../lib/guest.sh"

hosts_up_ipv4() {
	ip netns add h1 && ip netns add h2 && ip link add eth0 netns h1 type veth peer name eth0 netns h2 || return
	for host in 1 2; do
		ip -n h$host link set lo up
		ip -n h$host addr add 10.77.0.$host/24 dev eth0
		ip -n h$host link set eth0 up
	done
	wait_for 20 in1 ping -q -c 1 -W 5 $HOST2_V4 >/dev/null
}
# Succeeds if the first GID of each port is a link-local one: that of the network device's MAC
# address.
first_gids_are_link_local() {
	[[ $(<"/sys/class/infiniband/$DEV1/ports/1/gids/0") == fe80:* &&
		$(<"/sys/class/infiniband/$DEV2/ports/1/gids/0") == fe80:* ]]
}
pingpong_from_link_local_fails() {
	local text
	text=$(run_server_and_client ibv_rc_pingpong -n 10 -d "$DEV2" -g 0 -- ibv_rc_pingpong -n 10 -d "$DEV1" -g 0 $HOST2_V4) && return 1
	[[ $text == *"Failed to modify QP to RTR"* ]] || { echo "$text"; return 1; }
}

PROGRAM_SECONDS=10
check "the kernel has no IPv6" test ! -e /proc/net/if_inet6
check "two hosts" hosts_up_ipv4
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "RC pingpong over IPv4" pingpong -n 50
check "UD pingpong over IPv4" pingpong -T ud -s 1000 -n 50
check "the first GID of each port is a link-local one" first_gids_are_link_local
check "an RC QP with a link-local GID fails to go to RTR" pingpong_from_link_local_fails
python3 "$(dirname "$0")/no_ipv6.py" "$DEV1" 0 || fail "no_ipv6.py exits with status 0" "status $?"
check "RC pingpong over IPv4 after the use of link-local GIDs" pingpong -n 50
check "link on host 1 is deleted" link_del 1
check "link on host 2 is deleted" link_del 2
