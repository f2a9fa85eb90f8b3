#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=300
# Links: invalid links are refused with the right error and a line in the kernel's log; the port's
# state, MTU and GIDs follow the network device; rrxe and the C driver (rdma_rxe) share the UDP port
# and the driver ID, and can be loaded and unloaded in every order. Topology: two hosts over a veth
# pair.
source "$(dirname "$0")/../lib/guest.sh"

# `listen` writes a mark to the kernel's log, and `said PATTERN` looks for rrxe's lines after the
# mark.
listen() {
	_heard=$((${_heard:-0} + 1))
	echo "rrxe-test listens $$ $_heard" >/dev/kmsg
}

said() { dmesg | sed -n "/rrxe-test listens $$ $_heard\$/,\$p" | grep -Eq "rrxe: .*($1)"; }

# unfit NAME ERROR LOG COMMAND...: checks that COMMAND fails with ERROR, and that rrxe logs a line
# that matches LOG.
unfit() {
	local name=$1 error=$2 log=$3
	shift 3
	listen
	refuse "$name: $error" "$error" "$@"
	if said "$log"; then pass "$name: the log says why"; else fail "$name: the log says why" "$(dmesg | tail -n 3)"; fi
}

devices() { ls /sys/class/infiniband 2>/dev/null; }
nothing() { [[ -z $(devices) ]]; }
none_left() { check "$1 leaves no device" wait_for 5 nothing; }
state() { grep -q "$2" "/sys/class/infiniband/$1/ports/1/state"; }
gone() { [[ ! -e /sys/class/infiniband/$1 ]]; }
lost() { ! gid_index "$@"; }
mtu_is() { ibv_devinfo -d "$DEV1" | grep -Eq "active_mtu:\s+$1 "; }
loaded() { [[ -e /sys/module/$1 ]]; }
unload() { rmmod "$1" && ! loaded "$1"; }
# With lockdep the socket of the C driver's QP1 holds a reference to the module
# (rxe_reclassify_send_socket(), drivers/infiniband/sw/rxe/rxe_qp.c), so the link is deleted first.
unload_under_link() { [[ -z $DEBUG_KERNEL || $1 != rdma_rxe ]] || in2 rdma link del rxe2 && unload "$1"; }

check "two hosts" hosts_up 1500
check "a first link loads the module" in1 rdma link add first type rrxe netdev eth0
check "rrxe is loaded" loaded rrxe
check "link del" in1 rdma link del first

# ib_core itself refuses these links, and logs nothing.
refuse "a missing network device: ENODEV" "No such device" in1 rdma link add bad type rrxe netdev absent0
refuse "an empty name: EINVAL" "Invalid argument" in1 rdma link add "" type rrxe netdev eth0
refuse "a name that is a pattern: EINVAL" "Invalid argument" in1 rdma link add bad%d type rrxe netdev eth0

ip -n h1 link add link eth0 name vlan5 type vlan id 5
unfit "a VLAN" "Operation not permitted" "vlan5: is a VLAN" in1 rdma link add bad type rrxe netdev vlan5
ip -n h1 link del vlan5
ip -n h1 link add tunnel type sit remote $HOST2_V4 local $HOST1_V4
unfit "a sit tunnel" "Invalid argument" "tunnel: is neither" in1 rdma link add bad type rrxe netdev tunnel
ip -n h1 link del tunnel
none_left "refusal"

check "a link" link_add 1
unfit "a second link on it" "File exists" "eth0: has a link" in1 rdma link add bad type rrxe netdev eth0
ip -n h1 link add spare0 type veth peer name spare1
ip -n h1 link set spare0 up
ip -n h1 link set spare1 up
unfit "a name that is taken" "Too many open files" "spare0: .*$DEV1" in1 rdma link add "$DEV1" type rrxe netdev spare0
check "a second link in the namespace" in1 rdma link add spare type rrxe netdev spare0
check "one on the loopback device" in1 rdma link add loop type rrxe netdev lo
check "del of the former" in1 rdma link del spare
check "del of the latter" in1 rdma link del loop

# The driver with the first link in a namespace has the UDP port there. The test accepts two errors
# from the C driver: EADDRINUSE and EPERM.
refuse "C rxe beside rrxe in one namespace" "Address already in use|Operation not permitted" in1 rdma link add bad type rxe netdev spare0
check "whose link still is there" state "$DEV1" ACTIVE
link_del 1
check "C rxe" in1 rdma link add first type rxe netdev eth0
unfit "rrxe beside C rxe" "Address already in use" "UDP port 4791" in1 rdma link add bad type rrxe netdev spare0
unfit "and on the same network device" "Address already in use" "UDP port 4791" \
	in1 rdma link add bad type rrxe netdev eth0
in1 rdma link del first
for family in AF_INET AF_INET6; do
	ip netns exec h1 python3 -c "
import signal, socket
holder = socket.socket(socket.$family, socket.SOCK_DGRAM)
if socket.$family == socket.AF_INET6:
    holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
holder.bind(('', 4791))
signal.pause()" &
	holder=$!
	wait_for 20 in1 sh -c 'ss -Hlun | grep -q ":4791 "'
	unfit "a port that an $family socket has" "Address already in use" "UDP port 4791" \
		in1 rdma link add bad type rrxe netdev eth0
	kill $holder
	wait $holder
done
none_left "refusal"
ip -n h1 link del spare0

# Links work after all these refusals.
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "pingpong" pingpong -n 50

# Ports follow their network devices.
ip -n h1 link set eth0 down
check "a network device that is down: the port is DOWN" wait_for 5 state "$DEV1" DOWN
check "as is the peer's, which lost the carrier" wait_for 5 state "$DEV2" DOWN
ip -n h1 link set eth0 up
check "up: ACTIVE" wait_for 5 state "$DEV1" ACTIVE
check "the peer's: ACTIVE" wait_for 5 state "$DEV2" ACTIVE
for pair in 4200:4096 2200:2048 1500:1024 650:512 400:256; do
	ip -n h1 link set eth0 mtu ${pair%:*}
	check "an MTU of ${pair%:*}: active_mtu ${pair#*:}" wait_for 5 mtu_is "${pair#*:}"
done
ip -n h1 link set eth0 mtu 1500
for address in 10.78.3.1/24 fd78::301/64; do
	ip -n h1 addr add $address dev eth0
	check "an address more, ${address%/*}: a GID more" wait_for 5 gid_index "$DEV1" "${address%/*}"
	ip -n h1 addr del $address dev eth0
	check "an address less: a GID less" wait_for 5 lost "$DEV1" "${address%/*}"
done
check "pingpong" pingpong -n 50
ip -n h1 link del eth0
check "a network device that is deleted takes its device" wait_for 5 gone "$DEV1"
check "and its pair's, deleted with it" wait_for 5 gone "$DEV2"
DEV1='' DEV2=''
hosts_down
unload rrxe
unload rdma_rxe

# Loads and unloads both modules in every order, without and with links. On the debug kernel, where
# each order takes a minute, only the orders in which the module loaded first is unloaded first.
check "two hosts again" hosts_up 1500
for load in "rrxe rdma_rxe" "rdma_rxe rrxe"; do
	for unload in "rrxe rdma_rxe" "rdma_rxe rrxe"; do
		[[ -z $DEBUG_KERNEL || $load == "$unload" ]] || continue
		read -r first second <<<"$load"
		modprobe "$first"
		check "load $load" modprobe "$second"
		read -r first second <<<"$unload"
		check "unload $first" unload "$first"
		check "unload $second" unload "$second"

		read -r first second <<<"$load"
		modprobe -a "$first" "$second"
		read -r first second <<<"$unload"
		check "load $load, link rrxe" link_add 1 rrxe
		check "link rxe" link_add 2 rxe
		check "unload $first under its link" unload_under_link "$first"
		if [[ $first == rrxe ]]; then
			check "its device is gone" gone rrxe1
			check "that of the other is not" state rxe2 ACTIVE
		else
			# ib_core removes all devices with the driver ID of rdma_rxe, which is rrxe's, too.
			check "its device is gone" gone rxe2
			wait_for 2 gone rrxe1 || in1 rdma link del rrxe1
			check "rrxe makes a new link" link_add 1 rrxe
		fi
		check "unload $second under its link" unload_under_link "$second"
		DEV1='' DEV2=''
		none_left "that"
	done
done
check "rdma link add loads rrxe" link_add 1
check "rrxe is loaded" loaded rrxe
