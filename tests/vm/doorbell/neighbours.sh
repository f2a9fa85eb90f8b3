#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: vcpus=4 timeout=300
# Contexts that share a poller with hostile ones, and hostile ones whose device goes.
source "$(dirname "$0")/../lib/guest.sh"

# begin CONTEXTS: such a neighbour in the background.
begin() {
	python3 "$(dirname "$0")/ringer.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$1" posts >/tmp/ringer &
	RINGER=$!
	wait_for 30 grep -q ringing /tmp/ringer
}

# measure PROGRAM: one of those beside this script.
measure() {
	python3 "$(dirname "$0")/$1" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" || fail "$1 exits with status 0" "status $?"
}

# An emulated machine is slow: more than by default.
check "one poller" modprobe rrxe pollers=1 poll_idle_us=1000
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
measure neighbours.py

# So that nobody who waits for the poller is told to call instead.
check "the module goes" rmmod rrxe
check "a patient poller" modprobe rrxe pollers=1 poll_idle_us=1000000
check "link on host 1 again" link_add 1
measure shares.py

# Their pages stay mapped, and they go on ringing.
check "hostile contexts" begin 3
sleep 1
check "their device goes" link_del 1
check "the module goes while their pages still ring" rmmod rrxe
check "they ring to the end" kill $RINGER
