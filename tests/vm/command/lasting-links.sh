#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: system init=systemd timeout=900
# vm-debug: skip The script tests programs of user space, systemd and udev.
# Links that last, in a guest with systemd and udev: `rrxe apply`, rrxe@.service,
# rrxe-links.service, 85-rrxe.rules. Links come and go with network devices that appear, end and are
# renamed, and come again after a reboot. The machine boots three times. Each boot runs this script.
# Topology: two virtio network cards on a wire. The second one is in the namespace h2 for a while.
source "$(dirname "$0")/../lib/guest.sh"

readonly CONFIG=/etc/rrxe/links.toml STATE=/var/lib/rrxe-test
readonly MAC1=52:54:00:77:00:01 MAC2=52:54:00:77:00:02
readonly BAD="$CONFIG:3: unknown field .nmae."

mkdir -p $STATE /etc/rrxe
boot=$(($(cat $STATE/boot 2>/dev/null || echo 0) + 1))
echo $boot >$STATE/boot

# netdev_of MAC: prints the name of the network device.
netdev_of() { ip -j link | python3 -c "
import json, sys
print(next(line['ifname'] for line in json.load(sys.stdin) if line.get('address') == '$1'))"; }
cards_named() { netdev_of $MAC1 && netdev_of $MAC2 && udevadm settle; }
# on LINK NETDEV: succeeds if the link is on the network device.
on() { rdma link show "$1/1" | grep -q " netdev $2 "; }
gone() { [[ ! -e /sys/class/infiniband/$1 ]]; }
service() { systemd-escape --template=rrxe@.service -- "$1"; }
active() { systemctl is-active --quiet "$(service "$1")"; }
inactive() { [[ $(systemctl is-active "$(service "$1")") == inactive ]]; }
failed() { [[ $(systemctl is-failed "$1") == failed ]]; }
# logged SERVICE TEXT: succeeds if the service's log of this boot has the text.
logged() { journalctl -b -o cat -u "$1" | grep -q "$2"; }
# comes NAME LINK NETDEV, goes NAME LINK NETDEV: checks that a link comes with its service, or goes.
comes() {
	check "$1" wait_for 20 on "$2" "$3" || note "$(journalctl -b -n 30 -o cat)"
	check "$1: its service is active" wait_for 20 active "$3"
}
goes() {
	check "$1" wait_for 20 gone "$2" || note "$(journalctl -b -n 30 -o cat)"
	check "$1: its service is not active" wait_for 20 inactive "$3"
}
reload() {
	systemctl restart rrxe-links || {
		journalctl -b -n 20 -o cat
		return 1
	}
}
# Waits until systemd has seen all earlier events of network devices: it sees them in their order.
events_seen() {
	ip link add rr-last type dummy && wait_for 20 active rr-last &&
		ip link del rr-last && wait_for 20 inactive rr-last
}
configure() {
	cat >$CONFIG <<-TOML
		[[link]]
		mac = "$MAC1"
		name = "storage"

		[[link]]
		netdev = "rr-*"
		name = "roce_{netdev}"
	TOML
}
reboot() {
	note "$(systemctl reboot 2>&1)"
	sleep infinity
}

check "systemd has booted" wait_for 60 bash -c '[[ $(systemctl is-system-running) =~ running|degraded ]]'
check "udev has named the network cards" wait_for 60 cards_named
NIC1=$(netdev_of $MAC1) NIC2=$(netdev_of $MAC2)
CARD1=$(readlink -f "/sys/class/net/$NIC1/device/..")
readonly NIC1 NIC2 CARD1

first_boot() {
	note "$(systemctl --version | head -n 1), the network cards are $NIC1 and $NIC2"
	check "the units have no error" systemd-analyze verify --man=no rrxe-links.service "rrxe@$NIC1.service"
	check "the rules of udev have no error" udevadm verify /usr/local/lib/udev/rules.d/85-rrxe.rules
	check "no configuration: no link" test -z "$(ls /sys/class/infiniband 2>/dev/null)"

	# All modules of this file would take an emulated machine a minute to load.
	printf 'ib_uverbs\nrdma_ucm\n' >/etc/rdma/modules/rdma.conf
	configure
	check "an entry with a MAC address is applied" reload
	comes "the network card has the link of its entry" storage "$NIC1"
	check "rrxe apply changes nothing if nothing is to be changed" test -z "$(rrxe apply)"
	check "udev settles" udevadm settle
	check "udev's persistent naming keeps the name of the link" on storage "$NIC1"
	check "rdma-core's rules know that the link is RoCE" \
		bash -c 'udevadm info /sys/class/infiniband/storage | grep -q ID_RDMA_ROCE=1'
	check "rdma-core's service for RoCE devices is started" \
		wait_for 20 systemctl is-active --quiet rdma-load-modules@roce.service
	check "the RDMA modules of users are loaded" wait_for 20 test -e /dev/infiniband/rdma_cm
	users_talk

	check "the service is stopped" systemctl stop "rrxe@$NIC1"
	goes "a stopped service has no link" storage "$NIC1"
	check "the service is started" systemctl start "rrxe@$NIC1"
	comes "a started service has its link" storage "$NIC1"
	hot_plug
	renames
	enabled
	changes
	wrong_configuration
	check "the last configuration is applied" reload
	check "the service of the second card is enabled" systemctl enable "rrxe@$NIC2"
	reboot
}

# Ordinary users on this host and in the namespace h2 exchange messages.
users_talk() {
	local user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
	ip addr add 10.77.0.1/24 dev "$NIC1"
	ip link set "$NIC1" up
	ip netns add h2
	ip link set "$NIC2" netns h2
	ip -n h2 addr add 10.77.0.2/24 dev "$NIC2"
	ip -n h2 link set "$NIC2" up
	check "a link in the namespace h2" in2 rrxe add peer "$NIC2"
	check "the port of the link is ACTIVE" wait_for 20 grep -q ACTIVE /sys/class/infiniband/storage/ports/1/state
	in2 "${user[@]}" timeout 240 ibv_rc_pingpong -d peer -g "$(gid_index peer 10.77.0.2)" -n 200 -c >/tmp/server 2>&1 &
	server_pid=$!
	check "the server of pingpong listens" wait_for 20 _listening
	check "ordinary users exchange messages over the link" "${user[@]}" \
		ibv_rc_pingpong -d storage -g "$(gid_index storage 10.77.0.1)" -n 200 -c 10.77.0.2
	check "the server of pingpong ends with success" server_ended
	in2 rrxe del peer
	ip netns del h2
	check "the second card is back on the host" wait_for 20 test -e "/sys/class/net/$NIC2"
}

server_ended() { wait "$server_pid"; }

hot_plug() {
	echo 1 >"$CARD1/remove"
	goes "the network card is unplugged" storage "$NIC1"
	echo 1 >/sys/bus/pci/rescan
	comes "the network card is plugged in" storage "$NIC1"

	ip link add rr-a type dummy
	comes "a network device that appears" roce_rr-a rr-a
	ip link del rr-a
	goes "a network device that ends" roce_rr-a rr-a
	ip link add rr-a type dummy
	comes "a network device that appears again" roce_rr-a rr-a
	for _ in {1..5}; do ip link del rr-a && ip link add rr-a type dummy; done
	comes "a network device that ends and appears at once" roce_rr-a rr-a
}

renames() {
	ip link set rr-a name rr-b
	comes "the new name has an entry" roce_rr-b rr-b
	goes "the link of the old name" roce_rr-a rr-a
	ip link set rr-b name other
	goes "the new name has no entry" roce_rr-b rr-b
	ip link del other

	ip link set "$NIC1" down
	ip link set "$NIC1" name lan0
	comes "the old and the new name have the same link" storage lan0
	check "the service of the old name is not active" wait_for 20 inactive "$NIC1"
	check "the link is still there then" on storage lan0
	ip link set lan0 name "$NIC1"
	comes "the network card has its old name again" storage "$NIC1"
	check "the service of the other name is not active" wait_for 20 inactive lan0
}

# A service without an entry.
enabled() {
	ip link add plain0 type dummy
	check "a service without an entry is enabled" systemctl enable --now rrxe@plain0
	comes "it has a link with the default name" rrxe_plain0 plain0
	check "rrxe apply keeps it" reload
	ip link del plain0
	goes "its network device ends" rrxe_plain0 plain0
	ip link add plain0 type dummy
	comes "its network device appears again" rrxe_plain0 plain0
	check "the service is disabled" systemctl disable --now rrxe@plain0
	goes "a disabled service has no link" rrxe_plain0 plain0
	ip link del plain0
	ip link add plain0 type dummy
	check "systemd has seen the network device" events_seen
	check "a disabled service stays without a link" gone rrxe_plain0
	ip link del plain0
}

changes() {
	ip link add rr-c type dummy
	comes "a network device with an entry" roce_rr-c rr-c
	rdma link del storage
	check "a link that the administrator has deleted is added again" reload
	comes "the deleted link" storage "$NIC1"
	sed -i s/storage/store/ $CONFIG
	check "another name is applied" reload
	comes "the link has the other name" store "$NIC1"
	check "no link has the old name" gone storage
	printf '[[link]]\nmac = "%s"\nname = "storage"\n' $MAC1 >$CONFIG
	check "fewer entries are applied" reload
	comes "the remaining entry has its link" storage "$NIC1"
	goes "a network device without an entry has no link now" roce_rr-c rr-c
	ip link del rr-c
	configure
	rdma link del storage
	rrxe add mine "$NIC1"
	refuse "a link of the administrator stays" "systemctl restart .*failed" rrxe apply
	check "the service says why" logged "rrxe@$NIC1" "has the link mine, which is to be storage"
	rrxe del mine
	check "the service works without that link" reload
}

wrong_configuration() {
	sed -i s/name/nmae/ $CONFIG
	refuse "a wrong configuration is refused" "$BAD" rrxe apply
	check "links stay" on storage "$NIC1"
	systemctl reset-failed
	ip link add rr-d type dummy
	check "a network device that appears shows that the configuration is wrong" wait_for 20 failed rrxe-links.service
	check "the log of rrxe-links.service says why" wait_for 20 logged rrxe-links "$BAD"
	check "the network device has no link" gone roce_rr-d
	configure
	check "the right configuration is applied" reload
	comes "the network device has its link" roce_rr-d rr-d
	check "rrxe-links.service has not failed now" bash -c '! systemctl is-failed rrxe-links'
	ip link del rr-d
}

second_boot() {
	comes "after a reboot the network card has its link" storage "$NIC1"
	comes "after a reboot the enabled service has its link" "rrxe_$NIC2" "$NIC2"
	check "no service has failed" test -z "$(systemctl list-units --failed --plain --no-legend 'rrxe*')"
	sed -i s/name/nmae/ $CONFIG
	reboot
}

third_boot() {
	check "after a reboot a wrong configuration fails a service" wait_for 20 failed rrxe-links.service
	check "its log names file and line" wait_for 20 logged rrxe-links "$BAD"
	check "the enabled service fails" wait_for 20 failed "rrxe@$NIC2.service"
	check "its log names file and line, too" wait_for 20 logged "rrxe@$NIC2" "$BAD"
	check "there is no link" test -z "$(ls /sys/class/infiniband 2>/dev/null)"
	configure
	check "the right configuration is applied" reload
	comes "the network card has its link" storage "$NIC1"
	check "the enabled service is started" systemctl restart "rrxe@$NIC2"
	comes "the enabled service has its link" "rrxe_$NIC2" "$NIC2"
	check "all links are stopped" systemctl stop 'rrxe@*.service'
	goes "the network card has no link" storage "$NIC1"
	goes "the other network card has no link" "rrxe_$NIC2" "$NIC2"
}

case $boot in
1) first_boot ;;
2) second_boot ;;
*) third_boot ;;
esac
