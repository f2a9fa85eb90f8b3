#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=200
# Threads of a process that modify a QP at the same time, while QPs are bound to counters by themselves.
source "$(dirname "$0")/../lib/guest.sh"

unbound() { ! rdma -j statistic qp show | grep -q lqpn; }

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "QPs are bound to counters of their processes" rdma statistic qp set link "$DEV1/1" auto pid on
python3 "$(dirname "$0")/racing.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$(gid_index "$DEV1" $HOST1_V6)" ||
	fail "racing.py ends well" "status $?"
check "no counters are left of it" unbound
# ib_core warns if a counter is left, or a GID.
check "the device goes" link_del 1
python3 "$(dirname "$0")/vanishing.py" gone 0 || fail "vanishing.py ends well" "status $?"
