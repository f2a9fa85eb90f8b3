#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Tests the limits on the memory of received packets that wait for parked QPs. A QP is parked while
# one of its receives waits for a page fault. Tests also that other users' QPs still receive packets
# (inbox.py). Host 1 has the only link, over a veth pair to host 2.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
python3 "$(dirname "$0")/inbox.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
	fail "inbox.py exits with status 0" "status $?"
