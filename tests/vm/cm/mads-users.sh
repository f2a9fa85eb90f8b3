#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Management datagrams from senders without privileges on the host. rrxe refuses datagrams of
# ordinary users' QPs, and connection requests with the QPN of a QP that is already connected. It
# limits how many datagrams ib_core gets through the links of a guest network: a network namespace
# that a user namespace other than the initial one owns. Tests that other connections are set up,
# and go on, meanwhile. Topology: hosts 1 and 2 over a veth pair, and the guest network h3,
# connected to host 2 by a second veth pair.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=60
HERE=$(dirname "$0")
# TOGGLED_MAX: upper bound of the connection requests that ib_core gets while the guest's address is
# unreachable for most of each second, for TOGGLES seconds. A request for which ib_core sleeps uses
# up the guest's budget for a while after that (gsi/cm_budget.rs).
readonly HERE GUEST=h3 GUEST_V4=10.99.0.1 GUEST_V6=fd99::1
readonly COUNT=3000 MANY=12 TOGGLES=20 TOGGLED_MAX=40

# counter DEVICE NAME: prints a hardware counter of the device's port.
counter() { echo "$(<"/sys/class/infiniband/$1/ports/1/hw_counters/$2")"; }
counter_reaches() { [[ $(counter "$1" "$2") -ge $3 ]]; }
counter_is_zero() { [[ $(counter "$1" "$2") -eq 0 ]]; }

# start_own_mads HOST DEVICE KIND: a user on HOST sends from DEVICE to QP 1 of host 1's device until
# `stop_sender` (local_mads.py).
start_own_mads() {
	local index target
	index=$(gid_index "$2" "$(ip -n "$1" -4 -o addr show dev eth0 | awk '{ sub("/.*", "", $4); print $4 }')") &&
		target=$(gid_index "$DEV1" $HOST1_V4) || return
	target=$(<"/sys/class/infiniband/$DEV1/ports/1/gids/$target")
	ip netns exec "$1" python3 "$HERE/local_mads.py" "$2" "$index" "$target" "$3" &
	SENDER=$!
}

stop_sender() { terminate "$SENDER"; }

# Connects host 2 to host 1 by rping. The connection is used until `end_connection`.
start_connection() {
	ip netns exec h1 rping -s -P -a $HOST1_V4 >/tmp/server 2>&1 &
	SERVER=$!
	wait_for 20 _cm_listening || return
	ip netns exec h2 rping -c -C 100000000 -a $HOST1_V4 >/tmp/client 2>&1 &
	CLIENT=$!
	wait_for 20 is_connected
}

is_connected() { rdma resource show qp link "$DEV2" | grep -q "type RC.*state RTS"; }

connection_survives() { sleep 3 && kill -0 $CLIENT && is_connected; }

end_connection() { terminate $CLIENT && terminate $SERVER; }

# Another user on host 2 requests a connection and gives the QPN of the first connection as its own.
start_claim() {
	ip netns exec h2 python3 "$HERE/foreign_qpn.py" "$DEV2" $HOST2_V4 $HOST1_V4 &
	SENDER=$!
}

# ib_mad logs this line each time that it can't respond, without a rate limit.
ib_mad_is_silent() { ! kernel_said "ib_create_ah_from_wc error"; }

# Creates the guest network: a network namespace that belongs to another user namespace than the
# initial one. Its administrator has no privileges elsewhere.
guest_up() {
	# `unshare` creates the namespaces before it executes `sleep`.
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

as_guest_admin() { nsenter --target "$ADMINISTRATOR" --user --net "$@"; }

# cm_counter GROUP NAME: prints a counter of ib_cm for the guest's device.
cm_counter() { cat /sys/class/infiniband/rrxe3/ports/1/cm_"$1"/"$2"; }
cm_counter_reaches() { [[ $(cm_counter "$1" "$2") -ge $3 ]]; }

# guest_connects COUNT: connects host 2 to the guest COUNT times, one connection after the other.
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

# Adds routing rules to the guest: packets that it sends to its own address leave by its network
# device, where no host answers ARP for the address.
make_own_address_remote() {
	as_guest_admin ip rule add pref 1 iif eth3 lookup local && as_guest_admin ip rule del pref 0
}

make_own_address_local() {
	as_guest_admin ip rule add pref 0 lookup local && as_guest_admin ip rule del pref 1
}

own_address_is_remote() { ! ip -n $GUEST route get $GUEST_V4 | grep -q "^local"; }

# Makes the guest's own address unreachable for 0.95 s, then reachable for 0.05 s, and so on. So
# ib_core sleeps for most of a second in each look-up, but finds the address in the end.
start_toggling() {
	while make_own_address_remote && sleep 0.95 && make_own_address_local && sleep 0.05; do :; done &
	TOGGLER=$!
}

# forge_requests RATE ARGUMENT...: forges connection requests to the guest. The arguments are those
# of mads.py.
forge_requests() {
	python3 "$HERE/mads.py" connection "$@" --host $GUEST --device eth3 --target $GUEST_V4
}

# few_requests_reach_ib_cm RATE ARGUMENT...: forges requests, and fails unless ib_cm counts fewer
# than TOGGLED_MAX.
few_requests_reach_ib_cm() {
	local before
	before=$(cm_counter rx_msgs req)
	forge_requests "$@" || return
	note "ib_cm got $(($(cm_counter rx_msgs req) - before)) requests" >/dev/console
	[[ $(($(cm_counter rx_msgs req) - before)) -lt $TOGGLED_MAX ]]
}

# Forges responses to host 1. Their transaction IDs name the MAD agents of all devices, that of
# ib_cm on the guest's device among them. None of the responses may reach ib_cm.
no_forged_response_counts() {
	local unasked before
	unasked=$(counter "$DEV1" drop_unasked) before=$(cm_counter rx_msgs req)
	python3 "$HERE/mads.py" foreign_response 1000 --count 1000 || return
	sleep 1
	echo "ib_cm got $(($(cm_counter rx_msgs req) - before)) requests on the guest's device"
	[[ $(cm_counter rx_msgs req) -eq $before ]] &&
		wait_for 20 counter_reaches "$DEV1" drop_unasked $((unasked + 900))
}

# Adds routing rules to the guest: packets that it sends to its own IPv6 address are prohibited.
prohibit_own_address6() {
	ip -n $GUEST addr add $GUEST_V6/64 dev eth3 nodad && ip -n h2 addr add fd99::2/64 dev eth3 nodad &&
		wait_for 20 gid_index rrxe3 $GUEST_V6 &&
		as_guest_admin ip -6 rule add pref 2 lookup local &&
		as_guest_admin ip -6 rule add pref 1 oif eth3 prohibit && as_guest_admin ip -6 rule del pref 0
}

allow_own_address6() {
	as_guest_admin ip -6 rule add pref 0 lookup local && as_guest_admin ip -6 rule del pref 1 &&
		as_guest_admin ip -6 rule del pref 2
}

# Prints the number of requests to which ib_mad could not respond. It counts the whole log, as the
# log may have lost the mark of this script's beginning.
logged() { dmesg | grep -c "ib_create_ah_from_wc error"; }

# Sends requests for the guest's port counters for 10 s. ib_mad logs each request to which it can't
# respond, without a rate limit, so rrxe has to limit the requests.
few_lines_are_logged() {
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
	check "host $host: a user starts to send datagrams with a wrong Q_Key to QP1" \
		start_own_mads h$host "${!device}" qkey
	check "host $host: QP1 drops datagrams with a wrong Q_Key" \
		wait_for 20 counter_reaches "$DEV1" drop_qkey $((host * COUNT))
	check "host $host: connections are set up while datagrams with a wrong Q_Key come" \
		rping_connects 20
	check "host $host: the user stops sending datagrams with a wrong Q_Key" stop_sender
	check "host $host: a user starts to send to QP1 from a UC QP" \
		start_own_mads h$host "${!device}" connected
	check "host $host: QP1 drops packets of a UC QP" \
		wait_for 20 counter_reaches "$DEV1" drop_service $((host * COUNT))
	check "host $host: connections are set up while packets of a UC QP come" rping_connects 20
	check "host $host: the user stops sending from the UC QP" stop_sender
done
check "packets that QP1 drops don't use up its rate limit" counter_is_zero "$DEV1" drop_rate

check "host 2 connects to host 1" start_connection
check "another user on host 2 requests a connection with the QPN of the connected QP" start_claim
check "rrxe doesn't send a request with the QPN of a connected QP" \
	wait_for 20 counter_reaches "$DEV2" drop_claim 1
check "the connection survives a request with its QPN from the same host" connection_survives
check "the program of the other user is ended" stop_sender
check "a third host sends requests with GUID and QPN of the connected QP" \
	python3 "$HERE/mads.py" stale 100 --count 100 --claim "$DEV2"
check "the connection survives requests with its GUID and QPN from a third host" connection_survives
check "the programs of the connection are ended" end_connection

check "MADs with an IPv4-mapped source address are sent over IPv6" \
	python3 "$HERE/mads.py" counters 0 --count 1000 --source ::ffff:10.77.0.9 --target $HOST1_V6
check "MADs with an IPv4-mapped source address are dropped" \
	wait_for 20 counter_reaches "$DEV1" drop_ip_header 100
check "ib_mad logs no failed response to MADs with an IPv4-mapped source address" ib_mad_is_silent

check "a guest network with a link is set up" guest_up
check "connections to the guest network are set up" guest_connects $MANY
# rrxe's probes are DREQs for connections that do not exist (gsi/probe.rs).
check "ib_cm responds to rrxe's probes, two for each connection" \
	wait_for 20 cm_counter_reaches rx_duplicates dreq $((2 * MANY))
check "MAD responses to host 1 don't reach ib_cm on the guest's device" no_forged_response_counts
check "routing rules of the guest prohibit packets to its own IPv6 address" prohibit_own_address6
check "ib_mad logs few failed responses to requests for the guest's counters" few_lines_are_logged
check "routing rules of the guest allow packets to its own IPv6 address again" allow_own_address6
check "routing rules of the guest make its own address remote" make_own_address_remote
check "the guest's own address has no local route" own_address_is_remote
check "ib_cm gets few requests while the guest's own address is unreachable" \
	few_requests_reach_ib_cm 0 --count $COUNT
check "others' connections are set up while the guest's own address is unreachable" \
	rping_connects 20
check "link del of the guest returns while its own address is unreachable" \
	patiently 20 ip netns exec $GUEST rdma link del rrxe3
check "the guest's own address is local again" make_own_address_local
check "the guest's link is added again" guest_link
check "connections to the guest network are set up again" guest_connects 2
check "the guest's own address becomes reachable for moments only" start_toggling
check "ib_cm gets few requests while the guest's own address is toggled" \
	few_requests_reach_ib_cm 20 --seconds $TOGGLES
check "others' connections are set up while the guest's own address is toggled" rping_connects 20
check "the toggling of the guest's own address is ended" terminate $TOGGLER
check "link del of the guest returns after the toggling" \
	patiently 20 ip netns exec $GUEST rdma link del rrxe3
check "the guest network is deleted" guest_down
