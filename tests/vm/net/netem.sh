#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=600
# Tests that transfers complete with the right data over a network that loses, reorders, duplicates,
# corrupts and delays packets (tc netem on both ends of a veth pair).
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=150

# The MTU allows packets of more than a page.
check "two hosts" hosts_up 4200
no_send_errors() {
	! grep -v '^0$' /sys/class/infiniband/{"$DEV1","$DEV2"}/ports/1/hw_counters/send_err
}
check "link on host 1" link_add 1
check "link on host 2" link_add 2

# A program exits when it has received all messages, and the acknowledgments of its own. If the last
# acknowledgment that it sent is lost, the other program retransmits to a QP that no longer
# exists, and fails. No transport can avoid that, so such a run is repeated.
last_ack_lost() { [[ $OUTPUT == *" iters in "* && $OUTPUT == *"retry counter exceeded"* ]]; }

settings=("loss 5%" "delay 1ms reorder 95% 50%" "delay 200us 100us loss 2% duplicate 2% corrupt 1%")
[[ -n $DEBUG_KERNEL ]] || settings+=("loss 1%" "duplicate 5%" "corrupt 1%")
for setting in "${settings[@]}"; do
	check "netem is set to $setting" netem "$setting"
	check "rrxe-check completes every operation under $setting" rrxe-check "$DEV1" "$DEV2" v4 transfer
	check "a pingpong completes under $setting" retry_on_race last_ack_lost pingpong -n "$(scaled_count 100)"
	[[ $setting != loss* ]] || check "messages of 64 KiB complete under $setting" \
		perftest ib_write_bw -s 65536 -n "$(scaled_count 200)"
	netem_off
	# netem delays packets in a queue, which may overflow; the driver counts such drops in send_err.
	[[ $setting == *delay* ]] ||
		check "no packet was dropped before it left the host under $setting" no_send_errors
done
