#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: vcpus=1 timeout=200
# Management datagrams that come while a user stops ib_cm's work queue (stalled.py). The queue runs
# one work item at a time on each CPU, so the machine has one CPU. Topology: two hosts over a veth
# pair.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "modprobe rdma_ucm" modprobe rdma_ucm
python3 "$(dirname "$0")/stalled.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" $HOST1_V4 $HOST2_V4 ||
	fail "stalled.py exits with status 0" "status $?"
check "connections are set up after ib_cm's queue was stopped" rping_connects 40
