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
check "the qdisc of host 1 hardly sends" \
	in1 tc qdisc add dev "$device" root tbf rate 8bit burst 5000 limit 10000000
python3 "$(dirname "$0")/queued_for_ever.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" ||
	fail "queued_for_ever.py exits with status 0" "status $?"
# ARP packets would stay in the queueing discipline, too, so the neighbour entries are permanent.
# add_neighbour HOST ADDRESS PEER: adds a permanent neighbour entry of PEER to HOST.
add_neighbour() {
	ip -n "h$1" neigh replace "$2" dev "$device" nud permanent \
		lladdr "$(ip netns exec "h$3" cat "/sys/class/net/$device/address")"
}
check "host 1 has a permanent neighbour entry of host 2" add_neighbour 1 $HOST2_V4 2
check "host 2 has a permanent neighbour entry of host 1" add_neighbour 2 $HOST1_V4 1
sent() { cat "/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts"; }
has_responded() { [[ $(sent) -ge $((before + 300)) ]]; }
send_requests() {
	before=$(sent)
	check "host 2 sends requests to QP 1, round $1" \
		python3 "$(dirname "$0")/port_counters.py" h2 $HOST2_V4 $HOST1_V4 300
	check "QP 1 responds although no response leaves the host, round $1" \
		wait_for 10 has_responded || note "$(($(sent) - before)) responses"
}
packets_wait() { [[ $(backlog h1 "$device") -ge 300 ]]; }
no_packets_wait() { [[ $(backlog h1 "$device") -eq 0 ]]; }
# QP 1 responds although its first responses stay in the queueing discipline for ever: all users of
# the device depend on QP 1. Threads on both CPUs send the responses, so one CPU hands responses to
# the other, QP 1's tx CPU (`net/tx_cpu.rs`).
for round in {1..8}; do send_requests $round; done
check "link del on host 1 returns while packets wait in the qdisc" link_del 1
check "link on host 2 is deleted" link_del 2
check "packets wait in the qdisc after link del" packets_wait
check "rmmod returns while packets wait in the qdisc" wait_for 20 rmmod rrxe
check "packets still wait in the qdisc after rmmod" packets_wait
# Now a softirq frees the packets.
check "the qdisc gets a rate of 1 Gbit/s" \
	in1 tc qdisc change dev "$device" root tbf rate 1gbit burst 5000 limit 10000000
check "a ping passes the qdisc" in1 ping -c 1 -W 20 $HOST2_V4
check "the packets leave the qdisc without the module" wait_for 20 no_packets_wait

# The same with QPs of a process, which still runs when the module is removed. Here a process frees
# the packets: `tc qdisc del`.
check "the module is loaded again" modprobe rrxe
check "link on host 1, with the module loaded again" link_add 1
check "link on host 2, with the module loaded again" link_add 2
check "the qdisc of host 1 hardly sends again" \
	in1 tc qdisc change dev "$device" root tbf rate 8bit burst 5000 limit 10000000
send_requests 9
check "the QP of a process has packets in the qdisc" \
	start_holder python3 "$(dirname "$0")/queued_for_ever.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" \
	"$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" stay
check "packets of QP 1 and of the process wait in the qdisc" packets_wait
check "rmmod returns while a process has QPs with packets in the qdisc" wait_for 20 rmmod rrxe
check "packets still wait in the qdisc after the second rmmod" packets_wait
check "the qdisc is deleted with its packets" in1 tc qdisc del dev "$device" root
check "the process exits with status 0 after rmmod" end_holder

# A datagram that a program keeps in a queue of netfilter has a reference to the memory of the
# driver's UDP socket, but none to the module.
check "the module is loaded a third time" modprobe rrxe
check "link on host 2, with the module loaded a third time" link_add 2
check "netfilter on host 2 queues a datagram for the driver's UDP socket" \
	start_holder python3 "$(dirname "$0")/netfilter_queue.py" h2 h1 $HOST1_V4
check "link del on host 2 returns while netfilter queues the datagram" link_del 2
check "rmmod returns while netfilter queues the datagram" wait_for 20 rmmod rrxe
check "the datagram is accepted after its socket was closed" end_holder
