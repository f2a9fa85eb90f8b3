#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: vcpus=4 timeout=400 packages=ucx-utils,libfabric-bin,openmpi-bin,python3-mpi4py
# Tests that busy programs make no system calls through librrxe when they post, poll and arm CQs:
# programs of perftest and UCX, as Debian ships them, and `rrxe-bench busy`, which posts, receives,
# arms and polls. When a program is busy, strace -c -f attaches to its processes and counts their
# system calls. The kernel's trace event raw_syscalls:sys_enter counts them, too, and the device
# counts its packets. Runs through stock librxe, which makes a call for each post, show that both
# counts work. The guest has the packages of apps.sh, for UCX.
here=$(dirname "$(readlink -f "$0")")
source "$here/../lib/guest.sh"
source "$here/apps/ucx.sh"
PROGRAM_SECONDS=60
readonly EVENT=/sys/kernel/tracing/events/raw_syscalls/sys_enter SECONDS_EACH=2

packets() { echo "$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts")"; }
busy() { [[ $(packets) -gt $((start + 200)) ]]; }
enough() { [[ $(packets) -ge $(($1 + 2000)) ]]; }
attached() { [[ $(grep -c ' attached' /tmp/strace) -eq $1 ]]; }

# calls_in FILE: the number of system calls in a file with lines "COUNT SYSCALL".
calls_in() { awk '$1 + 0 && $2 != "total" { calls += $1 } END { print calls + 0 }' "$1"; }

# counted_by_kernel THREAD...: counts the system calls of the threads within SECONDS_EACH, in
# /tmp/by_kernel, and the packets that host 1's device sends in that time, in PACKETS.
counted_by_kernel() {
	local filter before
	printf -v filter ' || common_pid == %s' "$@"
	echo "hist:keys=id if ${filter# || }" >$EVENT/trigger || return
	before=$(packets)
	sleep $SECONDS_EACH
	# On a slow host the count goes on for 2,000 packets, so that one call among them counts as none.
	wait_for 20 enough "$before" || true
	PACKETS=$(($(packets) - before))
	sed -nE 's/^\{ id: +([0-9]+) \} hitcount: +([0-9]+).*/\2 \1/p' $EVENT/hist >/tmp/by_kernel
	echo "!hist:keys=id" >$EVENT/trigger
}

# watch PROGRAM: waits until the program is busy, and counts the system calls (CALLS, the larger of
# both counts) and packets (PACKETS) of the processes with this name within two seconds.
watch() {
	local pids threads tracer calls=()
	wait_for 30 busy || return
	mapfile -t pids < <(pgrep -x "$1")
	mapfile -t threads < <(ps -L -o lwp= -p "${pids[*]}")
	strace -c -f -U calls,name -o /tmp/by_strace "${pids[@]/#/-p}" 2>/tmp/strace &
	tracer=$!
	wait_for 20 attached ${#pids[@]} && counted_by_kernel "${threads[@]}" || return
	# The kill fails if strace has ended, because the processes ended early.
	kill -INT $tracer || return
	wait $tracer
	calls=("$(calls_in /tmp/by_strace)" "$(calls_in /tmp/by_kernel)")
	CALLS=$((calls[0] > calls[1] ? calls[0] : calls[1]))
	echo "$PACKETS packets; calls: ${calls[0]} by strace ($(sed -nE 's/^ *([0-9]+ .*)/\1/p' /tmp/by_strace | paste -sd,))," \
		"${calls[1]} by the kernel ($(paste -sd, /tmp/by_kernel))"
}

# endless PROGRAM COMMAND...: starts the command, which runs the program on both hosts, and ends it
# after the measurement.
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

# perftest gets a number of messages, because with -D it sets alarms and reads /proc/stat when they
# go off. UCX gets -f, because it prints intermediate results without it.
in_perftest() { endless "$1" perftest "$@" -n 5000000; }
in_ucx() { endless ucx_perftest ucx rc_v tag_bw -n 1000000000 -s 64 -f; }
in_ours() {
	start_holder rrxe-bench busy "$DEV1" && watch rrxe-bench || PACKETS=0
	end_holder
}

# A kernel thread polls the doorbell page of a program of librrxe. If the host stops that thread's
# virtual CPU for long, the polling ends, and the program makes some calls. So one call in a
# thousand packets counts as none, on the debug kernel one in a hundred. The latter is a fifth of
# the calls that count as many.
NONE=1000
[[ -z $DEBUG_KERNEL ]] || NONE=100
readonly NONE
none() { [[ $((CALLS * NONE)) -le $PACKETS ]]; }
many() { [[ $((CALLS * 20)) -ge $PACKETS ]]; }

# shows CONDITION COMMAND...: runs the measurement up to three times, until CALLS and PACKETS meet
# the condition.
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

# measured NAME COMMAND...: as check, and shows the numbers of packets and calls.
measured() { check "$@" && note "$(grep 'packets;' <<<"$OUTPUT")"; }

# Polling ends after ten seconds without a post. On a busy host strace takes less to attach.
check "the module loads with two pollers that wait ten seconds for a post" \
	modprobe rrxe poll_idle_us=10000000 pollers=2
check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
measured "stock librxe makes a system call for each post: ib_read_lat" \
	shows many in_perftest ib_read_lat
measured "stock librxe makes a system call for each post and arm: rrxe-bench" shows many in_ours
export RDMAV_DRIVERS=rrxe
for program in "ib_read_lat" "ib_atomic_lat" "ib_write_bw -s 64" "ib_send_bw -s 64" "ib_send_bw -s 64 -c UD"; do
	# shellcheck disable=SC2086 # a list of words
	measured "librrxe makes no system calls: $program" shows none in_perftest $program
done
measured "librrxe makes no system calls: ucx_perftest" shows none in_ucx
measured "librrxe makes no system calls to post, receive, arm and poll: rrxe-bench" \
	shows none in_ours
