#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=200
# Tests messages between QPs of one device: their packets go as trains, whose payload is copied once
# (trains.py). The device is on one of two hosts.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
python3 "$(dirname "$0")/trains.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
	fail "trains.py exits with status 0" "status $?"
