#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together
# Runs the tests of device memory, with librrxe: access by a peer on the other host, mappings,
# limits, and the end of regions, processes and the device. Each host (a network namespace) has one
# link.
source "$(dirname "$0")/../lib/guest.sh"

# max_dm_size: the size in bytes of the largest piece of device memory that the library reports.
max_dm_size() { python3 -c 'import sys; from pyverbs.device import Context
print(Context(name=sys.argv[1]).query_device_ex().max_dm_size)' "$DEV1"; }

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "librxe reports no device memory" test "$(max_dm_size)" = 0
check "librrxe reports 256 KiB as the largest piece of device memory" \
	test "$(RDMAV_DRIVERS=rrxe max_dm_size)" = 262144
RDMAV_DRIVERS=rrxe python3 "$(dirname "$0")/dm.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" \
	"$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" || fail "dm.py exits with status 0" "status $?"
# The last case of dm.py has deleted this link.
DEV1=
