#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick
# Doorbells without calls and armed CQs, by the ABI of rrxe-abi.h alone; when an armed CQ notifies.
source "$(dirname "$0")/../lib/guest.sh"

# Python takes longer to post, on an emulated machine, than a page is watched by default.
check "patient pollers" modprobe rrxe poll_idle_us=5000
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
for script in doorbell arming; do
	python3 "$(dirname "$0")/$script.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
		fail "$script.py exits with status 0" "status $?"
done
check "the watchers' CPUs can be set" test -w /sys/devices/virtual/workqueue/rrxe_poll/cpumask
