#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=120
# Runs the tests of regions over DMA-BUFs, once with librxe and once with librrxe. Host 1 (a network
# namespace) has the only link. QPs of its device are connected to each other.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "8 huge pages" wait_for 20 huge_pages
for driver in "" rrxe; do
	echo "# through lib${driver:-rxe}"
	env ${driver:+"RDMAV_DRIVERS=$driver"} \
		python3 "$(dirname "$0")/dmabuf.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" ||
		fail "dmabuf.py through lib${driver:-rxe} exits with status 0" "status $?"
done
echo 0 >/proc/sys/vm/nr_hugepages
