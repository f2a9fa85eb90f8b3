#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=200
# Network namespaces: in shared mode all namespaces see a device; in exclusive mode a device belongs
# to one namespace and can move to another. A namespace has the UDP port while its network devices
# have links. A namespace can end with devices. Topology: two hosts over a veth pair, and further
# namespaces.
source "$(dirname "$0")/../lib/guest.sh"

# Replaces gid_index of lib/guest.sh: in exclusive mode sysfs shows a device only in its own
# namespace.
eval "_local_$(declare -f gid_index)"
gid_index() {
	ip netns exec "h${1: -1}" \
		bash -c "$(declare -f _gid_of _local_gid_index); _local_gid_index $1 $2"
}
active() { ip netns exec "h$1" grep -q ACTIVE "/sys/class/infiniband/rrxe$1/ports/1/state"; }
link_up() {
	ip netns exec "h$1" rdma link add "rrxe$1" type rrxe netdev eth0 && wait_for 10 active "$1"
	printf -v "DEV$1" rrxe%s "$1"
}

devices() { ip netns exec "$1" rdma dev show | sed 's/^[0-9]*: \([^:]*\):.*/\1/' | paste -sd' '; }
# sees_only NAMESPACE DEVICES: succeeds if these are all RDMA devices that the namespace sees.
sees_only() {
	[[ $(devices "$1") == "$2" ]] || {
		echo "$1 sees \"$(devices "$1")\", not \"$2\""
		return 1
	}
}
ports() { ip netns exec "$1" ss -Hlun 'sport = :4791' | wc -l; }
# has_port NAMESPACE COUNT: succeeds if the namespace has COUNT sockets on the UDP port 4791. rrxe
# has one of IPv4 and one of IPv6.
has_port() { [[ $(ports "$1") == "$2" ]]; }
mode_is() { rdma system show | grep -q "netns $1"; }
verbs_find() { ip netns exec "$1" ibv_devices | grep -qw "$2"; }
verbs_lack() { ! verbs_find "$@"; }

modprobe ib_uverbs
# ib_core refuses to change the mode while there are namespaces other than the initial one, so it is
# set before the hosts are created. In exclusive mode each namespace has its own devices.
check "exclusive mode can be set" rdma system set netns exclusive
check "rdma system shows exclusive mode" mode_is exclusive
check "two hosts" hosts_up 1500
check "link on host 1" link_up 1
check "link on host 2" link_up 2
check "host 1 sees only its own device" sees_only h1 "$DEV1"
check "host 2 sees only its own device" sees_only h2 "$DEV2"
check "libibverbs on host 1 finds its device" verbs_find h1 "$DEV1"
check "libibverbs on host 1 doesn't find the device of host 2" verbs_lack h1 "$DEV2"
check "the initial namespace sees no device" test -z "$(rdma dev show)"
check "pingpong" pingpong -n 50
in1 ip link add dummy0 type dummy
check "devices of two namespaces may have the same name" \
	in1 rdma link add "$DEV2" type rrxe netdev dummy0
refuse "a device can't move to a namespace with a device of its name" \
	"File exists" in1 rdma dev set "$DEV2" netns h2
check "pingpong works after the refused move" pingpong -n 50
in1 rdma link del "$DEV2"

# A device moves; its network device stays.
ip netns add h3
check "a device moves to another namespace" in1 rdma dev set "$DEV1" netns h3
check "its old namespace doesn't see the moved device" sees_only h1 ""
check "its new namespace sees the moved device" sees_only h3 "$DEV1"
check "libibverbs finds the moved device" verbs_find h3 "$DEV1"
check "the namespace of the network device keeps the UDP port" has_port h1 2
check "the new namespace of the device doesn't have the UDP port" has_port h3 0
ip netns exec h3 ip link set lo up
check "the device moves back" ip netns exec h3 rdma dev set "$DEV1" netns h1
check "pingpong works after the device has moved back" pingpong -n 50

# The device moves while a process uses it: the process's work requests are flushed.
check "a polling process gets flush errors when its device moves" \
	in1 python3 "$LIB/netdevs.py" unplug "$DEV1" \
	"$(gid_index "$DEV1" $HOST1_V4)" rdma dev set "$DEV1" netns h3
check "the device has moved from under the process" sees_only h3 "$DEV1"

# If the network device of an RDMA device is in another namespace, the RDMA device moves to the
# initial namespace when its own namespace ends.
check "the namespace of the moved device is deleted" ip netns del h3
init_has_device() { [[ -n $(rdma dev show) ]]; }
check "the device of the ended namespace moves to the initial one" wait_for 10 init_has_device
init_name=$(rdma dev show | sed 's/^[0-9]*: \([^:]*\):.*/\1/')
note "called $init_name"
check "the device moves from the initial namespace to host 1" rdma dev set "$init_name" netns h1
[[ $init_name == "$DEV1" ]] || in1 rdma dev set "$init_name" name "$DEV1"
check "pingpong works after the device has left the initial namespace" pingpong -n 50

# If the network device is in the same namespace, the RDMA device ends with the namespace.
check "a namespace with a device and its network device is deleted" ip netns del h1
no_devices() { [[ -z $(rdma dev show) && -z $(in2 rdma dev show) ]]; }
check "the device ends, and so does the device on the other end of the veth pair" \
	wait_for 10 no_devices
DEV1='' DEV2=''
hosts_down

# A namespace with many devices ends, and a process has QPs of each device that are parked: they
# wait for page faults. None of the devices may move to the initial namespace meanwhile: each single
# device that moves may be flushed for FLUSH_TIME, and all devices that end together have that time
# only once (device/disassociate.rs). The kernel destroys the namespace's network devices after
# ib_core's exit handler (rdma_dev_exit_net(), device.c), which moves remaining RDMA devices.
DEVICES=(many{1..8})
many_links_up() {
	local device
	ip netns add h4 && ip link add peer type veth peer name eth0 netns h4 || return
	for device in "${DEVICES[@]}"; do
		ip -n h4 link add "$device" type dummy && ip -n h4 link set "$device" up &&
			ip -n h4 addr add "10.79.${device#many}.1/24" dev "$device" &&
			ip netns exec h4 rdma link add "$device" type rrxe netdev "$device" || return
	done
}
netdevs_gone() { ! ip link show peer; }
delete_h4() {
	local begin=${EPOCHREALTIME/[.,]/}
	ip netns del h4 && wait_for 60 netdevs_gone || return
	TOOK=$(((${EPOCHREALTIME/[.,]/} - begin) / 1000))
}
check "a namespace with ${#DEVICES[@]} devices is set up" many_links_up
check "a process that has left the namespace has parked QPs of each device" \
	start_holder ip netns exec h4 python3 "$LIB/netdevs.py" uevents "${DEVICES[@]}"
check "the namespace with ${#DEVICES[@]} devices ends" delete_h4
note "in $TOOK ms"
check "the initial namespace gets no uevent of these devices" end_holder
# Namespaces end after `ip netns del` has returned (cleanup_net()). ib_core refuses to change the
# mode while there are others than the initial one.
check "shared mode can be set again" wait_for 30 rdma system set netns shared

check "rdma system shows shared mode" mode_is shared
check "two hosts" hosts_up 1500
check "a namespace without devices doesn't have the UDP port" has_port h1 0
check "link on host 1" link_up 1
check "a namespace with a device has the UDP port of both families" has_port h1 2
check "other namespaces don't have the UDP port" has_port h2 0
check "another namespace sees the shared device" sees_only h2 "$DEV1"
refuse "a device can't move in shared mode" "not supported" in1 rdma dev set "$DEV1" netns h2
in1 ip link add dummy0 type dummy
in1 rdma link add second type rrxe netdev dummy0
check "two devices of a namespace share the UDP port" has_port h1 2
in1 rdma link del second
check "the first device keeps the UDP port when the second one is deleted" has_port h1 2
link_del 1
check "the namespace gives the UDP port back with its last device" has_port h1 0
