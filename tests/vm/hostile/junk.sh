#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Tests that the driver drops and counts invalid packets, that it does not answer them, and that
# they disturb no QP. Host 2 sends them to host 1 over a veth pair (junk.py): malformed packets,
# packets for no QP, packets of a stranger (another address of host 2 than the peer's), wrong keys,
# and random MADs.
source "$(dirname "$0")/../lib/guest.sh"
JUNK=$(dirname "$0")/junk.py
readonly STRANGER=10.77.0.3

# Starts a pingpong that runs until `stop`. CLIENT is its process on host 1.
start() {
	local index1 index2
	index1=$(gid_index "$DEV1" $HOST1_V4) index2=$(gid_index "$DEV2" $HOST2_V4)
	ip netns exec h2 ibv_rc_pingpong -c -d "$DEV2" -g "$index2" -n 100000000 >/tmp/server 2>&1 &
	SERVER=$!
	wait_for 20 in2 sh -c 'ss -Hltn | grep -q ":18515 "' || return
	ip netns exec h1 ibv_rc_pingpong -c -d "$DEV1" -g "$index1" -n 100000000 $HOST2_V4 \
		>/tmp/client 2>&1 &
	CLIENT=$!
	receives_packets
}

stop() {
	kill "$CLIENT" "$SERVER"
	wait "$CLIENT" "$SERVER"
}

packets() { cat "/sys/class/infiniband/$DEV1/ports/1/hw_counters/rcvd_pkts"; }

# Fails unless host 1 receives more packets.
receives_packets() { wait_for 10 more_than "$(packets)"; }
more_than() { [[ $(packets) -gt $1 ]]; }

# dropped REASON [COUNT|COUNT+]: succeeds if host 1 has dropped COUNT packets for this reason, at
# least COUNT (COUNT+), or at least one (without COUNT).
dropped() {
	local count
	count=$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/drop_$1")
	echo "dropped for $1: $count"
	if [[ ${2:-} == *+ ]]; then
		[[ $count -ge ${2%+} ]]
	elif [[ -n ${2:-} ]]; then
		[[ $count -eq $2 ]]
	else
		[[ $count -gt 0 ]]
	fi
}

# The number of the pingpong's QP on host 1.
live_qpn() {
	rdma resource show qp 2>/dev/null |
		sed -n "s/^link $DEV1.* lqpn \([0-9]*\) .*pid.*/\1/p" | tail -1
}

# Fails if host 1 has sent a packet to the stranger's address.
no_answer() {
	! grep -q "$HOST1_V4.* > $STRANGER" /tmp/dump || {
		cat /tmp/dump
		return 1
	}
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
ip -n h2 addr add $STRANGER/24 dev eth0
check "a pingpong runs" start
QPN=$(printf '%x' "$(live_qpn)")
note "live QP 0x$QPN"

ip netns exec h2 tcpdump -lnni eth0 "dst host $STRANGER and not arp" >/tmp/dump 2>/tmp/tcpdump &
TCPDUMP=$!
check "tcpdump captures packets to the stranger" wait_for 20 grep -q listening /tmp/tcpdump
check "invalid packets are sent from the stranger's address" \
	in2 python3 "$JUNK" foreign $STRANGER $HOST1_V4 "$QPN"
sleep 1
check "no invalid packet is answered" no_answer
in1 ping -c 1 $STRANGER >/dev/null
check "tcpdump would have captured an answer" \
	wait_for 20 grep -q "$HOST1_V4 > $STRANGER: ICMP" /tmp/dump
# junk.py sends 20 packets each with IP options, with bytes behind the UDP datagram, with a UDP
# length that is too short, and in fragments.
check "each packet with an invalid IP or UDP header is counted" wait_for 10 dropped ip_header 80
# No packet of the stranger counts as `icrc`: rrxe compares a packet's source address before its
# ICRC.
for reason in short opcode pad length no_qp peer; do
	check "invalid packets are counted as $reason" dropped $reason
done
check "each packet with an unknown transport version is counted" dropped version 100+
check "the pingpong still runs after the invalid packets" receives_packets
kill $TCPDUMP

check "packets of each opcode and pad, with many lengths, are sent" \
	in2 python3 "$JUNK" sweep $HOST2_V4 $HOST1_V4 "$QPN"
stop
check "a new pingpong runs after these packets" pingpong -n 100

counter() { cat "/sys/class/infiniband/$DEV1/ports/1/hw_counters/drop_$1"; }

# Reasons to drop a malformed packet, and reasons for which a QP refuses a packet. `overflow` is
# among the latter, because a busy QP's inbox (queue of received packets) may have no room.
readonly MALFORMED="short version opcode pad length syndrome"
readonly REFUSED="peer service state pkey qkey no_receive too_long invalid access unasked overflow"

# drops REASON: the number of packets dropped so far for the reason, or for all of `malformed` or
# `refused`.
drops() {
	local name total=0 names=$1
	case $1 in
	malformed) names=$MALFORMED ;;
	refused) names=$REFUSED ;;
	esac
	for name in $names; do total=$((total + $(counter "$name"))); done
	echo "$total"
}

# in_group FAMILY: makes a UD QP of host 1 that is attached to a multicast group until `end_holder`.
in_group() { start_holder in1 rrxe-check "$DEV1" "$DEV1" "$1" hold-group; }

# invalid_datagrams SOURCE TARGET GROUP: sends invalid datagrams, and succeeds if each was counted
# for its reason.
invalid_datagrams() {
	local reason rc=0 qpn
	local -A before
	for reason in refused malformed icrc no_qp; do before[$reason]=$(drops $reason); done
	qpn=$(sed -n 's/^attached //p' /tmp/held)
	in2 python3 "$JUNK" datagrams "$1" "$2" "$qpn" "$3" >/tmp/sent || return
	wait_for 5 counted || rc=1
	counted
	return $rc
}

# Each line of /tmp/sent has a reason and the number of packets sent for it. Succeeds if the
# counters have grown by these numbers since `before`.
counted() {
	local reason count grown rc=0
	while read -r reason count; do
		grown=$(($(drops "$reason") - before[$reason]))
		echo "$reason: $count sent, $grown counted"
		[[ $grown -eq $count ]] || rc=1
	done </tmp/sent
	return $rc
}

# port NAME: the value of a port attribute, by ibv_query_port().
port() { in1 ibv_devinfo -v -d "$DEV1" | sed -n "s/.*$1:[[:space:]]*//p"; }

# wrong_keys SOURCE TARGET: sends datagrams with wrong keys, and succeeds if each was counted for
# the kind of its wrong key.
wrong_keys() {
	local reason rc=0
	local -A before
	for reason in qkey pkey; do before[$reason]=$(counter $reason); done
	before[qkey_viol_cntr]=$(port qkey_viol_cntr) before[bad_pkey_cntr]=$(port bad_pkey_cntr)
	in2 python3 "$JUNK" keys "$1" "$2" "$(sed -n 's/^attached //p' /tmp/held)" >/tmp/keys || return
	wait_for 5 keys_counted || rc=1
	keys_counted
	[[ $(wc -l </tmp/keys) -eq 2 ]] && return $rc
}

# As counted, for /tmp/keys. The violation counters of ibv_query_port() must have grown as well.
keys_counted() {
	local reason count told rc=0
	while read -r reason count; do
		case $reason in
		qkey) told=qkey_viol_cntr ;;
		pkey) told=bad_pkey_cntr ;;
		esac
		echo "$reason: $count sent, $(($(counter "$reason") - before[$reason])) counted, port: $(port $told)"
		[[ $(($(counter "$reason") - before[$reason])) -eq $count && $(($(port $told) - before[$told])) -eq $count ]] || rc=1
	done </tmp/keys
	return $rc
}

for words in "v4 $STRANGER $HOST1_V4 239.77.1.9" "v6 $HOST2_V6 $HOST1_V6 ff0e::7709"; do
	read -r family source target group <<<"$words"
	check "IP$family: a UD QP is attached to a multicast group" in_group "$family"
	check "IP$family: invalid datagrams to a UD QP, QP1 and a group are dropped and counted" \
		invalid_datagrams "$source" "$target" "$group"
	check "IP$family: datagrams with wrong keys are counted, also by ibv_query_port()" \
		wrong_keys "$source" "$target"
	check "IP$family: the UD QP received none of these datagrams, and still works" end_holder
done
check "random MADs are sent to QP1" in2 python3 "$JUNK" mads $HOST2_V4 $HOST1_V4 1
check "librdmacm connects after QP1 has received random MADs" rping_connects 30
check "a UD pingpong runs after QP1 has received random MADs" pingpong -T ud -s 1024 -n 100
