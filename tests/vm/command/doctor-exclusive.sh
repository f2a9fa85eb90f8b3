#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=120
# vm-debug: skip The script tests a program of user space.
# Tests `rrxe doctor` while each RDMA device belongs to one network namespace.
source "$(dirname "$0")/../lib/guest.sh"
source "$(dirname "$0")/lib.sh"

modprobe ib_core
# ib_core refuses to change the mode while there are namespaces other than the initial one.
check "exclusive mode can be set" rdma system set netns exclusive
check "two hosts" hosts_up 1500
check "link on host 2" in2 rrxe add rrxe2 eth0
check "a link that the namespace hides" finds 1 "links of other namespaces are hidden" "rrxe add rrxe0" doctor
check "link on host 1" in1 rrxe add rrxe1 eth0
check "no fault is found on host 1" doctor
check "no fault is found on host 2" in2 rrxe doctor
check "no fault is found on the path to host 2" doctor --wait $((15 * LIMIT_FACTOR)) $HOST2_V4
check "link on host 1 is deleted" in1 rrxe del rrxe1
check "link on host 2 is deleted" in2 rrxe del rrxe2
hosts_down
check "shared mode can be set again" wait_for 30 rdma system set netns shared
