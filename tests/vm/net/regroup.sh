#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=300
# A process that attaches to a multicast group is preempted between the network device's join and the entry of the group. Meanwhile
# the network device goes, another one gets its index, and a QP of that one's link attaches to the group.
source "$(dirname "$0")/../lib/guest.sh"
readonly INDEX=500

# A dummy of that index, with a link.
make_link() {
	ip link add d0 index $INDEX type dummy && ip addr add 10.9.0.1/24 dev d0 && ip link set d0 up &&
		rdma link add "$1" type rrxe netdev d0
}

check "the module" modprobe rrxe
# A thread of a real-time class keeps CPU 0 from the process.
echo -1 >/proc/sys/kernel/sched_rt_runtime_us
echo 0 >/sys/kernel/debug/sched/fair_server/cpu0/runtime
taskset -cp 1 $$ >/dev/null
check "a link" make_link r0
export -f make_link
export INDEX
python3 "$(dirname "$0")/regroup.py" || fail "regroup.py ends well" "status $?"
check "the first device is gone" wait_for 20 bash -c '! rdma link | grep -q r0/'
check "the other link goes" patiently 30 rdma link del r1
check "the module goes" patiently 30 rmmod rrxe
