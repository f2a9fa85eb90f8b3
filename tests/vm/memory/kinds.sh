#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=240
# Runs the tests of regions over every kind of memory that a process can map. Host 1 (a network
# namespace) has the only link. QPs of its device are connected to each other.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "at least 4 huge pages" \
	sh -c 'echo 8 >/proc/sys/vm/nr_hugepages && test "$(cat /proc/sys/vm/nr_hugepages)" -ge 4'
python3 "$(dirname "$0")/kinds.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
	fail "kinds.py exits with status 0" "status $?"
echo 0 >/proc/sys/vm/nr_hugepages
