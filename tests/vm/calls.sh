#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: vcpus=4 timeout=240
# Programs that are busy make no system call through librrxe: posts, polls and arming alike. Each call of a running
# program is counted by the kernel (raw_syscalls), and its messages by the device.
source "$(dirname "$0")/lib.sh"
PROGRAM_SECONDS=60
readonly EVENT=/sys/kernel/tracing/events/raw_syscalls/sys_enter SECONDS_EACH=2

# calls_of PROCESS...: what they call within two seconds, by number of the call: "number times" a line.
calls_of() {
	local filter pid
	for pid; do filter+="${filter:+ || }common_pid == $pid"; done
	echo "hist:keys=id if $filter" >$EVENT/trigger || return
	sleep $SECONDS_EACH
	sed -nE 's/^\{ id: +([0-9]+) \} hitcount: +([0-9]+).*/\1 \2/p' $EVENT/hist
	echo "!hist:keys=id" >$EVENT/trigger
}

packets() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts")"; }

# count PROGRAM ARGUMENT...: runs it between the hosts, and looks at it for a while in the middle. CALLS and PACKETS
# become what it did meanwhile.
count() {
	local program=$1 pids before pair
	shift
	perftest "$program" -D 8 "$@" >/tmp/output 2>&1 &
	pair=$!
	wait_for 20 busy || return
	mapfile -t pids < <(pgrep -x "$program")
	before=$(packets)
	calls_of "${pids[@]}" >/tmp/calls || return
	PACKETS=$(($(packets) - before))
	# perftest's own alarm, and its end, are no calls of verbs.
	CALLS=$(awk '$1 != 15 && $1 != 37 { calls += $2 } END { print calls + 0 }' /tmp/calls)
	wait $pair || {
		cat /tmp/output
		return 1
	}
	echo "$program $*: $PACKETS packets, $CALLS calls ($(paste -sd, /tmp/calls))"
}

busy() { [[ $(packets) -gt $((start + 500)) ]]; }

# A watcher that the host of this machine keeps from running for a while gives its page up, which takes a few calls
# more: one in a thousand packets is none.
none() {
	start=$(packets)
	RDMAV_DRIVERS=rrxe count "$@" && [[ $PACKETS -gt 500 && $((CALLS * 1000)) -le $PACKETS ]]
}
many() {
	start=$(packets)
	count "$@" && [[ $PACKETS -gt 500 && $((CALLS * 20)) -ge $PACKETS ]]
}

check "rrxe with patient watchers" modprobe rrxe poll_idle_us=50000 pollers=2
check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "stock librxe calls for each post" many ib_read_lat
for program in "ib_read_lat" "ib_atomic_lat" "ib_write_bw -s 64" "ib_send_bw -s 64" "ib_send_bw -s 64 -c UD"; do
	# shellcheck disable=SC2086 # a list of words
	check "no calls: $program" none $program && note "$OUTPUT"
done
