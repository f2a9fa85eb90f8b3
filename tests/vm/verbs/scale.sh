#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=480
# Tests that many objects and connections take limited time, and that their memory is freed: ten
# thousand memory regions, CQs and QPs in one process, and a thousand connections between two hosts,
# which a veth pair connects. On the debug kernel the numbers are lower. The limits of a device
# (limits.py) and the number of objects that a user may have (rrxe-scale) are tested as well.
# Settings of the environment, with their defaults:
#
#   OBJECTS      number of objects of each kind (10000; 500 on the debug kernel)
#   CONNECTIONS  number of connections (1000; 50 on the debug kernel)
#   LIMITS       kinds of objects, separated by commas. For each kind, a user creates as many
#                objects as its limit allows (ah; none on the debug kernel)
source "$(dirname "$0")/../lib/guest.sh"
[[ -z $DEBUG_KERNEL ]] || : "${OBJECTS:=500}" "${CONNECTIONS:=50}" "${LIMITS=}"
: "${OBJECTS:=10000}" "${CONNECTIONS:=1000}" "${LIMITS=ah}"
PROGRAM_SECONDS=200

# The memory in KiB that the kernel uses for itself, after it has dropped its caches.
kernel_memory() {
	local field value sum=0
	sync
	echo 3 >/proc/sys/vm/drop_caches
	sleep 2
	echo 3 >/proc/sys/vm/drop_caches
	while read -r field value _; do
		case $field in
		Slab: | VmallocUsed: | KernelStack: | PageTables: | Percpu:) sum=$((sum + value)) ;;
		esac
	done </proc/meminfo
	echo $sum
}

# returns_all NAME LIMIT-KIB COMMAND...: passes if the kernel's memory has grown by less than
# LIMIT-KIB after the command, in one of six tries. The rest of the machine takes and frees memory
# at times, but a leak shows in each try.
returns_all() {
	local name=$1 limit=$2 before after
	shift 2
	# On the debug kernel KASAN keeps freed memory, and kmemleak detects leaks.
	[[ -z $DEBUG_KERNEL ]] || {
		"$@"
		return
	}
	for _ in {1..6}; do
		before=$(kernel_memory)
		"$@"
		after=$(kernel_memory)
		note "$name: $before KiB before, $after KiB after"
		if [[ $((after - before)) -lt $limit ]]; then
			pass "$name"
			return
		fi
	done
	fail "$name" "$((after - before)) KiB more, the sixth time"
}

# The numbers of objects of both devices, by `rdma resource`.
resources() { rdma resource show | grep -E "$DEV1:|$DEV2:"; }
same_resources() { [[ $(resources) == "$1" ]]; }

# Replaces the condition on which run_server_and_client starts the client: cmtime listens by librdmacm.
_listening() { _cm_listening; }

# by_manager COUNT: cmtime, a program of librdmacm, sets up and tears down COUNT connections at a
# time.
by_manager() {
	run_server_and_client cmtime -b $HOST2_V4 -c "$1" -- cmtime -s $HOST2_V4 -b $HOST1_V4 -c "$1"
}

in_a_minute() {
	local start=$SECONDS
	"$@" && [[ $((SECONDS - start)) -le $((60 * LIMIT_FACTOR)) ]]
}

# within NAME SECONDS COMMAND...: fails if the command takes longer than SECONDS times LIMIT_FACTOR.
# SECONDS suffice on a quiet machine.
within() {
	local name=$1 limit=$(($2 * LIMIT_FACTOR)) start=$SECONDS
	shift 2
	check "$name" "$@"
	note "$OUTPUT"
	note "$((SECONDS - start)) s in all"
	[[ $((SECONDS - start)) -le $limit ]] || fail "$name in $limit s" "it took $((SECONDS - start)) s"
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2

objects_until_exit() {
	within "$OBJECTS objects of each kind are created, and destroyed at exit" 120 \
		rrxe-scale objects "$DEV1" "$OBJECTS" leave
}

connections() {
	within "$CONNECTIONS pairs of QPs are connected" 60 \
		rrxe-scale connections "$DEV1" "$DEV2" "$CONNECTIONS"
}

cm_connections() {
	local start=$SECONDS
	check "$CONNECTIONS connections are made by librdmacm in time" \
		in_a_minute by_manager "$CONNECTIONS"
	note "$((CONNECTIONS * 60 / (SECONDS - start + 1))) a minute"
	check "all objects of librdmacm's connections are destroyed" \
		wait_for 20 same_resources "$resources_before"
}

# The kernel's caches grow during the first run. If memory grows during each later run, it leaks.
within "$OBJECTS objects of each kind are created and destroyed" 120 \
	rrxe-scale objects "$DEV1" "$OBJECTS"
check "50 pairs of QPs are connected" rrxe-scale connections "$DEV1" "$DEV2" 50
returns_all "the memory of objects is freed" 512 objects_until_exit
returns_all "the memory of connected QPs is freed" 512 connections
# As with the objects, the first run is not measured.
check "$CONNECTIONS connections are made by librdmacm" by_manager "$CONNECTIONS"
resources_before=$(resources)
returns_all "the memory of librdmacm's connections is freed" 512 cm_connections
# RRXE_ENV=LIMITS=ah,mw,pd tests all kinds for which the memory suffices, in some minutes.
for kind in ${LIMITS//,/ }; do
	check "a user can create as many objects of kind $kind as the user's limit, and no more" \
		rrxe-scale limit "$DEV1" "$kind"
done
link_del 2
check "link of the C driver on host 2" link_add 2 rxe
python3 "$(dirname "$0")/limits.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$DEV2" ||
	fail "limits.py exits with status 0" "status $?"
