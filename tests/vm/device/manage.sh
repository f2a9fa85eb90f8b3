#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=300
# Management: attributes of the device and the port, restrack objects, counters of ports and of QPs,
# and performance management, as sysfs, rdma, ibv_devinfo and ib_umad show them. The counters are
# compared with the traffic that the script itself causes. Topology: two hosts over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
PY=$LIB/manage.py

readonly MESSAGES=40 SIZE=3000
readonly RXE_NAMES=(sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err send_rnr_err
	rcvd_seq_err ack_deferred retry_exceeded_err retry_rnr_exceeded_err completer_retry_err send_err
	link_downed rdma_sends rdma_recvs sent_bytes rcvd_bytes)

sysfs() { cat "/sys/class/infiniband/$1/$2"; }
counter() { sysfs "$1" "ports/1/hw_counters/$2"; }
is() { [[ $1 == "$2" ]] || { echo "is \"$1\", not \"$2\""; return 1; }; }
# check_output NAME COMMAND...: as check. Stores the output as one line in SEEN, which `output_has`
# and `output_lacks` search.
check_output() {
	check "$@"
	SEEN=$(tr -s ' \n\t' ' ' <<<"$OUTPUT")
}
output_has() { grep -Eq -- "$1" <<<"$SEEN" || { echo "no \"$1\" in: $SEEN"; return 1; }; }
output_lacks() { ! grep -E -- "$1" <<<"$SEEN"; }

# remember DEVICE: stores the device's counters for `grew` and `bytes_grew`.
declare -A BEFORE
remember() {
	local file
	for file in /sys/class/infiniband/"$1"/ports/1/hw_counters/*; do BEFORE[$1/${file##*/}]=$(<"$file"); done
}
# grew DEVICE COUNTER NUMBER: succeeds if the counter has grown by NUMBER since `remember`.
grew() { is $(($(counter "$1" "$2") - BEFORE[$1/$2])) "$3"; }
# has_retransmitted DEVICE: succeeds if the device has retransmitted packets since `remember`, as
# happens if the host is too busy to acknowledge in time.
has_retransmitted() {
	local name
	for name in completer_retry_err rto_resends; do
		[[ $(counter "$1" $name) -le ${BEFORE[$1/$name]} ]] || return 0
	done
	return 1
}
# bytes_grew DEVICE sent|rcvd SENDER: succeeds if the counter of bytes has grown by those of all
# messages since `remember`. More is allowed if SENDER has retransmitted packets.
bytes_grew() {
	local more=$(($(counter "$1" "$2_bytes") - BEFORE[$1/$2_bytes] - MESSAGES * SIZE))
	[[ $more -eq 0 ]] || { [[ $more -gt 0 ]] && has_retransmitted "$3"; } || is $more 0
}
sends_exceed() { [[ $(counter "$DEV1" rdma_sends) -gt $1 ]]; }
# ib_core reads counters at most once in some milliseconds, and shows the old values in between.
settle() { sleep 0.1; }

# connected COUNT: succeeds if COUNT RC QPs of host 1 are in RTS. QP1 is in RTS, too, but not an RC
# QP.
connected() { is "$(rdma resource show qp link "$DEV1/1" | grep -c 'type RC state RTS')" "$1"; }
# start_pingpong KIND COUNT: starts a pingpong (rc or srq) with COUNT QPs on each host. It runs
# until `stop_pingpong`.
start_pingpong() {
	ip netns exec h2 "ibv_$1_pingpong" -d "$DEV2" -g "$(gid_index "$DEV2" $HOST2_V4)" -s $SIZE -n 100000000 >/tmp/server 2>&1 &
	SERVER=$!
	wait_for 20 in2 sh -c 'ss -Hltn | grep -q ":18515 "' || return
	ip netns exec h1 "ibv_$1_pingpong" -d "$DEV1" -g "$(gid_index "$DEV1" $HOST1_V4)" -s $SIZE -n 100000000 $HOST2_V4 >/tmp/client 2>&1 &
	CLIENT=$!
	wait_for 20 connected "$2"
}
stop_pingpong() {
	kill "$CLIENT" "$SERVER"
	wait "$CLIENT" "$SERVER"
	true
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2

# The device and its port.
check_output "rdma dev shows the device" rdma dev show "$DEV1"
check "rdma dev shows the module's version as the firmware" output_has "fw rrxe $(</sys/module/rrxe/version) "
mac=$(in1 cat /sys/class/net/eth0/address)
IFS=: read -r a b c d e f <<<"$mac"
guid=$(printf '%02x%s:%sff:fe%s:%s%s' $((0x$a ^ 2)) "$b" "$c" "$d" "$e" "$f")
check "the node GUID is made of the network device's MAC address" output_has "node_guid $guid "
check "the system image GUID is the same" output_has "sys_image_guid $guid"
check_output "rdma link shows the port" in1 rdma link show "$DEV1/1"
check "rdma link shows the port ACTIVE on eth0" \
	output_has "state ACTIVE physical_state LINK_UP netdev eth0"
check "the parent in sysfs is eth0" is "$(sysfs "$DEV1" parent)" eth0
in1 ip link set eth0 down
in1 ip link set eth0 name port7
check "the parent in sysfs follows a new name of the network device" \
	is "$(sysfs "$DEV1" parent)" port7
in1 ip link set port7 name eth0
in1 ip link set eth0 up
in1 ip addr add $HOST1_V6/64 dev eth0 nodad
wait_for 10 grep -q ACTIVE "/sys/class/infiniband/$DEV1/ports/1/state"
wait_for 10 in1 ping -q -c 1 -W 1 $HOST2_V4
wait_for 10 gid_index "$DEV1" $HOST1_V6
rate=$(sysfs "$DEV1" ports/1/rate)
check "the port's rate is that of a veth, 10 Gb/s" is "${rate% (*}" "10 Gb/sec"
check_output "ibv_query_port_speed succeeds" python3 "$PY" speed "$DEV1"
check "ibv_query_port_speed returns 100 units of 100 Mb/s" output_has "^100 "
modprobe ib_cm
check_output "ibv_devinfo shows the port's capabilities" in1 ibv_devinfo -v -d "$DEV1"
# IBV_PORT_CM_SUP (0x10000) and IBV_PORT_IP_BASED_GIDS (0x04000000). ib_uverbs sets the latter, as
# the driver sets `ip_gids`.
check "the capability flags contain connection management" output_has "port_cap_flags: 0x04010000 "
echo "rrxe of test" >"/sys/class/infiniband/$DEV1/node_desc"
check "the node description can be set in sysfs" is "$(sysfs "$DEV1" node_desc)" "rrxe of test"
check "rdma dev succeeds with the new node description" rdma dev show "$DEV1"

# Counters of the port.
for name in "${RXE_NAMES[@]}"; do
	[[ -r /sys/class/infiniband/$DEV1/ports/1/hw_counters/$name ]] || missing+=" $name"
done
check "each counter of rdma_rxe exists under the same name" is "${missing:-}" ""
settle
remember "$DEV1"
remember "$DEV2"
check "a pingpong with $MESSAGES messages" pingpong -n $MESSAGES -s $SIZE
settle
for pair in "$DEV1 $DEV2" "$DEV2 $DEV1"; do
	read -r device peer <<<"$pair"
	check "$device: rdma_sends grows by $MESSAGES" grew "$device" rdma_sends $MESSAGES
	check "$device: rdma_recvs grows by $MESSAGES" grew "$device" rdma_recvs $MESSAGES
	check "$device: sent_bytes grows by the bytes of the messages" \
		bytes_grew "$device" sent "$device"
	# A packet is counted when the engine has handled it, which may be after its completion.
	check "$device: rcvd_bytes grows by the bytes of the messages" \
		wait_for 10 bytes_grew "$device" rcvd "$peer"
done
sent=$(($(counter "$DEV1" sent_pkts) - BEFORE[$DEV1/sent_pkts]))
check "the peer's rcvd_pkts grows by the $sent packets sent" \
	wait_for 10 grew "$DEV2" rcvd_pkts $sent
check_output "rdma statistic shows the port's counters" rdma statistic show link "$DEV1/1"
check "rdma statistic shows the same values as sysfs" \
	output_has "rdma_sends $(counter "$DEV1" rdma_sends) .*sent_bytes $(counter "$DEV1" sent_bytes) "
dropped=0
for file in /sys/class/infiniband/rrxe?/ports/1/hw_counters/drop_*; do dropped=$((dropped + $(<"$file"))); done
# The peer acknowledges a retransmitted packet again. The requester may drop that acknowledgment, as
# no request is outstanding any more.
no_drops() {
	[[ $dropped -eq 0 ]] || has_retransmitted "$DEV1" || has_retransmitted "$DEV2" || is "$dropped" 0
}
check "no packet is dropped" no_drops

# The counters of performance management. They count data in units of four bytes.
pma() { sysfs "$1" "ports/1/counters/$2"; }
check "port_xmit_data is sent_bytes / 4" \
	is "$(pma "$DEV1" port_xmit_data)" $(($(counter "$DEV1" sent_bytes) / 4))
check "port_rcv_data is rcvd_bytes / 4" \
	is "$(pma "$DEV1" port_rcv_data)" $(($(counter "$DEV1" rcvd_bytes) / 4))
check "port_xmit_packets is sent_pkts" \
	is "$(pma "$DEV1" port_xmit_packets)" "$(counter "$DEV1" sent_pkts)"
check "port_rcv_packets is rcvd_pkts" \
	is "$(pma "$DEV1" port_rcv_packets)" "$(counter "$DEV1" rcvd_pkts)"
check "link_downed is 1 after the network device was down once" is "$(pma "$DEV1" link_downed)" 1
in2 bash -c "printf junk >/dev/udp/$HOST1_V4/4791"
one_short_dropped() { is "$(counter "$DEV1" drop_short)" 1; }
check "a UDP datagram that is no RoCE packet counts in drop_short" wait_for 5 one_short_dropped
check "port_rcv_errors counts that datagram, too" is "$(pma "$DEV1" port_rcv_errors)" 1

# Host 1 requests the counters of host 2 by MADs. Host 2 counts the request before it makes the
# response. The MADs use IPv6: ib_mad matches responses by the destination GID of the GRH, which
# packets over IPv4 don't have.
check "modprobe ib_umad" modprobe ib_umad
settle
told="xmit_data $(pma "$DEV2" port_xmit_data) rcv_data $(($(pma "$DEV2" port_rcv_data) + 64))"
told+=" xmit_packets $(pma "$DEV2" port_xmit_packets) rcv_packets $(($(pma "$DEV2" port_rcv_packets) + 1))"
check_output "host 1 requests the counters of host 2 by MADs" \
	in1 python3 "$PY" counters "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" $HOST2_V6
check "the MAD responses contain the counters of host 2: $told" output_has "^$told "
check "MADs that request other data get the right status" \
	in1 python3 "$PY" refused "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" $HOST2_V6

# Objects.
check "a pingpong with one QP runs" start_pingpong rc 1
check_output "rdma resource counts the objects of the pingpong" rdma resource show "$DEV1"
check "the numbers of objects are those of the pingpong and of QP1" \
	output_has "pd 2 cq 2 qp 2 .*mr 1 ctx 1"
check_output "rdma resource shows QPs" rdma -dd resource show qp link "$DEV1/1" type RC
check "a QP has its type, state and owner" \
	output_has "type RC state RTS .*pid $CLIENT comm ibv_rc_pingpong"
check "a QP has the sizes of its queues" \
	output_has "drv_sq_size [1-9][0-9]* drv_sq_posted [0-9]+ drv_rq_size [1-9][0-9]{2,} drv_rq_posted [0-9]+"
check "a QP has its path MTU and retry counts" \
	output_has "drv_path_mtu 1024 drv_timeout 14 drv_retry_cnt 7 drv_rnr_retry 7"
QPN=$(sed -n 's/.* lqpn \([0-9]*\) .*/\1/p' <<<"$SEEN")
check_output "rdma resource shows CQs" rdma -dd resource show cq dev "$DEV1"
check "a CQ has its size, unread completions, arming and overflow" \
	output_has "cqe [1-9][0-9]* .*pid $CLIENT .*drv_unread [0-9]+ drv_armed (no|next) drv_overflowed 0"
check_output "rdma resource shows MRs" rdma -dd resource show mr dev "$DEV1"
check "an MR has its length and access rights" \
	output_has "mrlen $SIZE .*pid $CLIENT .*drv_access 0x1"
check "an MR shows no address of the process, as any user may dump it" output_lacks iova
for object in pd ctx; do
	check_output "rdma resource shows objects of type $object" \
		rdma -dd resource show $object dev "$DEV1"
	check "an object of type $object has its owner" output_has "pid $CLIENT comm ibv_rc_pingpong"
done

# Counters of one QP.
check "a QP can be bound to a counter" rdma statistic qp bind link "$DEV1/1" lqpn "$QPN"
counts() { rdma statistic qp show link "$DEV1/1" | tr '\n' ' ' | grep -q 'rdma_sends [1-9]'; }
check "the counter of the QP counts sends" wait_for 10 counts
check_output "rdma statistic shows the counters of QPs" rdma statistic qp show link "$DEV1/1"
check "the counter of the QP has its QPN and a nonzero rdma_sends" \
	output_has "cntn [1-9].*rdma_sends [1-9].*LQPN: <$QPN>"
settle
remember "$DEV1"
check "the port's rdma_sends includes the bound QP" \
	wait_for 10 sends_exceed "${BEFORE[$DEV1/rdma_sends]}"
cntn=$(sed -n 's/.* cntn \([0-9]*\) .*/\1/p' <<<"$(rdma statistic qp show link "$DEV1/1")")
refuse "a QP that is bound to a counter can't be bound again" \
	"Invalid argument|Cannot allocate memory" \
	rdma statistic qp bind link "$DEV1/1" lqpn "$QPN"
check "a QP can be unbound from its counter" \
	rdma statistic qp unbind link "$DEV1/1" cntn "$cntn" lqpn "$QPN"
check_output "rdma statistic succeeds without bound QPs" rdma statistic qp show link "$DEV1/1"
check "no counter is shown after the unbinding" output_lacks cntn
sends=$(counter "$DEV1" rdma_sends)
check "the port's rdma_sends doesn't decrease by the unbinding" \
	test "$sends" -ge "${BEFORE[$DEV1/rdma_sends]}"
check "the port's rdma_sends goes on growing after the unbinding" wait_for 5 sends_exceed "$sends"
check "automatic counters by QP type can be turned on" \
	rdma statistic qp set link "$DEV1/1" auto type on
stop_pingpong
settle
remember "$DEV1"
check "a pingpong with an automatic counter" pingpong -n $MESSAGES -s $SIZE
settle
check "the port's rdma_sends includes the destroyed QP" grew "$DEV1" rdma_sends $MESSAGES
check "the port's sent_bytes includes the destroyed QP" bytes_grew "$DEV1" sent "$DEV1"
check_output "rdma statistic succeeds after the QP is destroyed" \
	rdma statistic qp show link "$DEV1/1"
check "no automatic counter is left" output_lacks cntn
check "automatic counters can be turned off" rdma statistic qp set link "$DEV1/1" auto off

# Shared receive queues.
check "a pingpong with 16 QPs and an SRQ runs" start_pingpong srq 16
check_output "rdma resource counts the objects of the SRQ pingpong" rdma resource show "$DEV1"
check "the numbers of objects are those of the SRQ pingpong and of QP1" \
	output_has "pd 2 cq 2 qp 17 .*mr 1 ctx 1 srq 1"
check_output "rdma resource shows SRQs" rdma -dd resource show srq dev "$DEV1"
check "an SRQ has its owner and PD" \
	output_has "srqn [0-9]+ type BASIC lqpn [0-9,-]+ pdn [0-9]+ pid $CLIENT comm ibv_srq_pingpon"
check "an SRQ has its size, posted receives and limit" \
	output_has "drv_size 511 drv_posted [1-9][0-9]* drv_limit 0"
stop_pingpong
