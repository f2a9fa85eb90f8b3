#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=420
# Ten thousand memory regions, CQs and QPs in one process, and connections that come and go by the
# thousand: what they cost in memory and time, and that nothing of it stays.
source "$(dirname "$0")/lib.sh"
: "${OBJECTS:=10000}" "${CONNECTIONS:=1000}"
PROGRAM_SECONDS=200

# KiB of memory that the kernel uses for itself, once it has given back what it can.
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

# stays NAME LIMIT-KIB BEFORE AFTER: less than LIMIT more is used after than before.
stays() {
	note "$1: $3 KiB before, $4 KiB after"
	if [[ $(($4 - $3)) -lt $2 ]]; then pass "$1"; else fail "$1" "$(($4 - $3)) KiB more"; fi
}

# within NAME SECONDS COMMAND...
within() {
	local name=$1 limit=$2 start=$SECONDS
	shift 2
	check "$name" "$@"
	note "$OUTPUT"
	note "$((SECONDS - start)) s in all"
	[[ $((SECONDS - start)) -le $limit ]] || fail "$name in $limit s" "it took $((SECONDS - start)) s"
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2

# The kernel's caches grow the first time; what grows the second time is not given back.
within "$OBJECTS objects of each kind" 120 rrxe-scale objects "$DEV1" "$OBJECTS"
check "some connections" rrxe-scale connections "$DEV1" "$DEV2" 50
before=$(kernel_memory)
within "$OBJECTS objects of each kind, left to the end of the process" 120 \
	rrxe-scale objects "$DEV1" "$OBJECTS" leave
stays "nothing of them stays" 1024 "$before" "$(kernel_memory)"
before=$(kernel_memory)
within "$CONNECTIONS connections" 60 rrxe-scale connections "$DEV1" "$DEV2" "$CONNECTIONS"
stays "nothing of the connections stays" 512 "$before" "$(kernel_memory)"
check "as many address handles as there may be" rrxe-scale handles "$DEV1"
