#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=300
# Tests six programs of perftest and ibv_rc_pingpong, over IPv4 and IPv6, between two hosts, which a
# veth pair connects.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
for family in "" 6; do
	check "pingpong IPv${family:-4}" "pingpong$family" -n 200
	check "pingpong with events IPv${family:-4}" "pingpong$family" -n 200 -e
	for program in ib_send_bw ib_write_bw ib_read_bw ib_send_lat ib_write_lat ib_read_lat; do
		check "$program IPv${family:-4}" "perftest$family" $program -n 100
	done
done
check "ib_send_bw with events" perftest ib_send_bw -e -n 200
check "ib_send_bw in both directions" perftest ib_send_bw -b -n 100
check "ib_write_bw with 8 QPs" perftest ib_write_bw -q 8 -n 50
check "ib_read_bw of 1 MiB" perftest ib_read_bw -s 1048576 -n 20
check "ib_send_lat inline" perftest ib_send_lat -I 64 -n 100
