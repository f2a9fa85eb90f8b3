#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=600
# A network that loses, reorders, duplicates, corrupts and delays: transfers complete, data is right.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=150

# So that a packet has more than a page.
check "two hosts" hosts_up 4200
all_left() { ! grep -v '^0$' /sys/class/infiniband/{"$DEV1","$DEV2"}/ports/1/hw_counters/send_err; }
check "link on host 1" link_add 1
check "link on host 2" link_add 2

# Who has all messages, and acknowledgments of its own, leaves. If the last acknowledgment that it gave was lost, the
# other retransmits to nobody: no transport can tell it.
last_ack_lost() { [[ $OUTPUT == *" iters in "* && $OUTPUT == *"retry counter exceeded"* ]]; }

settings=("loss 5%" "delay 1ms reorder 95% 50%" "delay 200us 100us loss 2% duplicate 2% corrupt 1%")
[[ -n $DEBUG_KERNEL ]] || settings+=("loss 1%" "duplicate 5%" "corrupt 1%")
for setting in "${settings[@]}"; do
	check "netem $setting" netem "$setting"
	check "every operation under $setting" rrxe-check "$DEV1" "$DEV2" v4 transfer
	check "pingpong under $setting" again last_ack_lost pingpong -n "$(few 100)"
	[[ $setting != loss* ]] || check "messages of many packets under $setting" perftest ib_write_bw -s 65536 -n "$(few 200)"
	netem_off
	# Delays need queues, which overflow.
	[[ $setting == *delay* ]] || check "nothing was lost before it left under $setting" all_left
done
