#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together
# Runs the tests of device memory, with librrxe: access by a peer on the other host, mappings,
# limits, and the end of regions, processes and the device. Each host (a network namespace) has one
# link.
source "$(dirname "$0")/../lib/guest.sh"

# largest: the size in bytes of the largest piece of device memory that the library reports.
largest() { python3 -c 'import sys; from pyverbs.device import Context
print(Context(name=sys.argv[1]).query_device_ex().max_dm_size)' "$DEV1"; }

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "stock librxe is not told of device memory" test "$(largest)" = 0
check "librrxe is" test "$(RDMAV_DRIVERS=rrxe largest)" = 262144
RDMAV_DRIVERS=rrxe python3 "$(dirname "$0")/dm.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" \
	"$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" || fail "dm.py ends well" "status $?"
# The last case of dm.py has deleted this link.
DEV1=
