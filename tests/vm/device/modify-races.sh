#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=200
# Races with ib_core: threads that modify the same QP at the same time, with automatic counters of
# QPs (modify_races.py), and network devices that are deleted while a link is added to them
# (netdev_deletion.py). No counter, no reference to a GID and no link of a deleted network device
# may be left, and no registration of a device may fail. Topology: a link on one of two hosts.
source "$(dirname "$0")/../lib/guest.sh"

no_bound_qps() { ! rdma -j statistic qp show | grep -q lqpn; }

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "automatic counters by process are turned on" rdma statistic qp set link "$DEV1/1" auto pid on
python3 "$(dirname "$0")/modify_races.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$(gid_index "$DEV1" $HOST1_V6)" ||
	fail "modify_races.py exits with status 0" "status $?"
check "no QP is left bound to a counter" no_bound_qps
# If a counter or a reference to a GID is left, ib_core warns when the link is deleted.
check "link del returns after the races" link_del 1
python3 "$(dirname "$0")/netdev_deletion.py" gone 0 || fail "netdev_deletion.py exits with status 0" "status $?"
