#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: vcpus=4 timeout=300
# Tests contexts beside hostile contexts while only one doorbell poller runs at a time, and the
# removal of a device and of the module while hostile contexts ring their doorbells. All QPs are
# connected to themselves or to a QP of the same device, on one link over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"

# start_hostile_contexts CONTEXTS: starts hostile_doorbells.py in the background, with that many
# hostile contexts.
start_hostile_contexts() {
	local index
	index=$(gid_index "$DEV1" $HOST1_V4)
	python3 "$(dirname "$0")/hostile_doorbells.py" "$DEV1" "$index" "$1" posts >/tmp/hostile_contexts &
	RINGER=$!
	wait_for 30 grep -q ringing /tmp/hostile_contexts
}

# run_test PROGRAM: runs a Python program of this folder.
run_test() {
	python3 "$(dirname "$0")/$1" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
		fail "$1 exits with status 0" "status $?"
}

# An emulated machine is slow: polling of a page ends after 1,000 us without a post, not after the
# default of 50 us.
check "the module loads, and one poller runs at a time" modprobe rrxe pollers=1 poll_idle_us=1000
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
run_test poller_fairness.py

# With a poll_idle_us of a second the driver's watchdogs (timers) detect a starved poller after a
# second only. So no process that waits for its poller is told to make doorbell calls instead.
check "the module is removed" rmmod rrxe
check "the module loads, and one poller runs at a time and waits a second for a post" \
	modprobe rrxe pollers=1 poll_idle_us=1000000
check "link on host 1 again" link_add 1
run_test shares.py

# The doorbell pages of the hostile contexts stay mapped, and the contexts go on ringing.
check "hostile contexts ring their doorbells" start_hostile_contexts 3
sleep 1
check "the device is deleted while hostile contexts ring" link_del 1
check "the module is removed while doorbell pages are mapped and ring" rmmod rrxe
check "the hostile contexts have rung until the end" kill $RINGER
