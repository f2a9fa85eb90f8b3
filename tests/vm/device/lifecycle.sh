#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=600
# Life cycle of devices: a hundred cycles of adding links, starting traffic, and removing the
# devices under the traffic, each time in another way (WAYS). No cycle may hang, and the kernel's
# memory, pinned pages and other resources must not grow with the number of cycles. On the debug
# kernel each way comes only twice, as kmemleak finds leaks there. Topology: two hosts over a veth
# pair.
source "$(dirname "$0")/../lib/guest.sh"

# Number of cycles, which must be even.
: "${CYCLES:=${DEBUG_KERNEL:+14}}" "${CYCLES:=100}"
readonly WAYS=(links_deleted netdev_deleted namespace_deleted module_removed links_deleted_module_removed killed one_link_deleted)
readonly LOADS=(send write read pingpong)
# Number of cycles that fill the kernel's caches before the first inventory, and half of the number
# of cycles after these. If there are no cycles after these, no inventories are compared.
readonly WARM_CYCLES=14 HALF=$(((CYCLES - 14) / 2))
# Limits in ms of a removal's median and maximum time, for an emulated machine on a busy host.
# Without debug checks the limit of the median is 8 s. A removal that waits until the QPs of
# rrxe-bench have made all their retries (8 times 4.3 s) exceeds it.
: "${USUAL_MS:=$((2000 * LIMIT_FACTOR))}"
readonly WORST_MS=$((20000 * LIMIT_FACTOR))
# On the debug kernel there are only two times of each way, too few for a median.
[[ -z $DEBUG_KERNEL ]] || USUAL_MS=$WORST_MS
# PIDs of the applications' processes that lead process groups.
GROUPS_RUNNING=()
# The errors of the present cycle, a line each.
ERRORS=

# A pipe without data: `read -t` on it is a sleep that starts no program.
exec {empty_pipe}<> <(:)
pause() { read -rt 0.02 -u "$empty_pipe"; }

milliseconds() { REPLY=$((${EPOCHREALTIME/[.,]/} / 1000)); }

# wait_until_within MS COMMAND...: repeats the command until it succeeds. Fails after MS. Unlike
# wait_for of lib/guest.sh it starts no programs.
wait_until_within() {
	local end
	milliseconds
	end=$((REPLY + $1))
	shift
	until "$@"; do
		milliseconds
		[[ $REPLY -lt $end ]] || return 1
		pause
	done
	return 0
}

add_error() { ERRORS+="$*"$'\n'; }

# run_or_error COMMAND...: runs the command. If it fails, adds an error to ERRORS.
run_or_error() {
	local said
	said=$("$@" 2>&1) || add_error "status $?: $*: $said"
}

both_devices_gone() { [[ ! -e /sys/class/infiniband/rrxe1 && ! -e /sys/class/infiniband/rrxe2 ]]; }
device1_gone() { [[ ! -e /sys/class/infiniband/rrxe1 ]]; }

hosts_and_wire_up() {
	local host
	for host in 1 2; do
		[[ -e /run/netns/h$host ]] || ip netns add h$host || return
	done
	[[ ! -e /run/wired ]] || return 0
	ip link add eth0 netns h1 mtu 4200 type veth peer name eth0 netns h2 mtu 4200 || return
	for host in 1 2; do
		ip -n h$host -batch - <<<"addr add 10.77.0.$host/24 dev eth0
			link set eth0 up" || return
	done
	: >/run/wired
}

ready() { gid_index "$1" "$2" >/dev/null 2>&1 && [[ $(<"/sys/class/infiniband/$1/ports/1/state") == *ACTIVE ]]; }

links_up() {
	ip netns exec h1 rdma link add rrxe1 type rrxe netdev eth0 &&
		ip netns exec h2 rdma link add rrxe2 type rrxe netdev eth0 &&
		wait_until_within "$WORST_MS" ready rrxe1 $HOST1_V4 &&
		wait_until_within "$WORST_MS" ready rrxe2 $HOST2_V4
}

launch() {
	setsid "$@" >>/tmp/applications 2>&1 &
	GROUPS_RUNNING+=($!)
	disown
}

flowing() {
	local packets
	{ read -r packets </sys/class/infiniband/rrxe2/ports/1/hw_counters/rcvd_pkts; } 2>/dev/null
	[[ ${packets:-0} -gt 100 ]]
}

listens() { grep -qs ':4853 0*:0000 0A' /proc/net/tcp /proc/net/tcp6; }

# traffic LOAD: starts endless traffic between the devices. ibv_rc_pingpong polls its CQ without a
# pause; the loads of rrxe-bench sleep until a completion event.
traffic() {
	: >/tmp/applications
	if [[ $1 == pingpong ]]; then
		launch ibv_rc_pingpong -d rrxe2 -g "$(gid_index rrxe2 $HOST2_V4)" -n 1000000000
		wait_until_within "$WORST_MS" listens
		launch ibv_rc_pingpong -d rrxe1 -g "$(gid_index rrxe1 $HOST1_V4)" -n 1000000000 127.0.0.1
	else
		launch rrxe-bench verbs rrxe1 rrxe2 "$1" stream 16384 1000000000 16 4
	fi
	wait_until_within "$WORST_MS" flowing || add_error "no traffic: $(</tmp/applications)"$'\n'"$(
		rdma resource show qp
		grep -Hv '^0$' /sys/class/infiniband/rrxe*/ports/1/hw_counters/*
		in1 ip neigh
	)"
}

signal() {
	local group
	for group in "${GROUPS_RUNNING[@]}"; do kill "-$1" -- "-$group" 2>/dev/null; done
}

# Prints the PIDs of the applications, by their process groups. The command line can't identify
# them: an exiting process loses it before it has ended.
processes() { pgrep -g "$(IFS=, && echo "${GROUPS_RUNNING[*]}")"; }

# Succeeds if all applications have ended. A zombie without further threads counts as ended, as this
# shell may reap it late on a busy host.
applications_ended() {
	local process threads
	for process in $(processes); do
		threads=("/proc/$process/task/"*)
		grep -qs '^State:[[:space:]]*Z' "/proc/$process/status" && [[ ${#threads[@]} -eq 1 ]] ||
			[[ ! -e /proc/$process ]] || return 1
	done
}

# Prints the states and kernel stacks of the applications.
kernel_stacks() {
	local task
	for task in $(processes); do
		grep -hE '^(Name|State):' "/proc/$task/status"
		cat "/proc/$task/task/"*/stack
	done 2>/dev/null
}

kill_applications() {
	signal KILL
	wait_until_within "$WORST_MS" applications_ended ||
		add_error "killed applications don't end: $(kernel_stacks)"
	GROUPS_RUNNING=()
}

# The functions named in WAYS. Each returns when the device is gone.
delete_links() {
	run_or_error rdma link del rrxe1
	run_or_error rdma link del rrxe2
}

links_deleted() { delete_links; }

netdev_deleted() {
	run_or_error ip -n h1 link del eth0
	rm /run/wired
	wait_until_within "$WORST_MS" both_devices_gone
}

namespace_deleted() {
	run_or_error ip netns del h1
	rm /run/wired
	wait_until_within "$WORST_MS" both_devices_gone
}

module_removed() { run_or_error rmmod rrxe; }

# The applications are stopped (SIGSTOP), so they can't close the device.
links_deleted_module_removed() {
	signal STOP
	delete_links
	run_or_error rmmod rrxe
	[[ ! -e /sys/module/rrxe ]] || add_error "the module is still loaded"
	signal CONT
}

killed() {
	local left
	signal KILL
	wait_until_within "$WORST_MS" applications_ended ||
		add_error "killed applications don't end: $(kernel_stacks)"
	left=$(rdma resource show | grep -E 'rrxe.* (mr|ctx) [1-9]') &&
		add_error "objects of killed processes: $left"
	delete_links
}

one_link_deleted() { run_or_error rdma link del rrxe1; }

# expect_applications_end LOAD WAY: fails the cycle unless the applications end by themselves once
# both devices are gone. ibv_rc_pingpong is excepted, as it only polls its CQ.
expect_applications_end() {
	[[ $1 != pingpong && $2 != one_link_deleted ]] || return 0
	wait_until_within "$WORST_MS" applications_ended ||
		add_error "applications don't end without their device: $(</tmp/applications)"
}

# cycle WAY LOAD: runs one cycle. Stores the time of the removal in ms in TOOK, and errors in
# ERRORS.
cycle() {
	local way=$1 load=$2 began
	ERRORS=
	hosts_and_wire_up || add_error "the veth pair can't be set up"
	links_up || add_error "the links can't be set up"
	traffic "$load"
	milliseconds
	began=$REPLY
	$way
	milliseconds
	TOOK=$((REPLY - began))
	[[ $TOOK -le $WORST_MS ]] || add_error "took $TOOK ms"
	if [[ $way == one_link_deleted ]]; then device1_gone; else both_devices_gone; fi ||
		add_error "a device still exists: $(rdma link)"
	expect_applications_end "$load" "$way"
	kill_applications
	[[ $way != one_link_deleted ]] || run_or_error rdma link del rrxe2
	[[ ! -e /sys/module/rrxe/refcnt || $(</sys/module/rrxe/refcnt) == 0 ]] ||
		add_error "the module is still used $(</sys/module/rrxe/refcnt) times"
}

# Prints the kernel's present counts of objects and pages as "name number" lines. Shrinks caches
# first.
sample() {
	local cache key acquired released
	echo 3 >/proc/sys/vm/drop_caches
	for cache in /sys/kernel/slab/*/shrink; do echo 1 >"$cache"; done
	sleep 0.5
	awk 'NR > 2 { print $1, $2 }' /proc/slabinfo
	while read -r key REPLY; do
		case $key in
		nr_foll_pin_acquired) acquired=$REPLY ;;
		nr_foll_pin_released) released=$REPLY ;;
		esac
	done </proc/vmstat
	echo "pinned_pages $((acquired - released))"
	echo "vmalloc_areas $(wc -l </proc/vmallocinfo)"
	awk '$1 == "MemTotal:" { all = $2 } $1 == "MemAvailable:" { print "used_KiB", all - $2 }' /proc/meminfo
}

# Removes the module and the hosts, and prints the minimum of several samples, so that transient
# objects don't count. A cache frees recently used objects only when it is shrunk a second time.
inventory() {
	local try
	[[ ! -e /sys/module/rrxe ]] || rmmod rrxe
	hosts_down
	rm -f /run/wired
	sleep 1
	for try in {1..4}; do sample; done |
		awk '!($1 in least) || $2 < least[$1] { least[$1] = $2 } END { for (name in least) print name, least[name] }'
}

# Prints the counts that grew in both halves of the cycles. Counts of slab caches are coarse,
# because each CPU keeps up to a hundred objects of a cache. A leak would be two objects per cycle,
# one at each end of the wire.
compare() {
	awk -v cycles=$HALF '
		FNR == 1 { file++ }
		{ count[file, $1] = $2; names[$1] }
		END {
			for (name in names) {
				first = count[2, name] - count[1, name]
				second = count[3, name] - count[2, name]
				limit = name ~ /^(pinned_pages|vmalloc_areas|net_namespace|UDP|UDPv6)$/ ? cycles / 8 : cycles * 1.5
				if (name == "used_KiB") limit = cycles * 64
				if (first >= limit && second >= limit)
					print name ": " count[1, name] ", then " count[2, name] ", then " count[3, name]
			}
		}' /tmp/inventory.*
}

# Lets each CPU keep as few free pages as possible, as used_KiB counts them. By default a CPU keeps
# tens of MiB of them, depending on the pages that it freed last (zone_highsize(), mm/page_alloc.c).
keep_few_free_pages() { echo 1000000 >/proc/sys/vm/percpu_pagelist_high_fraction; }

keep_few_free_pages
declare -A failures times
for ((number = 0; number < CYCLES; number++)); do
	[[ $HALF -eq 0 || $(((number - WARM_CYCLES) % HALF)) -ne 0 ]] || inventory >"$(printf /tmp/inventory.%04d "$number")"
	way=${WAYS[number % ${#WAYS[@]}]} load=${LOADS[number % ${#LOADS[@]}]}
	cycle "$way" "$load"
	times[$way]+="$TOOK "
	[[ -z $ERRORS ]] || {
		note "$way under $load in cycle $number: $ERRORS"
		failures[$way]+="cycle $number, $load: $ERRORS"
	}
done
[[ $HALF -eq 0 ]] || inventory >"$(printf /tmp/inventory.%04d "$number")"
for way in "${WAYS[@]}"; do
	mapfile -t sorted < <(tr ' ' '\n' <<<"${times[$way]% }" | sort -n)
	usual=${sorted[${#sorted[@]} / 2]}
	[[ $usual -le $USUAL_MS ]] || failures[$way]+="its median is $usual ms"
	if [[ -z ${failures[$way]:-} ]]; then
		pass "$way under traffic, ${#sorted[@]} times (median $usual ms, maximum ${sorted[-1]} ms)"
	else
		fail "$way under traffic" "${failures[$way]}"
	fi
done
[[ $HALF -gt 0 ]] || exit 0
left=$(compare)
if [[ -z $left ]]; then
	pass "kernel objects and memory don't grow with the number of cycles"
else
	fail "kernel objects and memory don't grow with the number of cycles" "$left"
fi
note "$(grep -h -e used_KiB -e pinned -e areas /tmp/inventory.* | tr '\n' ' ')"
