#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# A hostile peer: datagrams that belong to no QP, or are no packets at all.
source "$(dirname "$0")/../lib/guest.sh"
JUNK=$(dirname "$0")/junk.py
readonly STRANGER=10.77.0.3

# A pingpong that goes on until stop; CLIENT is its process, LIVE the number of its QP on host 1.
start() {
	ip netns exec h2 ibv_rc_pingpong -c -d "$DEV2" -g "$(gid_index "$DEV2" $HOST2_V4)" -n 100000000 >/tmp/server 2>&1 &
	SERVER=$!
	wait_for 20 in2 sh -c 'ss -Hltn | grep -q ":18515 "' || return
	ip netns exec h1 ibv_rc_pingpong -c -d "$DEV1" -g "$(gid_index "$DEV1" $HOST1_V4)" -n 100000000 $HOST2_V4 >/tmp/client 2>&1 &
	CLIENT=$!
	moves
}

stop() {
	kill "$CLIENT" "$SERVER"
	wait "$CLIENT" "$SERVER"
}

packets() { cat "/sys/class/infiniband/$DEV1/ports/1/hw_counters/rcvd_pkts"; }

# Packets still go to and fro.
moves() { wait_for 10 more_than "$(packets)"; }
more_than() { [[ $(packets) -gt $1 ]]; }

# dropped REASON [COUNT|COUNT+]: so many (or more) packets were dropped for this reason; any without a COUNT.
dropped() {
	local count
	count=$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/drop_$1")
	echo "dropped for $1: $count"
	if [[ ${2:-} == *+ ]]; then [[ $count -ge ${2%+} ]]; elif [[ -n ${2:-} ]]; then [[ $count -eq $2 ]]; else [[ $count -gt 0 ]]; fi
}

live_qpn() { rdma resource show qp 2>/dev/null | sed -n "s/^link $DEV1.* lqpn \([0-9]*\) .*pid.*/\1/p" | tail -1; }

# Nobody may hear anything from host 1 but his own peer.
silence() {
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
check "what is answered would be seen" wait_for 20 grep -q listening /tmp/tcpdump
check "foreign junk is sent" in2 python3 "$JUNK" foreign $STRANGER $HOST1_V4 "$QPN"
sleep 1
check "nothing of it is answered" silence
in1 ping -c 1 $STRANGER >/dev/null
check "an answer would have been seen" wait_for 20 grep -q "$HOST1_V4 > $STRANGER: ICMP" /tmp/dump
# 20 packets each with IP options, bytes behind the datagram (two ways), and in fragments (junk.py).
check "all unfit IP headers are counted" wait_for 10 dropped ip_header 80
# A stranger's ICRC is not looked at: its address is compared first.
for reason in short opcode pad length no_qp peer; do
	check "some of it is counted as $reason" dropped $reason
done
check "and each with an unknown transport version" dropped version 100+
check "the pingpong still runs" moves
kill $TCPDUMP

check "every opcode, pad and length is sent" in2 python3 "$JUNK" sweep $HOST2_V4 $HOST1_V4 "$QPN"
stop
check "a new pingpong runs" pingpong -n 100

counter() { cat "/sys/class/infiniband/$DEV1/ports/1/hw_counters/drop_$1"; }

# What is no packet, and what a QP doesn't take; some of the latter it has no room for while it is busy.
readonly MALFORMED="short version opcode pad length syndrome"
readonly REFUSED="peer service state pkey qkey no_receive too_long invalid access unasked overflow"

# drops REASON: those so far.
drops() {
	local name total=0 names=$1
	case $1 in
	malformed) names=$MALFORMED ;;
	refused) names=$REFUSED ;;
	esac
	for name in $names; do total=$((total + $(counter "$name"))); done
	echo "$total"
}

# A datagram QP of host 1 in a group, until release: in_group FAMILY.
in_group() { start_holder in1 rrxe-check "$DEV1" "$DEV1" "$1" hold-group; }

# Sends the datagrams that are no good; each is counted for its reason: unfit SOURCE TARGET GROUP.
unfit() {
	local reason rc=0
	local -A before
	for reason in refused malformed icrc no_qp; do before[$reason]=$(drops $reason); done
	in2 python3 "$JUNK" datagrams "$1" "$2" "$(sed -n 's/^attached //p' /tmp/held)" "$3" >/tmp/unfit || return
	wait_for 5 counted || rc=1
	counted
	return $rc
}

# Each line of /tmp/unfit names a reason and how many were sent; the counters have grown by that since `before`.
counted() {
	local reason count grown rc=0
	while read -r reason count; do
		grown=$(($(drops "$reason") - before[$reason]))
		echo "$reason: $count sent, $grown counted"
		[[ $grown -eq $count ]] || rc=1
	done </tmp/unfit
	return $rc
}

# What ibv_query_port says: port NAME.
port() { in1 ibv_devinfo -v -d "$DEV1" | sed -n "s/.*$1:[[:space:]]*//p"; }

# Sends datagrams with wrong keys, each of which is counted as what it is: wrong_keys SOURCE TARGET.
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

# As counted, of /tmp/keys and of what the port tells.
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
	check "IP$family: a datagram QP is in a group" in_group "$family"
	check "IP$family: unfit datagrams for it, for QP1 and for the group are dropped and counted" \
		unfit "$source" "$target" "$group"
	check "IP$family: wrong keys are counted, and told of the port" wrong_keys "$source" "$target"
	check "IP$family: nothing of it arrived, and the QP works" end_holder
done
check "anything at all is sent to QP1" in2 python3 "$JUNK" mads $HOST2_V4 $HOST1_V4 1
check "connections are still made" rping_connects 30
check "a UD pingpong runs" pingpong -T ud -s 1024 -n 100
