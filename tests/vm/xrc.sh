#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=120
# Extended reliable connections, by raw commands: stock librxe has none.
source "$(dirname "$0")/lib.sh"
PROGRAM_SECONDS=60
check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
rrxe-check "$DEV1" "$DEV2" v4 xrc || fail "rrxe-check ends well" "status $?"
rrxe-check "$DEV1" "$DEV1" v6 xrc || fail "rrxe-check ends well" "status $?"
