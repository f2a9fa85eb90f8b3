#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=300
# vm-debug: skip The script tests a program of user space.
# Injects faults into host 1. `rrxe doctor` must name each one with its remedy, and no other fault.
source "$(dirname "$0")/../lib/guest.sh"
source "$(dirname "$0")/lib.sh"
PROVIDERS=$(dirname /usr/lib/*-linux-gnu/libibverbs/librxe-*.so)
readonly PROVIDERS

# healthy WHEN: checks that the doctor finds no fault.
healthy() { check "no fault is found $1" wait_for 20 doctor || note "$(doctor)"; }
active() { grep -q ACTIVE "/sys/class/infiniband/$DEV1/ports/1/state"; }
doctor_in1() { in1 rrxe doctor; }

check "two hosts" hosts_up 1500

# The module.
modprobe -r rrxe 2>/dev/null
module=$(modinfo -n rrxe)
mv "$module" /tmp/rrxe.ko
check "a module that is not installed" finds 2 "not installed for the running kernel" "make install" doctor
mv /tmp/rrxe.ko "$module"
echo "blacklist rrxe" >/etc/modprobe.d/test.conf
check "a blocked module" finds 2 "blocks the module by the line 'blacklist rrxe'" "/etc/modprobe.d" doctor
rm /etc/modprobe.d/test.conf
check "a missing link" finds 1 "no link of rrxe" "rrxe add rrxe0" doctor

# UDP port 4791.
ip -n h1 link add tunnel type vxlan id 3 dstport 4791 dev eth0
ip -n h1 link set tunnel up
check "a VXLAN tunnel with the port" finds 2 "tunnel tunnel has UDP port 4791" "ip link del tunnel" doctor
ip -n h1 link del tunnel
modprobe fou
in1 ip fou add port 4791 ipproto 4
check "a FOU tunnel with the port" finds 2 "ip fou. has UDP port 4791" "ip fou del port 4791" doctor
in1 ip fou del port 4791
hold_roce_port
check "a process with the port" finds 2 "process python3 .PID $HOLDER. has UDP port 4791" "End this process" doctor
kill $HOLDER
wait $HOLDER
check "a link of rdma_rxe" in1 rdma link add other type rxe netdev eth0
check "a link of rdma_rxe with the port" finds 1 "other of another driver" "rdma link del other" doctor
in1 rdma link del other

check "link on host 1" link_add 1
check "link on host 2" link_add 2
healthy "on a healthy host"
check "the JSON of a healthy host says so" bash -c \
	'ip netns exec h1 rrxe doctor --json | python3 -c "import json, sys; report = json.load(sys.stdin); assert report == {\"healthy\": True, \"findings\": [], \"unknown\": []}, report"'

# libibverbs, device files, limits.
mount -t tmpfs none $PROVIDERS
check "no provider" finds 1 "no provider" "ibverbs-providers" doctor
touch $PROVIDERS/librxe-rdmav59.so
check "a provider for another interface" finds 1 "librxe-rdmav59.so is for another" "same version" doctor
umount $PROVIDERS
mount -t tmpfs none /etc/libibverbs.d
check "no driver file" finds 1 "No file in /etc/libibverbs.d" "driver rxe" doctor
umount /etc/libibverbs.d
file=/dev/infiniband/$(basename "$(dirname "$(grep -lx "$DEV1" /sys/class/infiniband_verbs/uverbs*/ibdev)")")
mode=$(stat -c %a "$file")
chmod 600 "$file"
check "a device file that the user may not open" finds 1 "may not open $file" "chmod 666 $file" \
	in1 setpriv --reuid 65534 --clear-groups rrxe doctor
chmod "$mode" "$file"
mv "$file" "$file.away"
check "a missing device file" finds 1 "$DEV1 has no device file" "modprobe ib_uverbs" doctor
mv "$file.away" "$file"
limited() {
	(ulimit -S -l 8192 && in1 setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock rrxe doctor)
}
check "a small limit on locked memory" finds 1 "8192 KiB" "memlock unlimited" limited
healthy "after faults of user space"

# The network device.
ip -n h1 link set eth0 down
check "a network device that is down" finds 1 "$DEV1 is not ACTIVE, because network device eth0 is down" \
	"ip link set eth0 up" doctor
ip -n h1 link set eth0 up
wait_for 20 dad_finished 1
ip -n h2 link set eth0 down
wait_for 20 bash -c "! ip -n h1 link show dev eth0 | grep -q LOWER_UP"
check "no carrier" finds 1 "eth0 has no carrier" "cable" doctor
ip -n h2 link set eth0 up
wait_for 20 active
ip -n h1 addr flush dev eth0 scope global
check "no address" finds 1 "eth0 of link $DEV1 has no IP address" "ip addr add" doctor
ip -n h1 link add bridge type bridge
ip -n h1 link set eth0 master bridge
check "a port of a bridge without an address" finds 1 "is a port of bridge" "rrxe add $DEV1 bridge" doctor
ip -n h1 link del bridge
ip -n h1 addr add $HOST1_V4/24 dev eth0
ip -n h2 addr add $HOST2_V6/64 dev eth0 nodad 2>/dev/null
wait_for 20 dad_finished 2
ip -n h1 addr add $HOST2_V6/64 dev eth0
wait_for 20 bash -c "ip -n h1 addr show dev eth0 | grep -q dadfailed"
check "an address that another host has" finds 1 "Another host has the address $HOST2_V6" \
	"ip addr del $HOST2_V6" doctor
ip -n h1 addr del $HOST2_V6/64 dev eth0
ip -n h1 link set eth0 mtu 600
check "a small MTU" finds 1 "MTU of eth0 is 600, so the path MTU of link $DEV1 is 512" "mtu 1500" doctor
ip -n h1 link set eth0 mtu 1500
wait_for 20 dad_finished 1
healthy "after faults of the network device"

# The firewall.
in1 nft "add table ip t; add chain ip t in { type filter hook input priority 0; }
	add rule ip t in udp dport 4000-5000 drop"
check "a rule of nftables" finds 1 "drops incoming RoCE packets over IPv4 by a rule of chain ip t in" \
	"nft insert rule ip t in udp dport 4791 accept" doctor
check "the remedy removes the fault of nftables" in1 nft insert rule ip t in udp dport 4791 accept
healthy "after nft insert rule"
in1 nft "delete table ip t; add table inet t; add chain inet t in { type filter hook input priority 0; policy drop; }
	add rule inet t in iifname lo accept; add rule inet t in ct state established,related accept
	add rule inet t in tcp dport 22 accept"
check "a policy of nftables" finds 2 "over IPv6 by the policy of chain inet t in" "nft insert rule inet t in" doctor
in1 nft "add rule inet t in ip saddr 10.0.0.0/8 accept; add rule inet t in ip6 saddr fd77::/16 accept"
healthy "if the firewall accepts some hosts"
in1 nft delete table inet t
in1 iptables -A OUTPUT -p udp -m multiport --dports 53,4791 -j REJECT
check "a rule of iptables" finds 1 "drops outgoing RoCE packets over IPv4 by a rule of chain OUTPUT of iptables" \
	"iptables -t filter -I OUTPUT" doctor
in1 iptables -F
check "the guard is loaded" in1 nft -f /payload/rrxe-guard.nft
healthy "with rrxe-guard.nft"
in1 nft delete table inet rrxe_guard

# Namespaces.
ip netns add h3
check "a namespace without a link" finds 1 "is in another network namespace" "ip netns exec" \
	ip netns exec h3 rrxe doctor
ip netns del h3

# Loss.
check "host 2 drops a tenth of the packets" in2 nft "add table ip t
	add chain ip t in { type filter hook input priority 0; }
	add rule ip t in udp dport 4791 numgen random mod 10 0 drop"
# The server fails if its last acknowledgment is lost, because the client's QP has ended then.
pingpong -n 300 >/dev/null 2>&1
check "loss" finds 1 "$DEV1 retransmitted lost packets" "tc -s qdisc show dev eth0" doctor
in2 nft delete table ip t

check "link on host 1 is deleted" link_del 1
check "link on host 2 is deleted" link_del 2
