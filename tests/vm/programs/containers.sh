#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: system timeout=300 packages=podman,crun,netavark
# vm-debug: skip The kernel sees network namespaces, which other scripts test on the debug kernel.
# Tests the steps of Documentation/install.rst, Containers, by podman: two containers without
# capabilities, each with a link of its own, whose ordinary users run RDMA programs. Their root file
# system is that of the guest, with changes of their own.
source "$(dirname "$0")/../lib/guest.sh"
readonly ENGINE=(podman --root /dev/shm/containers --runroot /run/containers --cgroup-manager cgroupfs --events-backend file)
readonly WRITES=("${SECOND[@]}" -n 200 -s 65536)

# container_up NUMBER: starts a container, gives it an eth0, and adds a link there.
container_up() {
	local name=c$1 pid
	"${ENGINE[@]}" run -d --name "$name" --network none --cap-drop all --ulimit memlock=-1 -v /dev/infiniband:/dev/infiniband \
		--device /dev/infiniband/rdma_cm --device-cgroup-rule 'c 231:* rw' --rootfs /:O sleep infinity || return
	pid=$("${ENGINE[@]}" inspect -f '{{.State.Pid}}' "$name")
	ln -sfn "/proc/$pid/ns/net" "/run/netns/h$1"
	ip link set "veth$1" netns "$pid" name eth0 && ip -n "h$1" addr add "10.77.0.$1/24" dev eth0 &&
		ip -n "h$1" link set eth0 up && nsenter -t "$pid" -n rdma link add "rrxe$1" type rrxe netdev eth0
}

is_active() { ip netns exec "h$1" rdma link show "rrxe$1/1" | grep -q 'state ACTIVE'; }

# in_container NUMBER COMMAND...: runs a command in a container as the user nobody.
in_container() {
	local name=c$1
	shift
	"${ENGINE[@]}" exec --user nobody "$name" "$@"
}

# devices_of NUMBER: prints the RDMA devices that programs of a container can use.
devices_of() { in_container "$1" ibv_devices | awk 'NR > 2 { printf "%s ", $1 }'; }
sees_only() { [[ $(devices_of "$1") == "$2 " ]]; }

# transfers READY SERVER-COMMAND -- CLIENT-COMMAND: runs a server in container 2, and a client in
# container 1 when the command READY succeeds.
transfers() {
	local ready=$1 server=() status=0 pid
	shift
	while [[ $1 != -- ]]; do
		server+=("$1")
		shift
	done
	shift
	in_container 2 "${server[@]}" >/tmp/server 2>&1 &
	pid=$!
	{ wait_for 20 "$ready" && in_container 1 "$@"; } || status=$?
	[[ $status -eq 0 ]] || kill $pid
	wait $pid || status=$?
	[[ $status -eq 0 ]] || cat /tmp/server
	return $status
}

cm_listens() { in2 rdma resource show cm_id | grep -q LISTEN; }

containers_down() {
	"${ENGINE[@]}" rm -f -t 0 c1 c2
	rm -f /run/netns/h{1,2}
}

modprobe -a ib_core rdma_ucm
check "exclusive mode can be set" rdma system set netns exclusive
ip link add veth1 type veth peer name veth2
check "container 1 with a link" container_up 1
check "container 2 with a link" container_up 2
check "the link of container 1 is ACTIVE" wait_for 10 is_active 1
check "the link of container 2 is ACTIVE" wait_for 10 is_active 2
check "programs of container 1 see its device only" sees_only 1 rrxe1
check "programs of container 2 see its device only" sees_only 2 rrxe2
check "an ordinary user of a container writes to memory of another container" transfers \
	_listening ib_write_bw -d rrxe2 "${WRITES[@]}" -- ib_write_bw -d rrxe1 "${WRITES[@]}" $HOST2_V4
check "librdmacm connects the containers" transfers cm_listens rping -s -C 3 -a $HOST2_V4 -- rping -c -C 3 -V -a $HOST2_V4
refuse "a container can't add a link" "Operation not permitted" "${ENGINE[@]}" exec c1 rdma link add more type rrxe netdev eth0
check "the containers end" containers_down
check "their links end with them" wait_for 30 sh -c '! ls /sys/class/infiniband | grep .'
check "shared mode can be set again" wait_for 30 rdma system set netns shared
