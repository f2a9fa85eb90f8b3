#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=200
# Tracepoints: rrxe's events of a transfer over a wire that loses packets (netem) agree with the
# counters, and have the right fields. Events of dropped packets name the counter. Topology: two
# hosts over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
readonly TRACE=/sys/kernel/tracing MESSAGES=100 SIZE=10000
mountpoint -q $TRACE || mount -t tracefs none $TRACE

counter() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"; }
equal() { [[ $1 == "$2" ]] || { echo "is \"$1\", not \"$2\""; return 1; }; }
# lines PATTERN: prints the number of lines in the recorded trace that match.
lines() { grep -Ec -- "$1" /tmp/trace; }
has() { [[ $(lines "$1") -gt 0 ]] || { echo "no \"$1\" in:"; tail -n 30 /tmp/trace; return 1; }; }
# record COMMAND...: runs the command with all of rrxe's events on, and stores the trace in
# /tmp/trace.
record() {
	echo >$TRACE/trace
	echo 1 >$TRACE/events/rrxe/enable
	"$@"
	local rc=$?
	echo 0 >$TRACE/events/rrxe/enable
	grep -v '^#' $TRACE/trace >/tmp/trace
	return $rc
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
for event in packet_in packet_out retransmit drop nak_in nak_out qp_state; do
	check "the tracepoint rrxe:rrxe_$event exists" test -d $TRACE/events/rrxe/rrxe_$event
done
echo 16384 >$TRACE/buffer_size_kb
check "netem makes the wire lose packets" netem "loss 3%"
sleep 0.1
declare -A before
for device in "$DEV1" "$DEV2"; do
	for name in sent_pkts rcvd_pkts completer_retry_err rcvd_seq_err; do before[$device/$name]=$(counter "$device" $name); done
done
# The ends of ib_send_lat synchronise over TCP before they destroy their QPs. So no end waits for an
# acknowledgment by a QP that is gone.
check "ib_send_lat runs over the lossy wire with all events on" \
	record perftest ib_send_lat -n $MESSAGES -s $SIZE -m 1024
sleep 0.1
grew() { echo $(($(counter "$1" "$2") - before[$1/$2])); }
for device in "$DEV1" "$DEV2"; do
	check "$device: there is a packet_out event for each packet in sent_pkts" \
		equal "$(lines "rrxe_packet_out: $device ")" "$(grew "$device" sent_pkts)"
	check "$device: there is a packet_in event for each packet in rcvd_pkts" \
		equal "$(lines "rrxe_packet_in: $device ")" "$(grew "$device" rcvd_pkts)"
	check "$device: there is a nak_in event for each NAK in rcvd_seq_err" \
		test "$(lines "rrxe_nak_in: $device .* NAK code=0\$")" -ge "$(grew "$device" rcvd_seq_err)"
	# The states of the QP from its creation to its destruction, as verbs set them.
	states=$(sed -n "s/.*rrxe_qp_state: $device qpn=[0-9]* //p" /tmp/trace | paste -sd,)
	check "$device: there is a qp_state event for each change of the QP's state" \
		equal "$states" "RESET -> INIT,INIT -> RTR,RTR -> RTS"
done
lost=$(($(lines "rrxe_packet_out") - $(lines "rrxe_packet_in")))
note "$(lines rrxe_packet_out) packets, $lost lost, $(lines rrxe_retransmit) sent again, $(lines rrxe_nak_in) NAKs"
check "the wire has lost packets" test $lost -gt 0
check "there are retransmit events with all fields" \
	has "rrxe_retransmit: rrxe[12] qpn=[0-9]+ dest=[0-9]+ RC SEND_(FIRST|MIDDLE|LAST|ONLY) psn=[0-9]+ length=[0-9]+"
check "each retransmit event belongs to a packet_out event" \
	equal "$(sed -n 's/.*rrxe_retransmit: //p' /tmp/trace | sort -u | wc -l)" \
	"$(grep -Fof <(sed -n 's/.*rrxe_retransmit: //p' /tmp/trace | sort -u) <(grep rrxe_packet_out /tmp/trace) | sort -u | wc -l)"

# The fields of the events of one message: opcodes, PSNs and lengths of its packets.
qpn=$(sed -n "s/.*rrxe_qp_state: $DEV1 qpn=\([0-9]*\) RESET.*/\1/p" /tmp/trace)
peer=$(sed -n "s/.*rrxe_qp_state: $DEV2 qpn=\([0-9]*\) RESET.*/\1/p" /tmp/trace)
first=$(grep -m1 "rrxe_packet_out: $DEV1 qpn=$qpn dest=$peer RC SEND_FIRST" /tmp/trace | sed 's/.*psn=\([0-9]*\).*/\1/')
check "packet_out of a message's first packet has its PSN and length" \
	has "rrxe_packet_out: $DEV1 qpn=$qpn dest=$peer RC SEND_FIRST psn=$first length=1024"
check "packet_out of a message's middle packet has its PSN and length" \
	has "rrxe_packet_out: $DEV1 qpn=$qpn dest=$peer RC SEND_MIDDLE psn=$(((first + 1) & 0xffffff)) length=1024"
check "packet_out of a message's last packet has its PSN and length" \
	has "rrxe_packet_out: $DEV1 qpn=$qpn dest=$peer RC SEND_LAST psn=$(((first + 9) & 0xffffff)) length=$((SIZE - 9 * 1024))"
check "packet_in of a message's last packet has its PSN and length" \
	has "rrxe_packet_in: $DEV2 qpn=$peer dest=$peer RC SEND_LAST psn=$(((first + 9) & 0xffffff)) length=$((SIZE - 9 * 1024))"
netem_off

# Events of dropped packets, which contain the name of the drop counter.
dropped=$(counter "$DEV1" drop_short)
send_junk() {
	in2 bash -c "for i in 1 2 3; do printf junk >/dev/udp/$HOST1_V4/4791; done" &&
		wait_for 5 short_drops_reach 3
}
short_drops_reach() { [[ $(counter "$DEV1" drop_short) -ge $((dropped + $1)) ]]; }
check "UDP datagrams that are no RoCE packets are dropped" record send_junk
check "drop events name the counter drop_short" \
	equal "$(lines 'rrxe_drop: - qpn=0 psn=0 drop_short')" 3
check "the counter drop_short agrees with the drop events" \
	equal "$(counter "$DEV1" drop_short)" $((dropped + 3))
check "pingpong runs with all events off" pingpong -n 10
check "events that are off write nothing to the trace" \
	test "$(grep -vc '^#' $TRACE/trace)" -eq "$(wc -l </tmp/trace)"
