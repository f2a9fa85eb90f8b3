#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=200
# Network namespaces: in shared mode all namespaces see a device; in exclusive mode a device belongs
# to one namespace and can move to another. A namespace has the UDP port while it has devices. A
# namespace can end with devices. Topology: two hosts over a veth pair, and further namespaces.
source "$(dirname "$0")/../lib/guest.sh"

# Replaces gid_index of lib/guest.sh: sysfs shows a device only in its own namespace.
eval "_here_$(declare -f gid_index)"
gid_index() { ip netns exec "h${1: -1}" bash -c "$(declare -f _gid_of _here_gid_index); _here_gid_index $1 $2"; }
active() { ip netns exec "h$1" grep -q ACTIVE "/sys/class/infiniband/rrxe$1/ports/1/state"; }
link_up() {
	ip netns exec "h$1" rdma link add "rrxe$1" type rrxe netdev eth0 && wait_for 10 active "$1"
	printf -v "DEV$1" rrxe%s "$1"
}

devices() { ip netns exec "$1" rdma dev show | sed 's/^[0-9]*: \([^:]*\):.*/\1/' | paste -sd' '; }
sees() { [[ $(devices "$1") == "$2" ]] || { echo "$1 sees \"$(devices "$1")\", not \"$2\""; return 1; }; }
ports() { ip netns exec "$1" ss -Hlun 'sport = :4791' | wc -l; }
has_port() { [[ $(ports "$1") == "$2" ]]; }
mode_is() { rdma system show | grep -q "netns $1"; }
verbs_see() { ip netns exec "$1" ibv_devices | grep -qw "$2"; }
blind() { ! verbs_see "$@"; }

modprobe ib_uverbs
# The mode holds for namespaces that are created later, so it is set before the hosts' namespaces
# are created. In exclusive mode each namespace has its own devices.
check "exclusive" rdma system set netns exclusive
check "is shown" mode_is exclusive
check "two hosts" hosts_up 1500
check "link on host 1" link_up 1
check "link on host 2" link_up 2
check "host 1 sees its own" sees h1 "$DEV1"
check "host 2 sees its own" sees h2 "$DEV2"
check "verbs of host 1 as well" verbs_see h1 "$DEV1"
check "but not the other's" blind h1 "$DEV2"
check "init sees none" test -z "$(rdma dev show)"
check "pingpong" pingpong -n 50
in1 ip link add dummy0 type dummy
check "a name is one in its namespace" in1 rdma link add "$DEV2" type rrxe netdev dummy0
refuse "and can't move to where it is taken" "File exists" in1 rdma dev set "$DEV2" netns h2
check "the other keeps its own" pingpong -n 50
in1 rdma link del "$DEV2"

# A device moves; its network device stays.
ip netns add h3
check "move a device" in1 rdma dev set "$DEV1" netns h3
check "it is gone here" sees h1 ""
check "and there" sees h3 "$DEV1"
check "verbs find it there" verbs_see h3 "$DEV1"
check "the UDP port stays with the network device" has_port h1 2
check "nobody else has one" has_port h3 0
ip netns exec h3 ip link set lo up
check "it moves back" ip netns exec h3 rdma dev set "$DEV1" netns h1
check "and works" pingpong -n 50

# The device moves while a process uses it: the process's work requests are flushed.
check "polling processes see flushes when their device moves" in1 python3 "$LIB/netdevs.py" unplug "$DEV1" \
	"$(gid_index "$DEV1" $HOST1_V4)" rdma dev set "$DEV1" netns h3
check "it moved" sees h3 "$DEV1"

# If the network device of an RDMA device is in another namespace, the RDMA device moves to the
# initial namespace when its own namespace ends.
check "the namespace ends" ip netns del h3
back() { [[ -n $(rdma dev show) ]]; }
check "its device is back in init" wait_for 10 back
init_name=$(rdma dev show | sed 's/^[0-9]*: \([^:]*\):.*/\1/')
note "called $init_name"
check "from where it returns" rdma dev set "$init_name" netns h1
[[ $init_name == "$DEV1" ]] || in1 rdma dev set "$init_name" name "$DEV1"
check "and works" pingpong -n 50

# If the network device is in the same namespace, the RDMA device ends with the namespace.
check "a namespace with device and network device ends" ip netns del h1
none() { [[ -z $(rdma dev show) && -z $(in2 rdma dev show) ]]; }
check "both are gone, and the other's, whose veth was its peer" wait_for 10 none
DEV1='' DEV2=''
hosts_down

# A namespace with many devices ends. None of the devices may move to the initial namespace
# meanwhile: the flush of each one would then take as long as that of all together may (FLUSH_TIME,
# device/disassociate.rs). The kernel destroys the namespace's network devices after ib_core's exit
# handler (rdma_dev_exit_net(), device.c), which moves remaining RDMA devices.
DEVICES=(many{1..8})
many() {
	local device
	ip netns add h4 && ip link add peer type veth peer name eth0 netns h4 || return
	for device in "${DEVICES[@]}"; do
		ip -n h4 link add "$device" type dummy && ip -n h4 link set "$device" up &&
			ip -n h4 addr add "10.79.${device#many}.1/24" dev "$device" &&
			ip netns exec h4 rdma link add "$device" type rrxe netdev "$device" || return
	done
}
network_devices_gone() { ! ip link show peer; }
ends() {
	local begin=${EPOCHREALTIME/[.,]/}
	ip netns del h4 && wait_for 60 network_devices_gone || return
	TOOK=$(((${EPOCHREALTIME/[.,]/} - begin) / 1000))
}
check "a namespace with ${#DEVICES[@]} devices" many
check "a process outside stalls QPs of each" \
	hold ip netns exec h4 python3 "$LIB/netdevs.py" outside "${DEVICES[@]}"
check "the namespace ends" ends
note "in $TOOK ms"
check "init saw none of its devices" release
# Namespaces end after `ip netns del` has returned (cleanup_net()). ib_core refuses to change the
# mode while there are others than the initial one.
check "shared again" wait_for 30 rdma system set netns shared

check "namespaces share devices" mode_is shared
check "two hosts" hosts_up 1500
check "a namespace without devices leaves the UDP port alone" has_port h1 0
check "link on host 1" link_up 1
check "it takes the UDP port, of both families" has_port h1 2
check "in its namespace only" has_port h2 0
check "the other namespace sees the device" sees h2 "$DEV1"
refuse "shared devices don't move" "not supported" in1 rdma dev set "$DEV1" netns h2
in1 ip link add dummy0 type dummy
in1 rdma link add second type rrxe netdev dummy0
check "a second device shares the port" has_port h1 2
in1 rdma link del second
check "and leaves it to the first" has_port h1 2
link_del 1
check "the last gives it back" has_port h1 0
