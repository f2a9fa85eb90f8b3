#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: vcpus=4 timeout=400 packages=ucx-utils,libfabric-bin,openmpi-bin,python3-mpi4py
# Programs that are busy make no system call through librrxe: posts, polls and arming alike. Those of perftest and of
# UCX, as Debian ships them, and one of ours that posts, receives, arms and polls. Once one is busy, strace -c -f
# attaches to its processes, and the kernel counts by the event that perf trace shows (raw_syscalls); the device counts
# the messages. Stock librxe shows that both see calls. The guest is that of apps.sh, which has UCX.
here=$(dirname "$(readlink -f "$0")")
source "$here/../lib/guest.sh"
source "$here/apps/ucx.sh"
PROGRAM_SECONDS=60
readonly EVENT=/sys/kernel/tracing/events/raw_syscalls/sys_enter SECONDS_EACH=2

packets() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts")"; }
busy() { [[ $(packets) -gt $((start + 200)) ]]; }
enough() { [[ $(packets) -ge $(($1 + 2000)) ]]; }
attached() { [[ $(grep -c ' attached' /tmp/strace) -eq $1 ]]; }

# The sum of lines "TIMES CALL".
calls_in() { awk '$1 + 0 && $2 != "total" { calls += $1 } END { print calls + 0 }' "$1"; }

# counted_by_kernel THREAD...: what they call within two seconds, and the packets of the first device meanwhile.
counted_by_kernel() {
	local filter before
	printf -v filter ' || common_pid == %s' "$@"
	echo "hist:keys=id if ${filter# || }" >$EVENT/trigger || return
	before=$(packets)
	sleep $SECONDS_EACH
	# So many that one call weighs little, also on a slow host.
	wait_for 20 enough "$before" || true
	PACKETS=$(($(packets) - before))
	sed -nE 's/^\{ id: +([0-9]+) \} hitcount: +([0-9]+).*/\2 \1/p' $EVENT/hist >/tmp/by_kernel
	echo "!hist:keys=id" >$EVENT/trigger
}

# watch PROGRAM: once it is busy, what the processes of this name do within two seconds: CALLS and PACKETS.
watch() {
	local pids threads tracer calls=()
	wait_for 30 busy || return
	mapfile -t pids < <(pgrep -x "$1")
	mapfile -t threads < <(ps -L -o lwp= -p "${pids[*]}")
	strace -c -f -U calls,name -o /tmp/by_strace "${pids[@]/#/-p}" 2>/tmp/strace &
	tracer=$!
	wait_for 20 attached ${#pids[@]} && counted_by_kernel "${threads[@]}" || return
	# It fails if they ended before.
	kill -INT $tracer || return
	wait $tracer
	calls=("$(calls_in /tmp/by_strace)" "$(calls_in /tmp/by_kernel)")
	CALLS=$((calls[0] > calls[1] ? calls[0] : calls[1]))
	echo "$PACKETS packets; calls: ${calls[0]} by strace ($(sed -nE 's/^ *([0-9]+ .*)/\1/p' /tmp/by_strace | paste -sd,))," \
		"${calls[1]} by the kernel ($(paste -sd, /tmp/by_kernel))"
}

# endless PROGRAM COMMAND...: the command, which runs the program on both hosts, is ended when it has been watched.
endless() {
	local program=$1 running
	shift
	"$@" >/tmp/output 2>&1 &
	running=$!
	watch "$program" || PACKETS=0
	pkill -x "$program"
	wait $running
	[[ $PACKETS -gt 0 ]] || cat /tmp/output /tmp/strace
}

# With -D perftest would set alarms, and read /proc/stat when they go off; without -f UCX would print what it has so far.
in_perftest() { endless "$1" perftest "$@" -n 5000000; }
in_ucx() { endless ucx_perftest ucx rc_v tag_bw -n 1000000000 -s 64 -f; }
in_ours() {
	start_holder rrxe-bench busy "$DEV1" && watch rrxe-bench || PACKETS=0
	end_holder
}

# A watcher that the host of this machine keeps from running for long gives its page up, which takes some calls more:
# one in a thousand packets is none, on the debug kernel one in a hundred. That is a fifth of what `many` are.
NONE=1000
[[ -z $DEBUG_KERNEL ]] || NONE=100
readonly NONE
none() { [[ $((CALLS * NONE)) -le $PACKETS ]]; }
many() { [[ $((CALLS * 20)) -ge $PACKETS ]]; }

# shows CONDITION COMMAND...: what is watched meets the condition, within three tries.
shows() {
	local condition=$1 start
	shift
	for _ in 1 2 3; do
		start=$(packets)
		"$@" || return
		[[ $PACKETS -lt 50 ]] || ! $condition || return 0
	done
	return 1
}

seen() { check "$@" && note "$(grep 'packets;' <<<"$OUTPUT")"; }

# More patient than strace takes to attach on a busy host.
check "rrxe with patient watchers" modprobe rrxe poll_idle_us=10000000 pollers=2
check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
seen "stock librxe calls for each post: ib_read_lat" shows many in_perftest ib_read_lat
seen "stock librxe calls for each post and arm" shows many in_ours
export RDMAV_DRIVERS=rrxe
for program in "ib_read_lat" "ib_atomic_lat" "ib_write_bw -s 64" "ib_send_bw -s 64" "ib_send_bw -s 64 -c UD"; do
	# shellcheck disable=SC2086 # a list of words
	seen "no calls: $program" shows none in_perftest $program
done
seen "no calls: ucx_perftest" shows none in_ucx
seen "no calls: to post, receive, arm and poll" shows none in_ours
