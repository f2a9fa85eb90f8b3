#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Tests UC and UD QPs of two hosts, which a veth pair connects: by ibv_uc_pingpong, ibv_ud_pingpong
# and perftest, and by rrxe-check, which compares each byte. rrxe transfers to rrxe, also while
# netem loses, duplicates and reorders packets, and to and from the C driver (rdma_rxe).
source "$(dirname "$0")/../lib/guest.sh"

# programs NAME: runs pingpongs, which compare some of their bytes, and perftest between the two
# devices. NAME begins the name of each result.
programs() {
	for family in "" 6; do
		check "$1: UC pingpong IPv${family:-4}" "pingpong$family" -T uc -n "$(scaled_count 100)"
		check "$1: UD pingpong IPv${family:-4}" "pingpong$family" -T ud -s 1024 -n "$(scaled_count 100)"
		check "$1: ib_send_bw UD IPv${family:-4}" "perftest$family" ib_send_bw -c UD -n "$(scaled_count 200)"
	done
	check "$1: ib_send_lat UD" perftest ib_send_lat -c UD -n "$(scaled_count 100)"
	check "$1: ib_send_bw UC" perftest ib_send_bw -c UC -n "$(scaled_count 200)"
	check "$1: ib_write_bw UC" perftest ib_write_bw -c UC -n "$(scaled_count 200)"
}

# compare DEVICE DEVICE FAMILY TOPIC...: runs the topics of rrxe-check.
compare() { rrxe-check "$@" || fail "rrxe-check exits with status 0" "status $?"; }

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1 rrxe
check "link on host 2" link_add 2 rrxe
programs "rrxe to rrxe"
check "UD pingpong with events" pingpong -T ud -s 1024 -n "$(scaled_count 100)" -e
check "ib_send_lat UC" perftest ib_send_lat -c UC -n "$(scaled_count 100)"
netem "loss 10% duplicate 5% reorder 10% delay 1ms"
compare "$DEV1" "$DEV2" v4 loss
compare "$DEV1" "$DEV2" v6 loss
netem_off

link_del 2
check "link of the C driver on host 2" link_add 2 rxe
programs "rrxe to the C driver"
for family in v4 v6; do
	compare "$DEV1" "$DEV2" $family uc ud
	compare "$DEV2" "$DEV1" $family uc ud
done
link_del 1
link_del 2
check "link of the C driver on host 1" link_add 1 rxe
check "link of rrxe on host 2 again" link_add 2 rrxe
check "the C driver to rrxe: UC pingpong" pingpong -T uc -n "$(scaled_count 100)"
check "the C driver to rrxe: UD pingpong" pingpong6 -T ud -s 1024 -n "$(scaled_count 100)"
check "the C driver to rrxe: ib_send_bw UD" perftest ib_send_bw -c UD -n "$(scaled_count 200)"
