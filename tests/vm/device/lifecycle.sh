#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=600
# Life cycle of devices: a hundred cycles of adding links, starting traffic, and removing the
# devices under the traffic, each time in another way (WAYS). No cycle may hang, and the kernel's
# memory, pinned pages and other resources must not grow with the number of cycles. On the debug
# kernel each way comes only twice, as kmemleak finds leaks there. Topology: two hosts over a veth
# pair.
source "$(dirname "$0")/../lib/guest.sh"

: "${CYCLES:=${DEBUG_KERNEL:+14}}" "${CYCLES:=100}" # even
readonly WAYS=(links_deleted netdev_deleted namespace_deleted module_removed links_deleted_module_removed killed one_link_deleted)
readonly LOADS=(send write read pingpong)
# Number of cycles that fill the kernel's caches before the first inventory, and half of the number
# of cycles after these. If there are no cycles after these, no inventories are compared.
readonly WARM_CYCLES=14 HALF=$(((CYCLES - 14) / 2))
# Limits in ms of a removal's median and maximum time, for an emulated machine on a busy host. They
# are below the timeouts of peers and processes, so a removal that waits for such a timeout exceeds
# them.
: "${USUAL_MS:=$((2000 * PATIENCE))}"
readonly WORST_MS=$((20000 * PATIENCE))
# On the debug kernel there are only two times of each way, too few for a median.
[[ -z $DEBUG_KERNEL ]] || USUAL_MS=$WORST_MS
# PIDs of the applications' processes that lead process groups.
GROUPS_RUNNING=()
# The errors of the present cycle, a line each.
WRONG=

# A pipe without data: `read -t` on it is a sleep that starts no program.
exec {never}<> <(:)
pause() { read -rt 0.02 -u "$never"; }

milliseconds() { REPLY=$((${EPOCHREALTIME/[.,]/} / 1000)); }

# until_within MS COMMAND...: repeats the command until it succeeds. Fails after MS. Unlike wait_for
# of lib/guest.sh it starts no programs.
until_within() {
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

wrong() { WRONG+="$*"$'\n'; }

# must COMMAND...: runs the command. If it fails, adds an error to WRONG.
must() {
	local said
	said=$("$@" 2>&1) || wrong "status $?: $*: $said"
}

absent() { [[ ! -e /sys/class/infiniband/rrxe1 && ! -e /sys/class/infiniband/rrxe2 ]]; }
absent1() { [[ ! -e /sys/class/infiniband/rrxe1 ]]; }

wire_up() {
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
		until_within "$WORST_MS" ready rrxe1 $HOST1_V4 && until_within "$WORST_MS" ready rrxe2 $HOST2_V4
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
		until_within "$WORST_MS" listens
		launch ibv_rc_pingpong -d rrxe1 -g "$(gid_index rrxe1 $HOST1_V4)" -n 1000000000 127.0.0.1
	else
		launch rrxe-bench verbs rrxe1 rrxe2 "$1" stream 16384 1000000000 16 4
	fi
	until_within "$WORST_MS" flowing || wrong "no traffic: $(</tmp/applications)"$'\n'"$(
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
ended() {
	local process threads
	for process in $(processes); do
		threads=("/proc/$process/task/"*)
		grep -qs '^State:[[:space:]]*Z' "/proc/$process/status" && [[ ${#threads[@]} -eq 1 ]] ||
			[[ ! -e /proc/$process ]] || return 1
	done
}

# Prints the states and kernel stacks of the applications.
whereabouts() {
	local task
	for task in $(processes); do
		grep -hE '^(Name|State):' "/proc/$task/status"
		cat "/proc/$task/task/"*/stack
	done 2>/dev/null
}

bury() {
	signal KILL
	until_within "$WORST_MS" ended || wrong "killed applications stay: $(whereabouts)"
	GROUPS_RUNNING=()
}

# The functions named in WAYS. Each returns when the device is gone.
delete_links() {
	must rdma link del rrxe1
	must rdma link del rrxe2
}

links_deleted() { delete_links; }

netdev_deleted() {
	must ip -n h1 link del eth0
	rm /run/wired
	until_within "$WORST_MS" absent
}

namespace_deleted() {
	must ip netns del h1
	rm /run/wired
	until_within "$WORST_MS" absent
}

module_removed() { must rmmod rrxe; }

# The applications are stopped (SIGSTOP), so they can't close the device.
links_deleted_module_removed() {
	signal STOP
	delete_links
	must rmmod rrxe
	[[ ! -e /sys/module/rrxe ]] || wrong "the module stays"
	signal CONT
}

killed() {
	local left
	signal KILL
	until_within "$WORST_MS" ended || wrong "killed applications stay: $(whereabouts)"
	left=$(rdma resource show | grep -E 'rrxe.* (mr|ctx) [1-9]') && wrong "objects of killed processes: $left"
	delete_links
}

one_link_deleted() { must rdma link del rrxe1; }

# notice LOAD WAY: fails the cycle unless the applications end by themselves once their device is
# gone. ibv_rc_pingpong is excepted, as it only polls its CQ.
notice() {
	[[ $1 != pingpong && $2 != one_link_deleted ]] || return 0
	until_within "$WORST_MS" ended || wrong "applications go on without a device: $(</tmp/applications)"
}

# cycle WAY LOAD: runs one cycle. Stores the time of the removal in ms in TOOK, and errors in WRONG.
cycle() {
	local way=$1 load=$2 began
	WRONG=
	wire_up || wrong "no wire"
	links_up || wrong "no links"
	traffic "$load"
	milliseconds
	began=$REPLY
	$way
	milliseconds
	TOOK=$((REPLY - began))
	[[ $TOOK -le $WORST_MS ]] || wrong "took $TOOK ms"
	if [[ $way == one_link_deleted ]]; then absent1; else absent; fi || wrong "a device stays: $(rdma link)"
	notice "$load" "$way"
	bury
	[[ $way != one_link_deleted ]] || must rdma link del rrxe2
	[[ ! -e /sys/module/rrxe/refcnt || $(</sys/module/rrxe/refcnt) == 0 ]] ||
		wrong "the module is used $(</sys/module/rrxe/refcnt) times"
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

declare -A failures times
for ((number = 0; number < CYCLES; number++)); do
	[[ $HALF -eq 0 || $(((number - WARM_CYCLES) % HALF)) -ne 0 ]] || inventory >"$(printf /tmp/inventory.%04d "$number")"
	way=${WAYS[number % ${#WAYS[@]}]} load=${LOADS[number % ${#LOADS[@]}]}
	cycle "$way" "$load"
	times[$way]+="$TOOK "
	[[ -z $WRONG ]] || {
		note "$way under $load in cycle $number: $WRONG"
		failures[$way]+="cycle $number, $load: $WRONG"
	}
done
[[ $HALF -eq 0 ]] || inventory >"$(printf /tmp/inventory.%04d "$number")"
for way in "${WAYS[@]}"; do
	mapfile -t sorted < <(tr ' ' '\n' <<<"${times[$way]% }" | sort -n)
	usual=${sorted[${#sorted[@]} / 2]}
	[[ $usual -le $USUAL_MS ]] || failures[$way]+="as a rule it takes $usual ms"
	if [[ -z ${failures[$way]:-} ]]; then
		pass "$way under traffic, ${#sorted[@]} times ($usual ms as a rule, ${sorted[-1]} ms at worst)"
	else
		fail "$way under traffic" "${failures[$way]}"
	fi
done
[[ $HALF -gt 0 ]] || exit 0
left=$(compare)
if [[ -z $left ]]; then pass "nothing is left behind"; else fail "nothing is left behind" "$left"; fi
note "$(grep -h -e used_KiB -e pinned -e areas /tmp/inventory.* | tr '\n' ' ')"
