#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick
# Tests the doorbell page and the arming of CQs by the interface of rrxe-abi.h, without a provider
# library (doorbell.py), and when an armed CQ notifies (arming.py). Each QP that sends is connected
# to itself, on one link over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"

# On an emulated machine Python takes longer between two posts than the default of poll_idle_us
# (50), after which polling of a page ends. So polling goes on for 5,000 us without a post.
check "the module loads, and pollers wait 5 ms for a post" modprobe rrxe poll_idle_us=5000
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
for script in doorbell arming; do
	python3 "$(dirname "$0")/$script.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
		fail "$script.py exits with status 0" "status $?"
done
check "the CPUs of the pollers can be set" test -w /sys/devices/virtual/workqueue/rrxe_poll/cpumask
