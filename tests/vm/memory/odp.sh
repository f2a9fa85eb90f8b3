#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=120
# vm-debug: part
# Runs the tests of on-demand paging, with explicit and implicit ODP regions. Host 1 (a network
# namespace) has the only link. QPs of its device are connected to each other.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "8 huge pages" wait_for 20 huge_pages
python3 "$(dirname "$0")/odp.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
	fail "odp.py exits with status 0" "status $?"
echo 0 >/proc/sys/vm/nr_hugepages
python3 "$(dirname "$0")/first_notifier.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
	fail "first_notifier.py exits with status 0" "status $?"
