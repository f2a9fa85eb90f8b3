#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=300
# Tests an attachment to a multicast group whose network device is replaced halfway.
#
# A process that attaches a QP to a multicast group is preempted after the network device has joined
# the group, and before the driver enters the group in its table. Meanwhile the network device is
# deleted, another one gets the same index, and a QP of a link on that one attaches to the group.
# The attachment of the first QP must fail with EBUSY (multicast_race.py).
source "$(dirname "$0")/../lib/guest.sh"
readonly INDEX=500

# make_link LINK: creates the dummy device d0 with the index INDEX, and a link on it.
make_link() {
	ip link add d0 index $INDEX type dummy && ip addr add 10.9.0.1/24 dev d0 && ip link set d0 up &&
		rdma link add "$1" type rrxe netdev d0
}

check "the module loads" modprobe rrxe
# Let a real-time thread keep CPU 0 busy for ever, so that the attaching process stays preempted.
echo -1 >/proc/sys/kernel/sched_rt_runtime_us
echo 0 >/sys/kernel/debug/sched/fair_server/cpu0/runtime
taskset -cp 1 $$ >/dev/null
check "a link on a dummy device" make_link r0
export -f make_link
export INDEX
python3 "$(dirname "$0")/multicast_race.py" || fail "multicast_race.py exits with status 0" "status $?"
check "the RDMA device of the deleted network device is removed" \
	wait_for 20 bash -c '! rdma link | grep -q r0/'
check "the link on the new network device is deleted" patiently 30 rdma link del r1
check "the module is removed" patiently 30 rmmod rrxe
