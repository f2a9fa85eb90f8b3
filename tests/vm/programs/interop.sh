#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# vm-arm64: part
# Tests rrxe with the C driver (rdma_rxe) between two hosts, which a veth pair connects. Each driver
# is client and server, over IPv4 and IPv6. rrxe-check compares all data, ibv_rc_pingpong a part.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=120

# both_roles TYPE1 TYPE2: runs the programs with host 1 as the client, on devices of these link
# types.
both_roles() {
	check "link of $1 on host 1" link_add 1 "$1"
	check "link of $2 on host 2" link_add 2 "$2"
	for family in "" 6; do
		check "pingpong $1 to $2 IPv${family:-4}" "pingpong$family" -n "$(scaled_count 200)"
		for program in ib_send_bw ib_write_bw ib_read_bw ib_send_lat; do
			check "$program $1 to $2 IPv${family:-4}" "perftest$family" $program -n "$(scaled_count 100)"
		done
	done
	link_del 1
	link_del 2
}

check "two hosts" hosts_up 4200
both_roles rrxe rxe
both_roles rxe rrxe

check "link of rrxe on host 1, for rrxe-check" link_add 1 rrxe
check "link of rxe on host 2, for rrxe-check" link_add 2 rxe
for family in v4 v6; do
	rrxe-check "$DEV1" "$DEV2" $family transfer || fail "rrxe-check exits with status 0" "status $?"
	rrxe-check "$DEV2" "$DEV1" $family transfer || fail "rrxe-check exits with status 0" "status $?"
done
