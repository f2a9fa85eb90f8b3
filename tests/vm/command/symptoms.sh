#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=600
# vm-debug: skip The script tests messages of user space and of the kernel's module loader.
# Provokes the symptoms of Documentation/troubleshooting.rst. The programs and the kernel must print
# the messages that the page has, and the counters that it names must count.
source "$(dirname "$0")/../lib/guest.sh"
PROVIDERS=$(dirname /usr/lib/*-linux-gnu/libibverbs/librxe-*.so)
readonly PAGE=/payload/troubleshooting.rst PROVIDERS
# A user without the right to lock memory and to open files of root.
readonly USER_WITHOUT_RIGHTS=(setpriv --reuid 65534 --clear-groups --bounding-set -all --inh-caps -all)

# symptom TEXT COMMAND...: passes if the command fails, and if its output and the page have the text.
symptom() {
	local text=$1 rc=0
	shift
	_capture "$@" || rc=$?
	[[ $rc -ne 0 && $OUTPUT == *"$text"* ]]
	judge $? "$text" "$OUTPUT"$'\n'"status $rc: $*"
}

# log TEXT: passes if the kernel's log since the last symptom, and the page, have the text.
log() { check "the kernel logs: $1" bash -c 'dmesg | tail -n 5 | grep -qF "$1" && grep -qF "$1" "$2"' - "$1" $PAGE; }

# judge STATUS TEXT SEEN: passes if the status is 0 and the page has the text.
judge() {
	if [[ $1 -ne 0 ]]; then
		fail "symptom: $2" "$3"
	elif ! grep -qF -- "$2" $PAGE; then
		fail "symptom: $2" "troubleshooting.rst does not have this text"
	else
		pass "symptom: $2"
	fi
}

counter() { in1 rdma statistic show link "$DEV1/1" | grep -o "$1 [0-9]*" | cut -d' ' -f2; }

# connects ADDRESS: connects host 1 to the address by rping.
connects() { patiently 60 ip netns exec h1 rping -c -C 1 -a "$1"; }
# adds NAME ...: adds a link on host 1.
adds() { in1 rdma link add "$@"; }

# The module.
module=$(modinfo -n rrxe)
mv "$module" /tmp/rrxe.ko
depmod
symptom "Module rrxe not found" modprobe rrxe
check "two hosts" hosts_up 1500
symptom "Invalid argument" adds rrxe1 type rrxe netdev eth0
sed 's/vermagic=[0-9]*\./vermagic=9./' /tmp/rrxe.ko >"$module"
depmod
symptom "Exec format error" modprobe rrxe
log "version magic"
mv /tmp/rrxe.ko "$module"
depmod
check "modprobe rrxe" modprobe rrxe

# Links.
symptom "No IB devices found" ibv_devinfo
hold_roce_port
symptom "Address already in use" adds rrxe1 type rrxe netdev eth0
log "UDP port 4791 of this network namespace is in use"
kill $HOLDER
wait $HOLDER
check "link on host 1" link_add 1
check "link on host 2" link_add 2
symptom "File exists" adds other type rrxe netdev eth0
ip -n h1 link add link eth0 name eth0.5 type vlan id 5
symptom "Operation not permitted" adds other type rrxe netdev eth0.5
ip -n h1 link del eth0.5
ip -n h1 link add dummy0 type dummy
symptom "Too many open files in system" adds "$DEV1" type rrxe netdev dummy0
ip -n h1 link add tunnel type gre local $HOST1_V4 remote $HOST2_V4
symptom "Invalid argument" adds other type rrxe netdev tunnel
log "is neither an Ethernet nor a raw IP device"
ip -n h1 link del tunnel

# User space.
mount -t tmpfs none $PROVIDERS
symptom "No IB devices found" in1 ibv_devinfo
check "libibverbs names the missing provider if asked to" \
	grep -qF "no userspace device-specific driver found" <(IBV_SHOW_WARNINGS=1 ibv_devices 2>&1)
umount $PROVIDERS
chmod 600 /dev/infiniband/uverbs*
symptom "Failed to open device" in1 "${USER_WITHOUT_RIGHTS[@]}" ibv_devinfo -d "$DEV1"
symptom "Couldn't get context for" in1 "${USER_WITHOUT_RIGHTS[@]}" ibv_rc_pingpong -d "$DEV1" -g 1
chmod 666 /dev/infiniband/uverbs*
limited() { (ulimit -l 64 && in1 "${USER_WITHOUT_RIGHTS[@]}" ibv_rc_pingpong -d "$DEV1" -g 1 -s 1000000); }
symptom "Couldn't register MR" limited

# Connections.
gid1=$(gid_index "$DEV1" $HOST1_V4) gid2=$(gid_index "$DEV2" $HOST2_V4)
symptom "Failed to modify QP to RTR" run_server_and_client ibv_rc_pingpong -d "$DEV2" -g "$gid2" -- \
	ibv_rc_pingpong -d "$DEV1" $HOST2_V4
symptom "RDMA_CM_EVENT_REJECTED" connects $HOST2_V4
symptom "RDMA_CM_EVENT_ADDR_ERROR, error -110" connects 10.77.0.99
symptom "rdma_resolve_addr: Network is unreachable" connects 203.0.113.1
ip -n h1 addr add 198.51.100.1/24 dev dummy0
ip -n h1 link set dummy0 up
symptom "RDMA_CM_EVENT_ADDR_ERROR, error -19" connects 198.51.100.7
ip -n h1 link del dummy0
in2 nft "add table ip t; add chain ip t in { type filter hook input priority 0; }
	add rule ip t in udp dport 4791 drop"
symptom "RDMA_CM_EVENT_UNREACHABLE" connects $HOST2_V4

# Transfers. The firewall of host 2 still drops RoCE packets.
before=$(counter retry_exceeded_err)
symptom "transport retry counter exceeded" run_server_and_client ibv_rc_pingpong -d "$DEV2" -g "$gid2" -- \
	ibv_rc_pingpong -d "$DEV1" -g "$gid1" $HOST2_V4
check "retry_exceeded_err counts it" test "$(counter retry_exceeded_err)" -gt "$before"
in2 nft delete table ip t
check "work requests fail" in1 python3 "$(dirname "$0")/statuses.py" "$DEV1" "$gid1"
statuses=$OUTPUT
for failure in "no receive: RNR retry counter exceeded, Work Request Flushed Error" \
	"wrong rkey: remote access error" "no right to write: remote access error" "wrong lkey: local protection error" \
	"short receive: remote invalid request error, Work Request Flushed Error, local length error"; do
	grep -q "^$failure" <<<"$statuses"
	known=$?
	IFS=, read -ra texts <<<"${failure#*: }"
	for text in "${texts[@]}"; do judge $known "${text# }" "$statuses"; done
done
check "retry_rnr_exceeded_err counts the missing receive" test "$(counter retry_rnr_exceeded_err)" -gt 0

# Modules without a signature. The kernel cannot load any others after that.
check "link on host 1 is deleted" link_del 1
check "link on host 2 is deleted" link_del 2
check "rmmod rrxe" wait_for 10 rmmod rrxe
mountpoint -q /sys/kernel/security || mount -t securityfs none /sys/kernel/security
echo integrity >/sys/kernel/security/lockdown
symptom "could not insert 'rrxe': Operation not permitted" modprobe rrxe
log "unsigned module loading is restricted"
echo 1 >/sys/module/module/parameters/sig_enforce
symptom "could not insert 'rrxe': Key was rejected by service" modprobe rrxe
log "is rejected"
