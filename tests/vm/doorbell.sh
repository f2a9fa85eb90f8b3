#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick
# Doorbells without calls and armed CQs, by the ABI of rrxe-abi.h alone.
source "$(dirname "$0")/lib.sh"

# Python takes longer to post, on an emulated machine, than a page is watched by default.
check "patient pollers" modprobe rrxe poll_idle_us=5000
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
python3 "$(dirname "$0")/doorbell.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
	fail "doorbell.py ends well" "status $?"
check "the watchers' CPUs can be set" test -w /sys/devices/virtual/workqueue/rrxe_poll/cpumask
