#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=400
# Tests unchanged in-kernel consumers (ULPs): block storage (NVMe over fabrics), a file system (NFS)
# and sockets (RDS). The transferred data is compared. NFS runs between two hosts, which a veth pair
# connects, NVMe and RDS between two devices of one host.
source "$(dirname "$0")/../lib/guest.sh"

readonly NEAR=10.78.0.1 FAR=10.78.0.2
readonly NVMET=/sys/kernel/config/nvmet NQN=rrxe-test
WORK=$(mktemp -d)

# NVMe and RDS work in the initial network namespace only. So that namespace gets two devices, one
# on each end of a veth pair. The rules and routes send packets between their addresses over the
# veth pair instead of the local routing table.
one_host_up() {
	local side
	ip link add near mtu 4200 type veth peer name far mtu 4200 &&
		ip addr add $NEAR/24 dev near && ip addr add $FAR/24 dev far || return
	for side in near far; do
		ip link set $side up
		echo 1 >/proc/sys/net/ipv4/conf/$side/accept_local
		echo 0 >/proc/sys/net/ipv4/conf/$side/rp_filter
	done
	echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
	ip neigh add $FAR lladdr "$(</sys/class/net/far/address)" dev near nud permanent
	ip neigh add $NEAR lladdr "$(</sys/class/net/near/address)" dev far nud permanent
	ip route add $FAR dev near src $NEAR table 20
	ip route add $NEAR dev far src $FAR table 21
	ip rule add pref 300 lookup local
	ip rule add pref 10 to $NEAR iif near lookup local
	ip rule add pref 11 to $FAR iif far lookup local
	ip rule add pref 20 to $FAR lookup 20
	ip rule add pref 21 to $NEAR lookup 21
	ip rule del pref 0
	rdma link add "${TYPE}1" type "$TYPE" netdev near &&
		rdma link add "${TYPE}2" type "$TYPE" netdev far &&
		wait_for 10 gid_index "${TYPE}1" $NEAR && wait_for 10 gid_index "${TYPE}2" $FAR &&
		wait_for 20 ping -q -c 1 -W 5 -I $NEAR $FAR
}

one_host_down() {
	local pref
	[[ ! -e /sys/class/infiniband/${TYPE}1 ]] || rdma link del "${TYPE}1"
	[[ ! -e /sys/class/infiniband/${TYPE}2 ]] || rdma link del "${TYPE}2"
	ip rule add pref 0 lookup local
	for pref in 10 11 20 21 300; do ip rule del pref $pref; done
	[[ ! -e /sys/class/net/near ]] || ip link del near
}

# NVMe: the target exports a RAM disk, and the host attaches it.
nvme_export() {
	modprobe brd rd_nr=1 rd_size=$((64 << 10)) && modprobe nvmet-rdma use_srq=1 && modprobe nvme-rdma || return
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config || return
	local subsystem=$NVMET/subsystems/$NQN port=$NVMET/ports/1
	mkdir -p "$subsystem/namespaces/1" "$port" &&
		echo 1 >"$subsystem/attr_allow_any_host" &&
		echo -n /dev/ram0 >"$subsystem/namespaces/1/device_path" &&
		echo 1 >"$subsystem/namespaces/1/enable" &&
		echo rdma >"$port/addr_trtype" && echo ipv4 >"$port/addr_adrfam" &&
		echo $FAR >"$port/addr_traddr" && echo 4420 >"$port/addr_trsvcid" &&
		ln -s "$subsystem" "$port/subsystems/$NQN"
}

nvme_attach() {
	local options="transport=rdma,traddr=$FAR,trsvcid=4420,host_traddr=$NEAR,nqn=$NQN,nr_io_queues=2,queue_size=32"
	echo "$options" >/dev/nvme-fabrics && wait_for 10 test -b /dev/nvme0n1
}

# nvme_io BLOCK WRITERS: writes random data in blocks of BLOCK bytes by WRITERS processes at a time.
# Then compares this data with the data on the NVMe device and on the RAM disk itself.
nvme_io() {
	local block=$1 writers=$2 size=$((8 << 20)) writer disk
	head -c $((size * writers)) /dev/urandom >"$WORK/data"
	rm -f "$WORK/failed"
	for ((writer = 0; writer < writers; writer++)); do
		dd if="$WORK/data" of=/dev/nvme0n1 bs="$block" count=$((size / block)) oflag=direct \
			skip=$((writer * size / block)) seek=$((writer * size / block)) status=none || touch "$WORK/failed" &
	done
	wait
	[[ ! -e $WORK/failed ]] || return
	for disk in /dev/ram0 /dev/nvme0n1; do
		dd if=$disk bs="$block" count=$((size * writers / block)) iflag=direct status=none | cmp - "$WORK/data" || return
	done
}

nvme_detach() { echo 1 >/sys/class/nvme/nvme0/delete_controller; }

nvme_withdraw() {
	local subsystem=$NVMET/subsystems/$NQN port=$NVMET/ports/1
	rm "$port/subsystems/$NQN" && rmdir "$port" && echo 0 >"$subsystem/namespaces/1/enable" &&
		rmdir "$subsystem/namespaces/1" && rmdir "$subsystem"
}

try_nvme() {
	check "NVMe: the target exports a RAM disk" nvme_export || return
	check "NVMe: the host attaches the disk" nvme_attach || return
	check "NVMe: the target uses a shared receive queue" \
		grep -q "${TYPE}2.*lqpn" <(rdma resource show srq)
	check "NVMe: blocks of 4 KiB are read as written" nvme_io 4096 1
	check "NVMe: blocks of 256 KiB are read as written" nvme_io 262144 1
	check "NVMe: blocks of four writers are read as written" nvme_io 65536 4
	check "NVMe: the host detaches the disk" nvme_detach
	check "NVMe: the target withdraws the disk" nvme_withdraw
}

# net1 and net2 COMMAND...: run the command in the network namespace of a host, but with this
# shell's mounts.
net1() { nsenter --net=/run/netns/h1 "$@"; }
net2() { nsenter --net=/run/netns/h2 "$@"; }

# NFS: host 2 exports a tmpfs directory to host 1. No mountd runs: the kernel's export caches get
# the entries beforehand.
nfs_export() {
	local never=2147483647
	modprobe -a nfsd rpcrdma && mkdir -p "$WORK"/{export,nfsd} && mount -t tmpfs none "$WORK/export" &&
		net2 mount -t nfsd none "$WORK/nfsd" || return
	net2 bash -e <<-END
		echo -3 +4 >$WORK/nfsd/versions
		echo 10 >$WORK/nfsd/nfsv4gracetime
		echo "nfsd $HOST1_V4 $never host1" >/proc/net/rpc/auth.unix.ip/channel
		echo "host1 $WORK/export $never 0x2402 0 0 0" >/proc/net/rpc/nfsd.export/channel
		echo "host1 1 \\x00000000 $never $WORK/export" >/proc/net/rpc/nfsd.fh/channel
		echo rdma 20049 >$WORK/nfsd/portlist
		echo 2 >$WORK/nfsd/threads
	END
}

nfs_withdraw() { echo 0 >"$WORK/nfsd/threads" && umount "$WORK/nfsd" && umount "$WORK/export"; }

nfs_mount() {
	modprobe nfsv4 && mkdir -p "$WORK/mount" &&
		net1 mount -i -t nfs4 $HOST2_V4:/ "$WORK/mount" \
			-o "vers=4.2,proto=rdma,port=20049,addr=$HOST2_V4,clientaddr=$HOST1_V4,soft,timeo=600,sec=sys" &&
		[[ $(findmnt -no OPTIONS "$WORK/mount") == *proto=rdma* ]]
}

# NFS transfers large files by RDMA READ and WRITE, small ones in messages. The server's directory
# shows the data that the client wrote, and the client reads data that was written to the server's
# directory.
nfs_io() {
	local size name
	for size in 1 4000 100000 8000000; do
		name=from1.$size
		head -c $size /dev/urandom >"$WORK/data"
		cp "$WORK/data" "$WORK/mount/$name" && cmp "$WORK/data" "$WORK/export/$name" || return
		name=from2.$size
		cp "$WORK/data" "$WORK/export/$name" && cmp "$WORK/data" "$WORK/mount/$name" || return
	done
	for size in 4096 1048576; do
		dd if="$WORK/data" of="$WORK/mount/direct" bs=$size oflag=direct status=none conv=fsync || return
		dd if="$WORK/mount/direct" bs=$size iflag=direct status=none | cmp - "$WORK/data" || return
	done
}

nfs_many() {
	local number
	for number in {1..100}; do echo "$number" >"$WORK/mount/small.$number" || return; done
	cat "$WORK"/mount/small.* | sort -n | cmp - <(seq 100) && rm "$WORK"/mount/small.*
}

# try_nfs TYPE1 TYPE2: tests NFS between devices of these link types. The server runs on between
# calls.
try_nfs() {
	local name="NFS, $1 to $2"
	link_add 1 "$1" && link_add 2 "$2" || return
	check "$name: the client mounts the directory" nfs_mount &&
		check "$name: files are read as written" nfs_io &&
		check "$name: many small files are read as written" nfs_many
	check "$name: the client unmounts the directory" umount "$WORK/mount"
	link_del 1
	link_del 2
}

_gone() { [[ ! -e /sys/class/infiniband/${TYPE}1 && ! -e /sys/class/infiniband/${TYPE}2 ]]; }

# remove_under_load COMMAND [attached]: exports an NVMe disk, attaches it if `attached`, and
# connects RDS sockets. Then succeeds if COMMAND removes the devices within a time limit. If the
# target's device is removed before the NVMe host's, the host waits a minute for its pending
# requests, over any driver.
remove_under_load() {
	rm -f "$WORK/ready"
	one_host_up && nvme_export || return
	[[ -z ${2:-} ]] || { nvme_attach && nvme_io 65536 1; } || return
	python3 "$(dirname "$0")/rds.py" $NEAR $FAR "$WORK/ready" &
	wait_for 30 test -e "$WORK/ready" || return
	patiently 60 bash -c "$1" && wait_for 30 _gone || return
	kill %% && wait %%
	[[ ! -e /sys/class/nvme/nvme0 ]] || nvme_detach
	nvme_withdraw && one_host_down
}

modprobe rdma_cm
check "two hosts" hosts_up 4200
if [[ -n $DEBUG_KERNEL ]] && ! modprobe -qn nfsd; then
	skip "NFS" "the debug kernel has none"
elif check "NFS: the server exports a directory" nfs_export; then
	try_nfs rrxe rrxe
	try_nfs rrxe rxe
	try_nfs rxe rrxe
	check "NFS: the server withdraws the directory" nfs_withdraw
fi
hosts_down

check "two devices on one host" one_host_up
try_nvme
check "RDS: the module rds_rdma loads" modprobe rds_rdma
check "RDS: messages of all sizes are received as sent" python3 "$(dirname "$0")/rds.py" $NEAR $FAR
one_host_down
check "links in use by NVMe and RDS can be deleted" \
	remove_under_load "rdma link del ${TYPE}1 && rdma link del ${TYPE}2" attached
check "the network device of links in use by NVMe and RDS can be deleted" \
	remove_under_load "ip link del near"
check "the module in use by NVMe and RDS can be removed" \
	remove_under_load "rmmod ${TYPE/#rxe/rdma_rxe}"
