#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=240 append=init_on_alloc=0+slub_debug=FZP
# Structures that the kernel copies to processes and to netlink messages (objects.py). The kernel
# fills new and freed slab objects with a pattern. Topology: a device on one of two hosts.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
python3 "$(dirname "$0")/objects.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
	fail "objects.py exits with status 0" "status $?"
