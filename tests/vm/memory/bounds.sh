#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=300
# What on-demand regions may cost others, over one device.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
for script in bounds.py fault_costs.py; do
	python3 "$(dirname "$0")/$script" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" || fail "$script exits with status 0" "status $?"
done
