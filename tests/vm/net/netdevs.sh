#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Tests links on several types of network devices (veth, bond, TAP, TUN), changes of the network
# device under a link, and the events that processes get.
#
# The changes are an MTU that shrinks, a headroom that grows, a deletion or a move to another
# namespace, a carrier that goes down, a new address, and a bond that uses another port. Two hosts
# are connected by a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
PY=$LIB/netdevs.py

# watch DEVICE: records the asynchronous events of the device in /tmp/events, until unwatch.
watch() {
	stdbuf -oL ibv_asyncwatch -d "$1" >/tmp/events 2>&1 &
	WATCH=$!
	wait_for 10 grep -q "$1" /tmp/events
}
heard() { wait_for 5 grep -Eq "$1" /tmp/events || { cat /tmp/events; return 1; }; }
lacks_port_events() { ! grep PORT /tmp/events; }
unwatch() {
	kill $WATCH
	wait $WATCH
	true
}
state() { grep -q "$2" "/sys/class/infiniband/$1/ports/1/state"; }
rate_is() { [[ $(<"/sys/class/infiniband/$1/ports/1/rate") == "$2 Gb/sec "* ]]; }
gone() { [[ ! -e /sys/class/infiniband/$1 ]]; }

# pingpong_over DEVICE1 ADDRESS1 DEVICE2 ADDRESS2 [ARGUMENT...]: runs a pingpong from host 1 to host
# 2. The programs exchange their QPNs by TCP over eth0.
pingpong_over() {
	local device1=$1 address1=$2 device2=$3 address2=$4
	shift 4
	wait_for 10 gid_index "$device1" "$address1" && wait_for 10 gid_index "$device2" "$address2" || return
	_pair ibv_rc_pingpong -c -d "$device2" -g "$(gid_index "$device2" "$address2")" "$@" -- \
		ibv_rc_pingpong -c -d "$device1" -g "$(gid_index "$device1" "$address1")" "$@" "$MEET"
}
MEET=$HOST2_V4
# exchange_over DEVICE1 ADDRESS1 DEVICE2 ADDRESS2: exchanges messages, with a longer ACK timeout
# than ibv_rc_pingpong's.
exchange_over() {
	wait_for 10 gid_index "$1" "$2" && wait_for 10 gid_index "$3" "$4" &&
		python3 "$PY" exchange "$1" "$(gid_index "$1" "$2")" "$3" "$(gid_index "$3" "$4")"
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2

# Makes the network device `extra` of host 1 demand several KiB of headroom in front of packets. A
# bridge gives each of its ports the largest headroom that any port demands, and a veth device gives
# it to its peer. Each VXLAN device over a port of the bridge adds its own headers to that.
wants_room() {
	local id
	ip -n h2 link add br0 type bridge && ip -n h2 link set extra2 master br0 || return
	for ((id = 1; id <= 80; id++)); do
		ip -n h2 link add "vx$id" type vxlan id $id dev extra2 remote 10.79.0.3 dstport 4789 &&
			ip -n h2 link set "vx$id" master br0 || return
		[[ $id -eq 1 ]] || ip -n h2 link del "vx$((id - 1))" || return
	done
}
extra() {
	ip link add extra netns h1 type veth peer name extra2 netns h2 && ip -n h2 link set extra2 up &&
		ip -n h1 addr add 10.79.0.1/24 dev extra && ip -n h1 link set extra up &&
		ip -n h1 neigh add 10.79.0.2 lladdr 02:00:00:00:00:02 dev extra &&
		ip netns exec h1 rdma link add rrxe9 type rrxe netdev extra && wait_for 10 gid_index rrxe9 10.79.0.1
}
counted() { [[ $(<"/sys/class/infiniband/rrxe9/ports/1/hw_counters/$1") -eq $2 ]]; }
# sends COUNTER: sends eight datagrams through `extra`, and succeeds if COUNTER is 8 afterwards.
sends() {
	python3 "$(dirname "$0")/narrow.py" rrxe9 "$(gid_index rrxe9 10.79.0.1)" 10.79.0.2 8 512 && wait_for 10 counted "$1" 8
}
check "a link on another veth" extra
check "its packets leave" sends sent_pkts
check "somebody at the other end has it want kilobytes in front of packets" wants_room
check "no packet leaves any more" sends send_err
check "the other link goes" ip netns exec h1 rdma link del rrxe9
ip -n h2 link del vx80
ip -n h2 link del br0
ip -n h1 link del extra

# The MTU shrinks below the path MTU of connected QPs.
check "an MTU below the path MTU fails what is too large at once, and that only" \
	python3 "$PY" shrink "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$DEV2" "$(gid_index "$DEV2" $HOST2_V4)"
check "a new pingpong has a path MTU that fits" pingpong -n 50 -m 1024

# A device goes away while a process only polls its CQ, without any system call.
for way in "rdma link del $DEV1" "ip -n h1 link set eth0 netns h2 name eth9" "rmmod rrxe"; do
	check "polling processes see flushes: ${way%% *} ${way#* }" python3 "$PY" unplug "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" $way
	wait_for 10 gone "$DEV1"
	DEV1=
	case $way in
	ip*)
		ip -n h2 link set eth9 netns h1 name eth0
		ip -n h1 addr add $HOST1_V4/24 dev eth0
		ip -n h1 link set eth0 up
		;;
	rmmod*) DEV2= ;;
	esac
	check "a link again" link_add 1
done
check "the other link again" link_add 2
check "pingpong" pingpong -n 50 -m 1024

# Asynchronous events.
check "watch" watch "$DEV1"
ip -n h1 link set eth0 down
check "down: PORT_ERR" heard "IBV_EVENT_PORT_ERR"
ip -n h1 link set eth0 up
check "up: PORT_ACTIVE" heard "IBV_EVENT_PORT_ACTIVE"
ip -n h1 addr add 10.78.3.1/24 dev eth0
check "an address: GID_CHANGE" heard "IBV_EVENT_GID_CHANGE"
unwatch

# A bond in mode active-backup with two veth pairs.
for host in 1 2; do ip -n h$host link add bond0 type bond mode active-backup miimon 50; done
for wire in 1 2; do
	ip link add slave$wire netns h1 mtu 4200 type veth peer name slave$wire netns h2 mtu 4200
	for host in 1 2; do ip -n h$host link set slave$wire master bond0; done
done
for host in 1 2; do
	ip -n h$host addr add 10.81.0.$host/24 dev bond0
	ip -n h$host link set bond0 mtu 4200 up
	ip -n h$host link set slave1 up
	ip -n h$host link set slave2 up
	check "a link on bond$host" ip netns exec h$host rdma link add bond$host type rrxe netdev bond0
	check "its port is active" wait_for 10 state bond$host ACTIVE
done
check "its speed is that of the wire in use" wait_for 5 rate_is bond1 10
check "pingpong over the bond" pingpong_over bond1 10.81.0.1 bond2 10.81.0.2 -n 50 -s 10000 -m 4096
# uses HOST WIRE: succeeds if WIRE is the active port of the host's bond.
uses() { [[ $(ip netns exec "h$1" cat /sys/class/net/bond0/bonding/active_slave) == "$2" ]]; }
for host in 1 2; do ip -n h$host link set slave1 down; done
for host in 1 2; do check "host $host uses the other wire" wait_for 10 uses $host slave2; done
check "one wire is enough" pingpong_over bond1 10.81.0.1 bond2 10.81.0.2 -n 50 -s 10000 -m 4096
check "the port stays active" state bond1 ACTIVE
# A third port of the bond has a higher speed: TAP devices that a program connects.
modprobe tun
[[ -e /dev/net/tun ]] || { mkdir -p /dev/net && mknod /dev/net/tun c 10 200; }
for host in 1 2; do ip netns exec h$host ip tuntap add mode tap name tap0; done
python3 "$PY" wire h1 h2 tap0 >/tmp/wire 2>&1 &
WIRE=$!
check "a wire between TAP devices" wait_for 10 grep -q ready /tmp/wire
for host in 1 2; do
	in$host ethtool -s tap0 speed 25000 duplex full
	ip -n h$host link set tap0 master bond0
done
check "watch" watch bond1
for host in 1 2; do ip -n h$host link set slave2 down; done
for host in 1 2; do check "host $host uses the third wire" wait_for 10 uses $host tap0; done
check "another wire in use, another speed: users hear of it" heard "unexpected \(20\)|SPEED"
check "and see it" wait_for 5 rate_is bond1 25
check "messages over this wire" exchange_over bond1 10.81.0.1 bond2 10.81.0.2
check "the port was active all the time" lacks_port_events
ip -n h1 link set tap0 down
check "without a wire the port is down" wait_for 5 state bond1 DOWN
check "and users hear of it" heard "IBV_EVENT_PORT_ERR"
unwatch
kill $WIRE
wait $WIRE
in1 rdma link del bond1
in2 rdma link del bond2

# Links on TUN devices, whose packets have no link-layer header.
for host in 1 2; do
	ip netns exec h$host ip tuntap add mode tun name tun0
	ip -n h$host addr add 10.82.0.$host/24 dev tun0
	ip -n h$host link set tun0 up
done
python3 "$PY" wire h1 h2 tun0 >/tmp/wire 2>&1 &
WIRE=$!
check "a wire between TUN devices" wait_for 10 grep -q ready /tmp/wire
for host in 1 2; do
	check "a link on a TUN device of host $host" ip netns exec h$host rdma link add tun$host type rrxe netdev tun0
	check "its port is active" wait_for 10 state tun$host ACTIVE
	guid=$(<"/sys/class/infiniband/tun$host/node_guid")
	check "it has a GUID, and one only" test "$guid" == "$(<"/sys/class/infiniband/tun$host/sys_image_guid")"
done
check "messages over TUN devices" exchange_over tun1 10.82.0.1 tun2 10.82.0.2
# The speed of a TUN device can be set. The driver raises an event when the carrier changes next.
check "watch" watch tun1
in1 ethtool -s tun0 speed 25000 duplex full
ip -n h1 link set tun0 down
ip -n h1 link set tun0 up
check "another speed is told" heard "unexpected \(20\)|SPEED"
check "and shown" rate_is tun1 25
unwatch
for host in 1 2; do ip netns exec h$host rdma link del tun$host; done
kill $WIRE
wait $WIRE
true
