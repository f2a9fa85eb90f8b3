#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=240
# Tests shared receive queues and the resizing of CQs between two hosts, which a veth pair connects:
# by rrxe-check, which compares each byte, status, event and errno, by ibv_srq_pingpong and by
# perftest.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=120

# srq_pingpong [ARGUMENT...]: runs ibv_srq_pingpong between the hosts, with several QPs on one SRQ.
srq_pingpong() {
	run_server_and_client ibv_srq_pingpong -d "$DEV2" -g "$(gid_index "$DEV2" $HOST2_V4)" "$@" -- \
		ibv_srq_pingpong -d "$DEV1" -g "$(gid_index "$DEV1" $HOST1_V4)" "$@" $HOST2_V4
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
rrxe-check "$DEV1" "$DEV2" v4 cq srq || fail "rrxe-check ends well" "status $?"
check "ibv_srq_pingpong that polls" srq_pingpong -n 300
check "ibv_srq_pingpong with events" srq_pingpong -n 300 -e -s 20000
check "ib_send_bw over an SRQ" perftest ib_send_bw --use-srq -q 4 -n 100
check "ib_send_lat over an SRQ" perftest ib_send_lat --use-srq -n 100
