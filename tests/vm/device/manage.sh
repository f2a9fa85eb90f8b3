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
# look NAME COMMAND...: as check. Stores the output as one line in SEEN, which `has` and `lacks`
# search.
look() {
	check "$@"
	SEEN=$(tr -s ' \n\t' ' ' <<<"$OUTPUT")
}
has() { grep -Eq -- "$1" <<<"$SEEN" || { echo "no \"$1\" in: $SEEN"; return 1; }; }
lacks() { ! grep -E -- "$1" <<<"$SEEN"; }

# remember DEVICE: stores the device's counters for `grew` and `bytes`.
declare -A BEFORE
remember() {
	local file
	for file in /sys/class/infiniband/"$1"/ports/1/hw_counters/*; do BEFORE[$1/${file##*/}]=$(<"$file"); done
}
# grew DEVICE COUNTER NUMBER: succeeds if the counter has grown by NUMBER since `remember`.
grew() { is $(($(counter "$1" "$2") - BEFORE[$1/$2])) "$3"; }
# resent DEVICE: succeeds if the device has retransmitted packets since `remember`, as happens if
# the host is too busy to acknowledge in time.
resent() { [[ $(counter "$1" completer_retry_err) -gt ${BEFORE[$1/completer_retry_err]} ]]; }
# bytes DEVICE sent|rcvd SENDER: succeeds if the counter of bytes has grown by those of all messages
# since `remember`. More is allowed if SENDER has retransmitted packets.
bytes() {
	local more=$(($(counter "$1" "$2_bytes") - BEFORE[$1/$2_bytes] - MESSAGES * SIZE))
	[[ $more -eq 0 ]] || { [[ $more -gt 0 ]] && resent "$3"; } || is $more 0
}
sends_exceed() { [[ $(counter "$DEV1" rdma_sends) -gt $1 ]]; }
# ib_core reads counters at most once in some milliseconds, and shows the old values in between.
settle() { sleep 0.1; }

# connected COUNT: succeeds if COUNT RC QPs of host 1 are in RTS. QP1 is in RTS, too, but not an RC
# QP.
connected() { is "$(rdma resource show qp link "$DEV1/1" | grep -c 'type RC state RTS')" "$1"; }
# start KIND COUNT: starts a pingpong (rc or srq) with COUNT QPs on each host. It runs until `stop`.
start() {
	ip netns exec h2 "ibv_$1_pingpong" -d "$DEV2" -g "$(gid_index "$DEV2" $HOST2_V4)" -s $SIZE -n 100000000 >/tmp/server 2>&1 &
	SERVER=$!
	wait_for 20 in2 sh -c 'ss -Hltn | grep -q ":18515 "' || return
	ip netns exec h1 "ibv_$1_pingpong" -d "$DEV1" -g "$(gid_index "$DEV1" $HOST1_V4)" -s $SIZE -n 100000000 $HOST2_V4 >/tmp/client 2>&1 &
	CLIENT=$!
	wait_for 20 connected "$2"
}
stop() {
	kill "$CLIENT" "$SERVER"
	wait "$CLIENT" "$SERVER"
	true
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2

# The device and its port.
look "rdma dev" rdma dev show "$DEV1"
check "its firmware is the module's" has "fw rrxe 0\.1\.0 "
mac=$(in1 cat /sys/class/net/eth0/address)
IFS=: read -r a b c d e f <<<"$mac"
guid=$(printf '%02x%s:%sff:fe%s:%s%s' $((0x$a ^ 2)) "$b" "$c" "$d" "$e" "$f")
check "its GUID is made of the network device's address" has "node_guid $guid "
check "so is its system image's" has "sys_image_guid $guid"
look "rdma link" in1 rdma link show "$DEV1/1"
check "the port is up, on eth0" has "state ACTIVE physical_state LINK_UP netdev eth0"
check "parent" is "$(sysfs "$DEV1" parent)" eth0
in1 ip link set eth0 down
in1 ip link set eth0 name port7
check "parent follows a new name" is "$(sysfs "$DEV1" parent)" port7
in1 ip link set port7 name eth0
in1 ip link set eth0 up
in1 ip addr add $HOST1_V6/64 dev eth0 nodad
wait_for 10 grep -q ACTIVE "/sys/class/infiniband/$DEV1/ports/1/state"
wait_for 10 in1 ping -q -c 1 -W 1 $HOST2_V4
wait_for 10 gid_index "$DEV1" $HOST1_V6
rate=$(sysfs "$DEV1" ports/1/rate)
check "a veth's 10 Gb/s" is "${rate% (*}" "10 Gb/sec"
look "the speed, in units of 100 Mb/s" python3 "$PY" speed "$DEV1"
check "is the same" has "^100 "
modprobe ib_cm
look "what the port can do" in1 ibv_devinfo -v -d "$DEV1"
# IB_PORT_CM_SUP (0x10000) and IB_PORT_IP_BASED_GIDS (0x04000000). ib_core itself sets the latter.
check "the connection manager has declared itself" has "port_cap_flags: 0x04010000 "
echo "rrxe of test" >"/sys/class/infiniband/$DEV1/node_desc"
check "the node's description can be set" is "$(sysfs "$DEV1" node_desc)" "rrxe of test"
check "and is told" rdma dev show "$DEV1"

# Counters of the port.
for name in "${RXE_NAMES[@]}"; do
	[[ -r /sys/class/infiniband/$DEV1/ports/1/hw_counters/$name ]] || missing+=" $name"
done
check "the counters of rdma_rxe have their names" is "${missing:-}" ""
settle
remember "$DEV1"
remember "$DEV2"
check "a pingpong" pingpong -n $MESSAGES -s $SIZE
settle
for pair in "$DEV1 $DEV2" "$DEV2 $DEV1"; do
	read -r device peer <<<"$pair"
	check "$device: $MESSAGES sends" grew "$device" rdma_sends $MESSAGES
	check "$device: $MESSAGES receives" grew "$device" rdma_recvs $MESSAGES
	check "$device: their bytes, sent" bytes "$device" sent "$device"
	# A packet is counted when the engine has handled it, which may be after its completion.
	check "$device: their bytes, received" wait_for 10 bytes "$device" rcvd "$peer"
done
sent=$(($(counter "$DEV1" sent_pkts) - BEFORE[$DEV1/sent_pkts]))
check "what one sent the other received, $sent packets" wait_for 10 grew "$DEV2" rcvd_pkts $sent
look "rdma statistic" rdma statistic show link "$DEV1/1"
check "shows the same" has "rdma_sends $(counter "$DEV1" rdma_sends) .*sent_bytes $(counter "$DEV1" sent_bytes) "
dropped=0
for file in /sys/class/infiniband/rrxe?/ports/1/hw_counters/drop_*; do dropped=$((dropped + $(<"$file"))); done
# The peer acknowledges a retransmitted packet again. The requester may drop that acknowledgement,
# as it has none outstanding.
no_drops() { [[ $dropped -eq 0 ]] || resent "$DEV1" || resent "$DEV2" || is "$dropped" 0; }
check "no drops" no_drops

# The counters of performance management. They count data in units of four bytes.
pma() { sysfs "$1" "ports/1/counters/$2"; }
check "port_xmit_data" is "$(pma "$DEV1" port_xmit_data)" $(($(counter "$DEV1" sent_bytes) / 4))
check "port_rcv_data" is "$(pma "$DEV1" port_rcv_data)" $(($(counter "$DEV1" rcvd_bytes) / 4))
check "port_xmit_packets" is "$(pma "$DEV1" port_xmit_packets)" "$(counter "$DEV1" sent_pkts)"
check "port_rcv_packets" is "$(pma "$DEV1" port_rcv_packets)" "$(counter "$DEV1" rcvd_pkts)"
check "link_downed, once above" is "$(pma "$DEV1" link_downed)" 1
in2 bash -c "printf junk >/dev/udp/$HOST1_V4/4791"
short() { is "$(counter "$DEV1" drop_short)" 1; }
check "a packet that is none" wait_for 5 short
check "port_rcv_errors" is "$(pma "$DEV1" port_rcv_errors)" 1

# Host 1 requests the counters of host 2 by MADs. Host 2 counts the request before it makes the
# response. The MADs use IPv6: ib_mad matches responses by the addresses of the GRH, which packets
# over IPv4 don't have.
check "user space gets at the general services" modprobe ib_umad
settle
told="xmit_data $(pma "$DEV2" port_xmit_data) rcv_data $(($(pma "$DEV2" port_rcv_data) + 64))"
told+=" xmit_packets $(pma "$DEV2" port_xmit_packets) rcv_packets $(($(pma "$DEV2" port_rcv_packets) + 1))"
look "its counters, asked for from host 1" in1 python3 "$PY" counters "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" $HOST2_V6
check "are what they are there: $told" has "^$told "
check "what can't be told is refused as it should be" \
	in1 python3 "$PY" refused "$DEV1" "$(gid_index "$DEV1" $HOST1_V6)" $HOST2_V6

# Objects.
check "a pingpong runs" start rc 1
look "rdma resource, in sum" rdma resource show "$DEV1"
check "counts them, and those of the general services" has "pd 2 cq 2 qp 2 .*mr 1 ctx 1"
look "QPs" rdma -dd resource show qp link "$DEV1/1" type RC
check "type, state and owner" has "type RC state RTS .*pid $CLIENT comm ibv_rc_pingpong"
check "queue sizes" has "drv_sq_size [1-9][0-9]* drv_sq_posted [0-9]+ drv_rq_size [1-9][0-9]{2,} drv_rq_posted [0-9]+"
check "path MTU and retries" has "drv_path_mtu 1024 drv_timeout 14 drv_retry_cnt 7 drv_rnr_retry 7"
QPN=$(sed -n 's/.* lqpn \([0-9]*\) .*/\1/p' <<<"$SEEN")
look "CQs" rdma -dd resource show cq dev "$DEV1"
check "entries, unread and armed" has "cqe [1-9][0-9]* .*pid $CLIENT .*drv_unread [0-9]+ drv_armed (no|next) drv_overflowed 0"
look "MRs" rdma -dd resource show mr dev "$DEV1"
check "length and rights" has "mrlen $SIZE .*pid $CLIENT .*drv_access 0x1"
check "no address of the process, which every user would see" lacks iova
for object in pd ctx; do
	look "${object}s" rdma -dd resource show $object dev "$DEV1"
	check "and their owner" has "pid $CLIENT comm ibv_rc_pingpong"
done

# Counters of one QP.
check "bind the QP to a counter" rdma statistic qp bind link "$DEV1/1" lqpn "$QPN"
counts() { rdma statistic qp show link "$DEV1/1" | tr '\n' ' ' | grep -q 'rdma_sends [1-9]'; }
check "it counts" wait_for 10 counts
look "its counters" rdma statistic qp show link "$DEV1/1"
check "are those of this QP, and grow" has "cntn [1-9].*rdma_sends [1-9].*LQPN: <$QPN>"
settle
remember "$DEV1"
check "the port counts the QP, too" wait_for 10 sends_exceed "${BEFORE[$DEV1/rdma_sends]}"
cntn=$(sed -n 's/.* cntn \([0-9]*\) .*/\1/p' <<<"$(rdma statistic qp show link "$DEV1/1")")
refuse "the QP is bound already" "Invalid argument|Cannot allocate memory" \
	rdma statistic qp bind link "$DEV1/1" lqpn "$QPN"
check "unbind it" rdma statistic qp unbind link "$DEV1/1" cntn "$cntn" lqpn "$QPN"
look "none is bound" rdma statistic qp show link "$DEV1/1"
check "none is shown" lacks cntn
sends=$(counter "$DEV1" rdma_sends)
check "nothing is lost of the port's counters" test "$sends" -ge "${BEFORE[$DEV1/rdma_sends]}"
check "nor do they stop" wait_for 5 sends_exceed "$sends"
check "automatic counters, by type" rdma statistic qp set link "$DEV1/1" auto type on
stop
settle
remember "$DEV1"
check "a pingpong with a counter that comes and goes with it" pingpong -n $MESSAGES -s $SIZE
settle
check "the port keeps its sends" grew "$DEV1" rdma_sends $MESSAGES
check "and its bytes" bytes "$DEV1" sent "$DEV1"
look "no counter stays" rdma statistic qp show link "$DEV1/1"
check "none is shown" lacks cntn
check "automatic counters off" rdma statistic qp set link "$DEV1/1" auto off

# Shared receive queues.
check "a pingpong over a shared receive queue runs" start srq 16
look "rdma resource, in sum" rdma resource show "$DEV1"
check "counts it with its QPs, and those of the general services" has "pd 2 cq 2 qp 17 .*mr 1 ctx 1 srq 1"
look "SRQs" rdma -dd resource show srq dev "$DEV1"
check "its owner and domain" has "srqn [0-9]+ type BASIC lqpn [0-9,-]+ pdn [0-9]+ pid $CLIENT comm ibv_srq_pingpon"
check "its size, what is posted, and its limit" has "drv_size 511 drv_posted [1-9][0-9]* drv_limit 0"
stop
