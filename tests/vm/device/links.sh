#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=300
# Links: invalid links are refused with the right error, and those that rrxe refuses with a line in
# the kernel's log; the port's state, MTU and GIDs follow the network device; rrxe and the C driver
# (rdma_rxe) share the UDP port and the driver ID, and can be loaded and unloaded in every order.
# Topology: two hosts over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"

# `mark_log` writes a mark to the kernel's log, and `rrxe_logged PATTERN` looks for rrxe's lines
# after the mark.
mark_log() {
	_marks=$((${_marks:-0} + 1))
	echo "rrxe-test listens $$ $_marks" >/dev/kmsg
}

rrxe_logged() { dmesg | sed -n "/rrxe-test listens $$ $_marks\$/,\$p" | grep -Eq "rrxe: .*($1)"; }

# refuse_and_log NAME ERROR LOG COMMAND...: checks that COMMAND fails with ERROR, and that rrxe logs
# a line that matches LOG.
refuse_and_log() {
	local name=$1 error=$2 log=$3
	shift 3
	mark_log
	refuse "$name fails: $error" "$error" "$@"
	if rrxe_logged "$log"; then
		pass "$name: the log names the reason"
	else
		fail "$name: the log names the reason" "$(dmesg | tail -n 3)"
	fi
}

devices() { ls /sys/class/infiniband 2>/dev/null; }
no_devices() { [[ -z $(devices) ]]; }
check_no_devices() { check "$1 leaves no device" wait_for 5 no_devices; }
state() { grep -q "$2" "/sys/class/infiniband/$1/ports/1/state"; }
device_gone() { [[ ! -e /sys/class/infiniband/$1 ]]; }
gid_gone() { ! gid_index "$@"; }
mtu_is() { ibv_devinfo -d "$DEV1" | grep -Eq "active_mtu:\s+$1 "; }
loaded() { [[ -e /sys/module/$1 ]]; }
unload() { rmmod "$1" && ! loaded "$1"; }
# With lockdep the socket of the C driver's QP1 holds a reference to the module
# (rxe_reclassify_send_socket(), drivers/infiniband/sw/rxe/rxe_qp.c), so the link is deleted first.
unload_under_link() { [[ -z $DEBUG_KERNEL || $1 != rdma_rxe ]] || in2 rdma link del rxe2 && unload "$1"; }

check "two hosts" hosts_up 1500
check "link add loads the module" in1 rdma link add first type rrxe netdev eth0
check "rrxe is loaded by the first link add" loaded rrxe
check "the first link is deleted" in1 rdma link del first

# ib_core itself refuses these links, and logs nothing.
refuse "link add on a missing network device fails with ENODEV" \
	"No such device" in1 rdma link add bad type rrxe netdev absent0
refuse "link add with an empty name fails with EINVAL" \
	"Invalid argument" in1 rdma link add "" type rrxe netdev eth0
refuse "link add with a name that is a pattern fails with EINVAL" \
	"Invalid argument" in1 rdma link add bad%d type rrxe netdev eth0

ip -n h1 link add link eth0 name vlan5 type vlan id 5
refuse_and_log "link add on a VLAN" \
	"Operation not permitted" "vlan5: is a VLAN" in1 rdma link add bad type rrxe netdev vlan5
ip -n h1 link del vlan5
ip -n h1 link add tunnel type sit remote $HOST2_V4 local $HOST1_V4
refuse_and_log "link add on a sit tunnel" \
	"Invalid argument" "tunnel: is neither" in1 rdma link add bad type rrxe netdev tunnel
ip -n h1 link del tunnel
check_no_devices "a refused link add"

check "link add on host 1" link_add 1
refuse_and_log "a second link add on the same network device" \
	"File exists" "eth0: has a link" in1 rdma link add bad type rrxe netdev eth0
ip -n h1 link add spare0 type veth peer name spare1
ip -n h1 link set spare0 up
ip -n h1 link set spare1 up
refuse_and_log "link add with a name that is taken" \
	"Too many open files" "spare0: .*$DEV1" in1 rdma link add "$DEV1" type rrxe netdev spare0
check "link add on a second network device of the namespace" \
	in1 rdma link add spare type rrxe netdev spare0
check "link add on the loopback device" in1 rdma link add loop type rrxe netdev lo
check "the link on the second network device is deleted" in1 rdma link del spare
check "the link on the loopback device is deleted" in1 rdma link del loop

# The driver with the first link in a namespace has the UDP port there. The test accepts two errors
# from the C driver: EADDRINUSE and EPERM.
refuse "a link of rdma_rxe is refused in a namespace with a link of rrxe" \
	"Address already in use|Operation not permitted" in1 rdma link add bad type rxe netdev spare0
check "the link of rrxe stays ACTIVE after the refusal" state "$DEV1" ACTIVE
link_del 1
check "a link of rdma_rxe is added" in1 rdma link add first type rxe netdev eth0
refuse_and_log "link add in a namespace with a link of rdma_rxe" \
	"Address already in use" "UDP port 4791" in1 rdma link add bad type rrxe netdev spare0
refuse_and_log "link add on the network device of a link of rdma_rxe" \
	"Address already in use" "UDP port 4791" \
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
	refuse_and_log "link add while an $family socket has UDP port 4791" \
		"Address already in use" "UDP port 4791" \
		in1 rdma link add bad type rrxe netdev eth0
	kill $holder
	wait $holder
done
check_no_devices "a link add without the UDP port"
ip -n h1 link del spare0

# Links work after all these refusals.
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "pingpong after the refused links" pingpong -n 50

# Ports follow their network devices.
ip -n h1 link set eth0 down
check "the port is DOWN while the network device is down" wait_for 5 state "$DEV1" DOWN
check "the peer's port is DOWN without carrier" wait_for 5 state "$DEV2" DOWN
ip -n h1 link set eth0 up
check "the port is ACTIVE once the network device is up" wait_for 5 state "$DEV1" ACTIVE
check "the peer's port is ACTIVE once it has carrier" wait_for 5 state "$DEV2" ACTIVE
for pair in 4200:4096 2200:2048 1500:1024 650:512 400:256; do
	ip -n h1 link set eth0 mtu ${pair%:*}
	check "with an MTU of ${pair%:*}, active_mtu is ${pair#*:}" wait_for 5 mtu_is "${pair#*:}"
done
ip -n h1 link set eth0 mtu 1500
for address in 10.78.3.1/24 fd78::301/64; do
	ip -n h1 addr add $address dev eth0
	check "the new address ${address%/*} gets a GID" wait_for 5 gid_index "$DEV1" "${address%/*}"
	ip -n h1 addr del $address dev eth0
	check "the removed address ${address%/*} loses its GID" \
		wait_for 5 gid_gone "$DEV1" "${address%/*}"
done
check "pingpong after changes of state, MTU and addresses" pingpong -n 50
ip -n h1 link del eth0
check "the RDMA device ends with its network device" wait_for 5 device_gone "$DEV1"
check "the RDMA device on the other end of the veth pair ends, too" wait_for 5 device_gone "$DEV2"
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
		check "both modules are loaded in the order $load" modprobe "$second"
		read -r first second <<<"$unload"
		check "$first is unloaded without links" unload "$first"
		check "$second is unloaded without links" unload "$second"

		read -r first second <<<"$load"
		modprobe -a "$first" "$second"
		read -r first second <<<"$unload"
		check "loaded in the order $load: a link of rrxe is added" link_add 1 rrxe
		check "a link of rdma_rxe is added beside rrxe" link_add 2 rxe
		check "$first is unloaded while it has a link" unload_under_link "$first"
		if [[ $first == rrxe ]]; then
			check "the device of $first ends with its module" device_gone rrxe1
			check "the device of rdma_rxe stays ACTIVE without rrxe" state rxe2 ACTIVE
		else
			# ib_core removes all devices with the driver ID of rdma_rxe, which is rrxe's, too.
			check "the device of $first ends with its module" device_gone rxe2
			wait_for 2 device_gone rrxe1 || in1 rdma link del rrxe1
			check "rrxe adds a new link after rdma_rxe is unloaded" link_add 1 rrxe
		fi
		check "$second is unloaded while it has a link" unload_under_link "$second"
		DEV1='' DEV2=''
		check_no_devices "unload under a link"
	done
done
check "link add loads rrxe after all unloads" link_add 1
check "rrxe is loaded again" loaded rrxe
