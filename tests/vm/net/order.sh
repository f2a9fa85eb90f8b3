#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: vcpus=3 timeout=400
# Tests that packets of a QP stay in order, whichever CPUs post, receive and respond.
#
# order.py uses two transmit queues, one of them slow, so that packets of the other could overtake;
# and a CPU that receives slowly. Then perftest runs over plain veth devices, which have a backlog
# queue for each sending CPU. Two hosts are connected by a veth pair with three queues.
source "$(dirname "$0")/../lib/guest.sh"

# Gives eth0 one transmit queue for CPU 0 and one for CPU 1, which lets 25 KB pass in a second.
# Leaves the third queue unchanged. Called by `in1 bash`.
slow_queue() {
	local cpu
	for cpu in 0 1; do
		echo $((1 << cpu)) >/sys/class/net/eth0/queues/tx-$cpu/xps_cpus || return
	done
	tc qdisc add dev eth0 root handle 1: mq &&
		tc qdisc add dev eth0 parent 1:1 pfifo limit 1000 &&
		tc qdisc add dev eth0 parent 1:2 tbf rate 200kbit burst 2000 limit 1000000
}
export -f slow_queue

out_of_sequence() { cat /sys/class/infiniband/{"$DEV1","$DEV2"}/ports/1/hw_counters/out_of_seq_request; }

# in_order TIMES PROGRAM ARGUMENT...: runs perftest, and succeeds if no packet was out of sequence.
# If each packet left from the CPU that posts it, a run over RC would have a hundred packets out of
# sequence, and one over UC about ten. The number of messages is at most the number of receives that
# perftest posts in advance: after a missing receive, the following packets would be out of
# sequence, too.
in_order() {
	local times=$1 before after time
	shift
	before=$(out_of_sequence)
	for ((time = 0; time < times; time++)); do
		perftest "$@" || {
			grep -rHv '^0$' /sys/class/infiniband/{"$DEV1","$DEV2"}/ports/1/hw_counters
			return 1
		}
	done
	after=$(out_of_sequence)
	[[ $after == "$before" ]] || {
		echo "packets out of sequence, host 1 and 2: $before; after $times times: $after"
		return 1
	}
}

check "two hosts" hosts_up 4200 3
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "host 1 has a fast and a slow transmit queue" in1 bash -c slow_queue
python3 "$(dirname "$0")/order.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$DEV2" "$(gid_index "$DEV2" $HOST2_V4)" ||
	fail "order.py exits with status 0" "status $?"
check "host 1 has no slow transmit queue" in1 tc qdisc del dev eth0 root
check "UC SEND both ways: no packet is out of sequence" \
	in_order 3 ib_send_bw -c UC -b -e -m 2048 -s 4101 -n 500
check "UC WRITE both ways: no packet is out of sequence" \
	in_order 1 ib_write_bw -c UC -b -m 2048 -s 4101 -n 500
check "RC SEND both ways: no packet is out of sequence" \
	in_order 1 ib_send_bw -b -e -m 1024 -s 4101 -n 500
check "RC WRITE both ways: no packet is out of sequence" \
	in_order 1 ib_write_bw -b -m 1024 -s 4101 -n 500
check "RC READ both ways: no packet is out of sequence" \
	in_order 1 ib_read_bw -b -m 1024 -s 4101 -n 500
