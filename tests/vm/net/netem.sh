#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=600
# Tests that transfers complete with the right data over a network that loses, reorders, duplicates,
# corrupts and delays packets (tc netem on both ends of a veth pair).
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=150

# The MTU allows packets of more than a page.
check "two hosts" hosts_up 4200
# counter DEVICE NAME
counter() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"; }
send_errors() { echo "$(counter "$DEV1" send_err) $(counter "$DEV2" send_err)"; }
no_send_errors() { [[ $(send_errors) == "$before" ]]; }
keeps_early_requests() { (($(counter "$DEV2" early_request) > 0)); }
keeps_early_responses() { (($(counter "$DEV1" early_response) > 0)); }
keeps_nothing() { ! keeps_early_requests && ! keeps_early_responses; }
check "link on host 1" link_add 1
check "link on host 2" link_add 2

# A program exits when it has received all messages, and the acknowledgments of its own. If the last
# acknowledgment that it sent is lost, the other program retransmits to a QP that no longer
# exists, and fails. No transport can avoid that, so such a run is repeated.
last_ack_lost() { [[ $OUTPUT == *" iters in "* && $OUTPUT == *"retry counter exceeded"* ]]; }

settings=("loss 5%" "delay 1ms reorder 95% 50%" "delay 200us 100us loss 2% duplicate 2% corrupt 1%")
[[ -n $DEBUG_KERNEL ]] || settings+=("loss 1%" "duplicate 5%" "corrupt 1%")
for setting in "${settings[@]}"; do
	before=$(send_errors)
	check "netem is set to $setting" netem "$setting"
	check "rrxe-check completes every operation under $setting" rrxe-check "$DEV1" "$DEV2" v4 transfer
	check "a pingpong completes under $setting" retry_on_race last_ack_lost pingpong -n "$(scaled_count 100)"
	if [[ $setting == loss* ]]; then
		for program in ib_write_bw ib_read_bw; do
			check "$program completes messages of 64 KiB under $setting" \
				perftest $program -s 65536 -n "$(scaled_count 200)"
		done
	fi
	netem_off
	# netem delays packets in a queue, which may overflow; the driver counts such drops in send_err.
	[[ $setting == *delay* ]] ||
		check "no packet was dropped before it left the host under $setting" no_send_errors
done
check "QPs have kept requests that arrived before a missing one" keeps_early_requests
check "QPs have kept READ responses that arrived before a missing one" keeps_early_responses

check "link del on host 1" link_del 1
check "link del on host 2" link_del 2
check "rmmod" rmmod rrxe
check "the module loads with fill_gaps=0" modprobe rrxe fill_gaps=0
check "link on host 1 with fill_gaps=0" link_add 1
check "link on host 2 with fill_gaps=0" link_add 2
check "netem is set with fill_gaps=0" netem "loss 5%"
for program in ib_write_bw ib_read_bw; do
	check "$program completes messages of 64 KiB with fill_gaps=0" \
		perftest $program -s 65536 -n "$(scaled_count 200)"
done
check "QPs keep no packet with fill_gaps=0" keeps_nothing
