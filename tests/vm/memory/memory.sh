#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=240
# Runs the tests of memory regions, completion queues and mapped rings. Host 1 (a network namespace)
# has the only link. QPs of its device are connected to each other.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "80 huge pages" \
	sh -c 'echo 80 >/proc/sys/vm/nr_hugepages && test "$(cat /proc/sys/vm/nr_hugepages)" = 80'
for script in memory regions completions; do
	python3 "$(dirname "$0")/$script.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
		fail "$script.py exits with status 0" "status $?"
done
echo 0 >/proc/sys/vm/nr_hugepages
