#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Tests links on several types of network devices (veth, bond, TUN), changes of the network device
# under a link, deletions of links, and the events that processes get.
#
# The changes are an MTU that shrinks, a headroom that grows, a move to another namespace, a device
# that goes down, a new address, a new speed, and a bond that uses another port, such as a TAP
# device. Two hosts are connected by a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
PY=$LIB/netdevs.py

# watch DEVICE: records the asynchronous events of the device in /tmp/events, until unwatch.
watch() {
	stdbuf -oL ibv_asyncwatch -d "$1" >/tmp/events 2>&1 &
	WATCH=$!
	wait_for 10 grep -q "$1" /tmp/events
}
event_arrives() { wait_for 5 grep -Eq "$1" /tmp/events || { cat /tmp/events; return 1; }; }
no_port_events() { ! grep PORT /tmp/events; }
unwatch() {
	kill $WATCH
	wait $WATCH
	true
}
state() { grep -q "$2" "/sys/class/infiniband/$1/ports/1/state"; }
rate_is() { [[ $(<"/sys/class/infiniband/$1/ports/1/rate") == "$2 Gb/sec "* ]]; }
device_is_gone() { [[ ! -e /sys/class/infiniband/$1 ]]; }

# pingpong_over DEVICE1 ADDRESS1 DEVICE2 ADDRESS2 [ARGUMENT...]: runs a pingpong from host 1 to host
# 2. The programs exchange their QPNs by TCP over eth0.
pingpong_over() {
	local device1=$1 address1=$2 device2=$3 address2=$4
	shift 4
	wait_for 10 gid_index "$device1" "$address1" && wait_for 10 gid_index "$device2" "$address2" || return
	run_server_and_client ibv_rc_pingpong -c -d "$device2" -g "$(gid_index "$device2" "$address2")" "$@" -- \
		ibv_rc_pingpong -c -d "$device1" -g "$(gid_index "$device1" "$address1")" "$@" "$SERVER_ADDRESS"
}
SERVER_ADDRESS=$HOST2_V4
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
raise_headroom() {
	local id
	ip -n h2 link add br0 type bridge && ip -n h2 link set extra2 master br0 || return
	for ((id = 1; id <= 80; id++)); do
		ip -n h2 link add "vx$id" type vxlan id $id dev extra2 remote 10.79.0.3 dstport 4789 &&
			ip -n h2 link set "vx$id" master br0 || return
		[[ $id -eq 1 ]] || ip -n h2 link del "vx$((id - 1))" || return
	done
}
add_extra_link() {
	ip link add extra netns h1 type veth peer name extra2 netns h2 && ip -n h2 link set extra2 up &&
		ip -n h1 addr add 10.79.0.1/24 dev extra && ip -n h1 link set extra up &&
		ip -n h1 neigh add 10.79.0.2 lladdr 02:00:00:00:00:02 dev extra &&
		ip netns exec h1 rdma link add rrxe9 type rrxe netdev extra && wait_for 10 gid_index rrxe9 10.79.0.1
}
counter_is() { [[ $(<"/sys/class/infiniband/rrxe9/ports/1/hw_counters/$1") -eq $2 ]]; }
# send_datagrams COUNTER: sends eight datagrams through `extra`, and succeeds if COUNTER is 8
# afterwards.
send_datagrams() {
	python3 "$(dirname "$0")/send_datagrams.py" rrxe9 "$(gid_index rrxe9 10.79.0.1)" 10.79.0.2 8 512 &&
		wait_for 10 counter_is "$1" 8
}
check "a link on the veth device extra" add_extra_link
check "datagrams leave through extra" send_datagrams sent_pkts
check "a bridge with VXLAN devices raises the headroom that extra demands" raise_headroom
check "datagrams are not sent while extra demands that headroom" send_datagrams send_err
check "the link on extra is deleted" ip netns exec h1 rdma link del rrxe9
ip -n h2 link del vx80
ip -n h2 link del br0
ip -n h1 link del extra

# The MTU shrinks below the path MTU of connected QPs.
check "messages longer than a shrunk MTU allows fail at once, and shorter ones arrive" \
	python3 "$PY" shrink "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$DEV2" "$(gid_index "$DEV2" $HOST2_V4)"
check "a pingpong with a path MTU of 1024 completes after the MTU has shrunk" pingpong -n 50 -m 1024

# A device goes away while a process only polls its CQ, without any system call.
for way in "rdma link del $DEV1" "ip -n h1 link set eth0 netns h2 name eth9" "rmmod rrxe"; do
	check "a process that only polls sees its WQEs flushed after: ${way%% *} ${way#* }" \
		python3 "$PY" unplug "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" $way
	wait_for 10 device_is_gone "$DEV1"
	DEV1=
	case $way in
	ip*)
		ip -n h2 link set eth9 netns h1 name eth0
		ip -n h1 addr add $HOST1_V4/24 dev eth0
		ip -n h1 link set eth0 up
		;;
	rmmod*) DEV2= ;;
	esac
	check "a new link on host 1 after: $way" link_add 1
done
check "a new link on host 2 after rmmod" link_add 2
check "a pingpong completes over the new links" pingpong -n 50 -m 1024

# Asynchronous events.
check "ibv_asyncwatch listens on the link of host 1" watch "$DEV1"
ip -n h1 link set eth0 down
check "eth0 down raises PORT_ERR" event_arrives "IBV_EVENT_PORT_ERR"
ip -n h1 link set eth0 up
check "eth0 up raises PORT_ACTIVE" event_arrives "IBV_EVENT_PORT_ACTIVE"
ip -n h1 addr add 10.78.3.1/24 dev eth0
check "a new address raises GID_CHANGE" event_arrives "IBV_EVENT_GID_CHANGE"
unwatch

# A bond in mode active-backup with two veth pairs.
for host in 1 2; do ip -n h$host link add bond0 type bond mode active-backup miimon 50; done
for number in 1 2; do
	ip link add slave$number netns h1 mtu 4200 type veth peer name slave$number netns h2 mtu 4200
	for host in 1 2; do ip -n h$host link set slave$number master bond0; done
done
for host in 1 2; do
	ip -n h$host addr add 10.81.0.$host/24 dev bond0
	ip -n h$host link set bond0 mtu 4200 up
	ip -n h$host link set slave1 up
	ip -n h$host link set slave2 up
	check "a link on the bond of host $host" \
		ip netns exec h$host rdma link add bond$host type rrxe netdev bond0
	check "the port of the link on the bond of host $host is active" wait_for 10 state bond$host ACTIVE
done
check "the speed of the bond's link is that of the active veth device" wait_for 5 rate_is bond1 10
check "a pingpong completes over the bond" \
	pingpong_over bond1 10.81.0.1 bond2 10.81.0.2 -n 50 -s 10000 -m 4096
# bond_uses HOST PORT: succeeds if PORT is the active port of the host's bond.
bond_uses() { [[ $(ip netns exec "h$1" cat /sys/class/net/bond0/bonding/active_slave) == "$2" ]]; }
for host in 1 2; do ip -n h$host link set slave1 down; done
for host in 1 2; do
	check "the bond of host $host uses the second veth device" wait_for 10 bond_uses $host slave2
done
check "a pingpong completes over the second veth device of the bond" \
	pingpong_over bond1 10.81.0.1 bond2 10.81.0.2 -n 50 -s 10000 -m 4096
check "the port stays active while the bond changes its active port" state bond1 ACTIVE
# A third port of the bond has a higher speed: TAP devices that a program connects.
modprobe tun
[[ -e /dev/net/tun ]] || { mkdir -p /dev/net && mknod /dev/net/tun c 10 200; }
for host in 1 2; do ip netns exec h$host ip tuntap add mode tap name tap0; done
python3 "$PY" wire h1 h2 tap0 >/tmp/wire 2>&1 &
FORWARDER=$!
check "a program connects the TAP devices" wait_for 10 grep -q ready /tmp/wire
for host in 1 2; do
	in$host ethtool -s tap0 speed 25000 duplex full
	ip -n h$host link set tap0 master bond0
done
check "ibv_asyncwatch listens on the link of the bond" watch bond1
for host in 1 2; do ip -n h$host link set slave2 down; done
for host in 1 2; do
	check "the bond of host $host uses the TAP device" wait_for 10 bond_uses $host tap0
done
check "a change of the bond's speed raises an event" event_arrives "unexpected \(20\)|SPEED"
check "the link on the bond shows the new speed" wait_for 5 rate_is bond1 25
check "messages arrive over the TAP devices of the bond" \
	exchange_over bond1 10.81.0.1 bond2 10.81.0.2
check "no port event was raised meanwhile" no_port_events
ip -n h1 link set tap0 down
check "the port is down when the bond has no active port" wait_for 5 state bond1 DOWN
check "the bond without active port raises PORT_ERR" event_arrives "IBV_EVENT_PORT_ERR"
unwatch
kill $FORWARDER
wait $FORWARDER
in1 rdma link del bond1
in2 rdma link del bond2

# Links on TUN devices, whose packets have no link-layer header.
for host in 1 2; do
	ip netns exec h$host ip tuntap add mode tun name tun0
	ip -n h$host addr add 10.82.0.$host/24 dev tun0
	ip -n h$host link set tun0 up
done
python3 "$PY" wire h1 h2 tun0 >/tmp/wire 2>&1 &
FORWARDER=$!
check "a program connects the TUN devices" wait_for 10 grep -q ready /tmp/wire
for host in 1 2; do
	check "a link on a TUN device of host $host" ip netns exec h$host rdma link add tun$host type rrxe netdev tun0
	check "the port of the link on the TUN device of host $host is active" \
		wait_for 10 state tun$host ACTIVE
	guid=$(<"/sys/class/infiniband/tun$host/node_guid")
	check "node GUID and system image GUID of the TUN link of host $host are the same" \
		test "$guid" == "$(<"/sys/class/infiniband/tun$host/sys_image_guid")"
done
check "messages arrive over TUN devices" exchange_over tun1 10.82.0.1 tun2 10.82.0.2
# The speed of a TUN device can be set. The driver sees that when the device goes down or up next.
check "ibv_asyncwatch listens on the link of the TUN device" watch tun1
in1 ethtool -s tun0 speed 25000 duplex full
ip -n h1 link set tun0 down
ip -n h1 link set tun0 up
check "a new speed of the TUN device raises an event" event_arrives "unexpected \(20\)|SPEED"
check "the link on the TUN device shows the new speed" rate_is tun1 25
unwatch
for host in 1 2; do ip netns exec h$host rdma link del tun$host; done
kill $FORWARDER
wait $FORWARDER
true
