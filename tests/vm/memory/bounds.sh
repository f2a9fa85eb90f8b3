#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=300
# Runs the tests of limits to the cost of on-demand regions and QP timers, and of the charging of
# page faults to the process. Host 1 (a network namespace) has the only link. QPs of its device are
# connected to each other.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
for script in bounds.py fault_costs.py; do
	python3 "$(dirname "$0")/$script" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
		fail "$script exits with status 0" "status $?"
done
