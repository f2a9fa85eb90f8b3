#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=120
# Tests memory windows by rrxe-check: bounds, access rights, keys and lifetimes, between devices of
# two hosts, which a veth pair connects, and between QPs of one device.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
rrxe-check "$DEV1" "$DEV2" v4 windows || fail "rrxe-check exits with status 0" "status $?"
rrxe-check "$DEV1" "$DEV1" v6 windows || fail "rrxe-check exits with status 0" "status $?"
