#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Management datagrams of those who may send none, or few: users without privileges, and the administrator of a network
# in a user namespace. Connections of others are set up beside them.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=60
HERE=$(dirname "$0")
# TOGGLED: questions that ib_core gets while their address is lost and found for TOGGLES seconds: each that has it sleep
# keeps its place for a while after that.
readonly HERE GUEST=h3 GUEST_V4=10.99.0.1 GUEST_V6=fd99::1 COUNT=3000 MANY=12 TOGGLES=20 TOGGLED=40

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

# A connection from host 2 to host 1, until `end_connection`.
begin_connection() {
	ip netns exec h1 rping -s -P -a $HOST1_V4 >/tmp/server 2>&1 &
	SERVER=$!
	wait_for 20 _cm_listening || return
	ip netns exec h2 rping -c -C 100000000 -a $HOST1_V4 >/tmp/client 2>&1 &
	CLIENT=$!
	wait_for 20 is_connected
}

is_connected() { rdma resource show qp link "$DEV2" | grep -q "type RC.*state RTS"; }

connection_lives() { sleep 3 && kill -0 $CLIENT && is_connected; }

end_connection() { terminate $CLIENT && terminate $SERVER; }

# Another user of host 2 asks for a connection with its QP.
claim() {
	ip netns exec h2 python3 "$HERE/claim.py" "$DEV2" $HOST2_V4 $HOST1_V4 &
	SENDER=$!
}

# What ib_mad says, without a limit, when it can't answer.
ib_mad_is_silent() { ! kernel_said "ib_create_ah_from_wc error"; }

# A host whose network belongs to another user namespace. Its administrator has no privileges elsewhere.
guest_up() {
	# It has a network namespace of its own by the time that it is `sleep`.
	unshare --user --map-root-user --net sleep infinity &
	ADMINISTRATOR=$!
	wait_for 20 grep -q sleep /proc/$ADMINISTRATOR/comm &&
		ip netns attach $GUEST $ADMINISTRATOR &&
		ip link add eth3 netns $GUEST mtu 4200 type veth peer name eth3 netns h2 mtu 4200 &&
		ip -n $GUEST addr add $GUEST_V4/24 dev eth3 && ip -n h2 addr add 10.99.0.2/24 dev eth3 &&
		ip -n $GUEST link set lo up && ip -n $GUEST link set eth3 up && ip -n h2 link set eth3 up &&
		guest_link && ip netns exec h2 rdma link add rrxe2b type rrxe netdev eth3 &&
		wait_for 20 grep -q ACTIVE /sys/class/infiniband/rrxe3/ports/1/state
}

guest_link() { ip netns exec $GUEST rdma link add rrxe3 type rrxe netdev eth3; }

as_administrator() { nsenter --target "$ADMINISTRATOR" --user --net "$@"; }

# cm_counter GROUP NAME: of connection management with the guest.
cm_counter() { cat /sys/class/infiniband/rrxe3/ports/1/cm_"$1"/"$2"; }
cm_counted() { [[ $(cm_counter "$1" "$2") -ge $3 ]]; }

# So many connections to the guest, one after the other.
guest_connects() {
	ip netns exec $GUEST rping -s -P -C 1 -a $GUEST_V4 >/tmp/guest 2>&1 &
	local rping=$! round
	wait_for 20 _cm_listening || return
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

is_lost() { ! ip -n $GUEST route get $GUEST_V4 | grep -q "^local"; }

# Its own address is lost for most of a second, and found for a moment, so that ib_core finds it in the end.
begin_toggling() {
	while lose_own_address && sleep 0.95 && find_own_address && sleep 0.05; do :; done &
	TOGGLER=$!
}

# Questions to the guest until `terminate`, or for so many seconds.
forge() { python3 "$HERE/mads.py" connection "$@" --host $GUEST --device eth3 --target $GUEST_V4; }

few_are_taken() {
	local before
	before=$(cm_counter rx_msgs req)
	forge "$@" || return
	note "ib_core got $(($(cm_counter rx_msgs req) - before)) questions" >/dev/console
	[[ $(($(cm_counter rx_msgs req) - before)) -lt $TOGGLED ]]
}

# Responses to host 1 that name agents of all devices, that of the guest's connection management among them.
responses_stay() {
	local unasked before
	unasked=$(counter "$DEV1" drop_unasked) before=$(cm_counter rx_msgs req)
	python3 "$HERE/mads.py" response 1000 --count 1000 || return
	sleep 1
	echo "ib_core got $(($(cm_counter rx_msgs req) - before)) of them for the guest"
	[[ $(cm_counter rx_msgs req) -eq $before ]] && wait_for 20 counted "$DEV1" drop_unasked $((unasked + 900))
}

# What the guest sends to its own address of IPv6 is refused at once.
refuse_own_address6() {
	ip -n $GUEST addr add $GUEST_V6/64 dev eth3 nodad && ip -n h2 addr add fd99::2/64 dev eth3 nodad &&
		wait_for 20 gid_index rrxe3 $GUEST_V6 &&
		as_administrator ip -6 rule add pref 2 lookup local &&
		as_administrator ip -6 rule add pref 1 oif eth3 prohibit && as_administrator ip -6 rule del pref 0
}

find_own_address6() {
	as_administrator ip -6 rule add pref 0 lookup local && as_administrator ip -6 rule del pref 1 &&
		as_administrator ip -6 rule del pref 2
}

# How many questions ib_mad could not answer, also if the log has lost its beginning since.
logged() { dmesg | grep -c "ib_create_ah_from_wc error"; }

# ib_mad has no limit on the rate of its lines.
few_are_logged() {
	local lines
	lines=$(logged)
	python3 "$HERE/mads.py" counters 0 --seconds 10 --host $GUEST --device eth3 --source fd99::2 --target $GUEST_V6 ||
		return
	lines=$(($(logged) - lines))
	echo "$lines lines"
	[[ $lines -gt 0 && $lines -lt 400 ]]
}

guest_down() {
	kill $ADMINISTRATOR
	ip netns del $GUEST
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
chmod 666 /dev/infiniband/uverbs* /dev/infiniband/rdma_cm

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

check "a connection of host 2" begin_connection
check "a user of host 2 asks for another one with its QP" claim
check "the request stays on host 2" wait_for 20 counted "$DEV2" drop_claim 1
check "the connection lives" connection_lives
check "no more is asked" end
check "a third host asks for another one with its QP and its device" \
	python3 "$HERE/mads.py" stale 100 --count 100 --claim "$DEV2"
check "the connection lives on" connection_lives
check "the connection ends" end_connection

check "datagrams of IPv6 with a sender of IPv4" \
	python3 "$HERE/mads.py" counters 0 --count 1000 --source ::ffff:10.77.0.9 --target $HOST1_V6
check "they are refused" wait_for 20 counted "$DEV1" drop_ip_header 100
check "ib_mad logs none of them" ib_mad_is_silent

check "a host in a user namespace" guest_up
check "connections to it are set up" guest_connects $MANY
check "ib_core answers a question of rrxe's own behind each" wait_for 20 cm_counted rx_duplicates dreq $((2 * MANY))
check "responses to host 1 do not reach the guest's connection management" responses_stay
check "its own address of IPv6 becomes one that it may not send to" refuse_own_address6
check "ib_mad logs few questions for its counters" few_are_logged
check "it may send there again" find_own_address6
check "its own address becomes one to look for" lose_own_address
check "it is looked for" is_lost
check "ib_core gets few questions" few_are_taken 0 --count $COUNT
check "others' connections are set up meanwhile" rping_connects 20
check "its link goes" patiently 20 ip netns exec $GUEST rdma link del rrxe3
check "its own address is known again" find_own_address
check "its link again" guest_link
check "connections to it are set up again" guest_connects 2
check "its own address is lost, and found for moments" begin_toggling
check "ib_core gets few questions then" few_are_taken 20 --seconds $TOGGLES
check "others' connections are set up then" rping_connects 20
check "its address stays" terminate $TOGGLER
check "its link goes then" patiently 20 ip netns exec $GUEST rdma link del rrxe3
check "the host in a user namespace goes" guest_down
