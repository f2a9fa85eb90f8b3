#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=300
# Tests all operations that work between rrxe and the C driver (rdma_rxe), over IPv4 and IPv6,
# between two hosts, which a veth pair connects: rrxe to rrxe, and each driver as the requester of
# the other. rrxe-check compares the data.
source "$(dirname "$0")/../lib/guest.sh"

# Host 2 joins the multicast groups of rrxe-check. The C driver does not join groups for its
# processes.
join() {
	local n
	for n in 1 2; do
		ip -n h2 addr add 239.77.1.$n/32 dev eth0 autojoin &&
			ip -n h2 addr add ff0e::770$n/128 dev eth0 autojoin nodad || return
	done
}

check "two hosts" hosts_up 4200
for types in "rrxe rrxe" "rxe rrxe" "rrxe rxe"; do
	read -r first second <<<"$types"
	check "link of $first on host 1" link_add 1 "$first"
	check "link of $second on host 2" link_add 2 "$second"
	[[ $second == rrxe ]] || check "host 2 joins the multicast groups" join
	for family in v4 v6; do
		rrxe-check "$DEV1" "$DEV2" $family matrix || fail "rrxe-check exits with status 0" "status $?"
	done
	link_del 1
	link_del 2
done
