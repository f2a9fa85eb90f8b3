#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=300
# Tests that softirqs which take in datagrams send no packets of processes, and the limit on softirq
# time (softirq_percent), by datagrams.py. Host 2 sends datagrams to host 1 over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"

datagrams() {
	local index
	index=$(gid_index "$DEV1" $HOST1_V4)
	python3 "$(dirname "$0")/datagrams.py" "$DEV1" "$index" $HOST1_V4 h2 $HOST2_V4 "$1" ||
		fail "datagrams.py ends well" "status $?"
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
datagrams share
check "the module is removed" rmmod rrxe
# On any machine a batch of datagrams takes more than 1 % of the time.
check "the module loads, and softirqs may take 1 % of the time" modprobe rrxe softirq_percent=1
check "link on host 1 again" link_add 1
datagrams threads
if [[ -n $DEBUG_KERNEL ]]; then
	skip "datagrams: copies for the QPs of a group are dropped" \
		"this kernel makes no more copies a second than are granted"
else
	datagrams copies
fi
