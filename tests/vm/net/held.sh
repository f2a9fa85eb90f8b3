#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Tests packets that stay in a queueing discipline, or in a queue of netfilter, for ever. They delay
# neither the flush of their QP nor the removal of the link and the module, they cost no CPU time,
# and QP 1 goes on sending. They leave after the module has been removed.
#
# Two hosts are connected by a veth pair. The queueing discipline of host 1's eth0 is a token bucket
# filter of 8 bit/s.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
device=$(in1 ip -o link show up | sed -n 's/^[0-9]*: \([^:@]*\)[:@].*/\1/p' | grep -vx lo | head -1)
check "link on host 1" link_add 1
check "link on host 2" link_add 2
# At 8 bit/s, a packet of 4 KiB takes more than an hour.
check "a queue that hardly sends" in1 tc qdisc add dev "$device" root tbf rate 8bit burst 5000 limit 10000000
python3 "$(dirname "$0")/held.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" ||
	fail "held.py ends well" "status $?"
# QP 1 responds although its first responses stay in the queueing discipline for ever: all users of
# the device depend on QP 1. Threads on both CPUs send the responses, so one CPU hands responses to
# the other, QP 1's tx CPU. ARP packets would stay in the queueing discipline, too, so the neighbour
# entries are permanent.
knows() { ip -n "h$1" neigh replace "$2" dev "$device" lladdr "$(ip netns exec "h$3" cat "/sys/class/net/$device/address")" nud permanent; }
check "host 1 knows host 2" knows 1 $HOST2_V4 2
check "host 2 knows host 1" knows 2 $HOST1_V4 1
sent() { cat "/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts"; }
answers() { [[ $(sent) -ge $((before + 300)) ]]; }
ask() {
	before=$(sent)
	check "host 2 asks QP 1" python3 "$(dirname "$0")/asks.py" h2 $HOST2_V4 $HOST1_V4 300
	check "QP 1 answers, though no answer leaves, round $1" wait_for 10 answers || note "$(($(sent) - before)) answers"
}
wait_there() { [[ $(backlog h1 "$device") -ge 300 ]]; }
none_wait() { [[ $(backlog h1 "$device") -eq 0 ]]; }
for round in {1..8}; do ask $round; done
check "link on host 1 goes" link_del 1
check "link on host 2 goes" link_del 2
check "packets wait" wait_there
check "the module goes meanwhile" wait_for 20 rmmod rrxe
check "packets still wait" wait_there
# Now a softirq frees the packets.
check "the queue sends" in1 tc qdisc change dev "$device" root tbf rate 1gbit burst 5000 limit 10000000
check "another packet starts it" in1 ping -c 1 -W 20 $HOST2_V4
check "the packets go" wait_for 20 none_wait

# The same with QPs of a process, which still runs when the module is removed. Here a process frees
# the packets: `tc qdisc del`.
check "the module again" modprobe rrxe
check "link on host 1 again" link_add 1
check "link on host 2 again" link_add 2
check "the queue hardly sends again" in1 tc qdisc change dev "$device" root tbf rate 8bit burst 5000 limit 10000000
ask 9
check "a process has packets there, too" hold python3 "$(dirname "$0")/held.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" \
	"$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" stay
check "packets wait again" wait_there
check "the module goes meanwhile again" wait_for 20 rmmod rrxe
check "packets still wait, without their module" wait_there
check "the queue goes" in1 tc qdisc del dev "$device" root
check "the process ends" release

# A datagram that a program keeps in a queue of netfilter has a reference to the memory of the
# driver's UDP socket, but none to the module.
check "the module once more" modprobe rrxe
check "link on host 2 once more" link_add 2
check "a program queues a datagram" hold python3 "$(dirname "$0")/queued.py" h2 h1 $HOST1_V4
check "link on host 2 goes once more" link_del 2
check "the module goes meanwhile" wait_for 20 rmmod rrxe
check "the datagram goes on, to a socket that is closed" release
