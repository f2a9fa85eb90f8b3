#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=300
# Softirqs that take in datagrams do little else.
source "$(dirname "$0")/lib.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
python3 "$(dirname "$0")/datagrams.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" $HOST1_V4 h2 $HOST2_V4 ||
	fail "datagrams.py ends well" "status $?"
