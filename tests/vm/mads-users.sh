#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Management datagrams of those who may send none, or few: users without privileges, and the administrator of a network
# in a user namespace. Connections of others are set up beside them.
source "$(dirname "$0")/lib.sh"
PROGRAM_SECONDS=60
HERE=$(dirname "$0")
readonly HERE GUEST=h3 GUEST_V4=10.99.0.1 COUNT=3000 MANY=12

counter() { echo "$(<"/sys/class/infiniband/$1/ports/1/hw_counters/$2")"; }
counted() { [[ $(counter "$1" "$2") -ge $3 ]]; }
none_of() { [[ $(counter "$1" "$2") -eq 0 ]]; }

# begin HOST DEVICE KIND: a user of this host sends to QP 1 of host 1's device.
begin() {
	local index target
	index=$(gid_index "$2" "$(ip -n "$1" -4 -o addr show dev eth0 | awk '{ sub("/.*", "", $4); print $4 }')") &&
		target=$(gid_index "$DEV1" $HOST1_V4) || return
	target=$(<"/sys/class/infiniband/$DEV1/ports/1/gids/$target")
	ip netns exec "$1" python3 "$HERE/mads-own.py" "$2" "$index" "$target" "$3" &
	SENDER=$!
}

end() { terminate "$SENDER"; }

# What ib_mad says, without a limit, when it can't answer.
ib_mad_is_silent() { ! dmesg | grep "ib_create_ah_from_wc error"; }

# A host whose network belongs to another user namespace. Its administrator has no privileges elsewhere.
guest_up() {
	unshare --user --map-root-user --net sleep infinity &
	ADMINISTRATOR=$!
	wait_for 20 bash -c "[[ \$(readlink /proc/$ADMINISTRATOR/ns/net) != \$(readlink /proc/$$/ns/net) ]]" &&
		ip netns attach $GUEST $ADMINISTRATOR &&
		ip link add eth3 netns $GUEST mtu 4200 type veth peer name eth3 netns h2 mtu 4200 &&
		ip -n $GUEST addr add $GUEST_V4/24 dev eth3 && ip -n h2 addr add 10.99.0.2/24 dev eth3 &&
		ip -n $GUEST link set lo up && ip -n $GUEST link set eth3 up && ip -n h2 link set eth3 up &&
		guest_link && ip netns exec h2 rdma link add rrxe2b type rrxe netdev eth3 &&
		wait_for 20 grep -q ACTIVE /sys/class/infiniband/rrxe3/ports/1/state
}

guest_link() { ip netns exec $GUEST rdma link add rrxe3 type rrxe netdev eth3; }

as_administrator() { nsenter --target "$ADMIN"ISTRATOR --user --net "$@"; }

# So many connections to the guest, one after the other.
guest_connects() {
	ip netns exec $GUEST rping -s -P -C 1 -a $GUEST_V4 >/tmp/guest 2>&1 &
	local rping=$! round
	wait_for 20 bash -c "rdma resource show cm_id | grep -q LISTEN" || return
	for ((round = 1; round <= $1; round++)); do
		patiently 30 ip netns exec h2 rping -c -C 1 -a $GUEST_V4 || return
	done
	kill $rping
	wait $rping || true
}

# What the guest sends to its own address leaves by its network device, where nobody answers.
lose_own_address() {
	as_administrator ip rule add pref 1 iif eth3 lookup local && as_administrator ip rule del pref 0
}

find_own_address() {
	as_administrator ip rule add pref 0 lookup local && as_administrator ip rule del pref 1
}

begin_losing() {
	while lose_own_address && sleep 0.3 && find_own_address && sleep 0.3; do :; done &
	LOSER=$!
}

unreclaimable() { awk '/^SUnreclaim/ { print $2 }' /proc/meminfo; }

# The kernel's memory while many datagrams come to the guest, in KiB.
grows_little() {
	local before
	before=$(unreclaimable)
	python3 "$HERE/mads.py" connection 0 --seconds 10 --host $GUEST --device eth3 --target $GUEST_V4 || return
	note "$(($(unreclaimable) - before)) KiB more" >/dev/console
	[[ $(($(unreclaimable) - before)) -lt 4000 ]]
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
chmod 666 /dev/infiniband/uverbs*

for host in 1 2; do
	device=DEV$host
	check "host $host: a user sends datagrams of a wrong queue key to QP 1" begin h$host "${!device}" qkey
	check "host $host: they are refused" wait_for 20 counted "$DEV1" drop_qkey $((host * COUNT))
	check "host $host: connections are set up beside them" rping_connects 20
	check "host $host: no more of these" end
	check "host $host: a user takes QP 1 for the peer of a connected QP" begin h$host "${!device}" connected
	check "host $host: its packets are refused" wait_for 20 counted "$DEV1" drop_service $((host * COUNT))
	check "host $host: connections are set up beside those" rping_connects 20
	check "host $host: no more of those" end
done
check "none of these took a place of a management datagram" none_of "$DEV1" drop_rate

check "datagrams of IPv6 with a sender of IPv4" \
	python3 "$HERE/mads.py" counters 0 --count 1000 --source ::ffff:10.77.0.9 --target $HOST1_V6
check "they are refused" wait_for 20 counted "$DEV1" drop_ip_header 100
check "ib_mad logs none of them" ib_mad_is_silent

check "a host in a user namespace" guest_up
check "connections to it are set up" guest_connects $MANY
check "no question for them was dropped" none_of rrxe3 drop_rate
check "its own address becomes one to look for" lose_own_address
check "datagrams to it cost no memory" grows_little
check "most of them are dropped" counted rrxe3 drop_rate $COUNT
check "others' connections are set up meanwhile" rping_connects 20
check "its link goes" patiently 20 ip netns exec $GUEST rdma link del rrxe3
check "its link again" guest_link
check "its own address is known again" find_own_address
check "its own address is lost and found again and again" begin_losing
check "datagrams to it cost no memory then" grows_little
check "others' connections are set up then" rping_connects 20
check "its address stays" terminate $LOSER
check "its link goes then" patiently 20 ip netns exec $GUEST rdma link del rrxe3
