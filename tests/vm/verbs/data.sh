#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=400
# vm-arm64: part
# Tests transfers, completion statuses and errnos of verbs by rrxe-check, which compares the data:
# between rrxe devices of two hosts, which a veth pair connects, and between QPs of one device.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=180

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
rrxe-check "$DEV1" "$DEV2" v4 || fail "rrxe-check exits with status 0" "status $?"
rrxe-check "$DEV1" "$DEV2" v6 transfer status uc ud ud-errors || fail "rrxe-check exits with status 0" "status $?"
rrxe-check "$DEV1" "$DEV1" v4 transfer status uc ud ud-errors || fail "rrxe-check exits with status 0" "status $?"
rrxe-check "$DEV1" "$DEV1" v6 transfer ud || fail "rrxe-check exits with status 0" "status $?"
