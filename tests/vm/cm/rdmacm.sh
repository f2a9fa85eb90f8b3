#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=400
# Connection management with the programs of librdmacm, and perftest with -R, over IPv4, IPv6 and a
# VLAN: between rrxe and rrxe, and between rrxe and the C driver (rdma_rxe) in both roles. Options
# that make the programs compare data are set. Tests also that devices with connections can be
# removed. Topology: two hosts over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
# Message size of ib_send_bw in bytes. On the debug kernel the C driver takes longer for a hundred
# messages of 64 KiB than their sender waits.
SIZE=65536
[[ -z $DEBUG_KERNEL ]] || SIZE=4096
readonly SIZE

_listens() { [[ -n $(rdma resource show cm_id | grep -E 'LISTEN') ]]; }
_none_listens() { ! _listens; }
# run_server_and_client waits until `_listening` succeeds. With `spins` set the server has threads that never sleep,
# so the test of `_cm_listening`, that all threads sleep, doesn't work.
spins=
_listening() { if [[ $spins ]]; then _listens && sleep 0.3; else _cm_listening; fi; }
spinning() {
	local spins=yes
	"$@"
}

# connect SERVER-COMMAND -- CLIENT-COMMAND: runs the server on host 2 and, once it listens, the
# client on host 1. Then waits until no program listens.
connect() {
	local rc=0
	run_server_and_client "$@" || rc=$?
	wait_for 20 _none_listens
	return $rc
}

# Host 2 joins a multicast group by librdmacm, and host 1 sends to it.
multicast() {
	local log pid rc=0
	log=$(mktemp)
	ip netns exec h2 timeout -k 5 "$((PROGRAM_SECONDS * LIMIT_FACTOR))" stdbuf -oL mckey -b $HOST2_V4 -m 239.1.2.3 -C 10 -S 900 >"$log" 2>&1 &
	pid=$!
	wait_for 20 grep -q receiving "$log" &&
		patiently "$PROGRAM_SECONDS" ip netns exec h1 mckey -b $HOST1_V4 -m 239.1.2.3 -s -C 10 -S 900 || rc=1
	[[ $rc -eq 0 ]] || kill $pid 2>/dev/null
	wait $pid || rc=1
	cat "$log"
	return $rc
}

# test_programs NAME: runs the programs over IPv4, and all but mckey over IPv6. NAME is "TYPE to
# TYPE", the link types of the hosts.
test_programs() {
	local family far near option
	for family in 4 6; do
		far=HOST2_V$family near=HOST1_V$family
		far=${!far} near=${!near} option=
		[[ $family == 4 ]] || option=--ipv6-addr
		check "$1 IPv$family: rping" connect rping -s -C 20 -S 4000 -V -a "$far" -- \
			rping -c -C 20 -S 4000 -V -a "$far" -I "$near"
		check "$1 IPv$family: ucmatose" connect ucmatose -C 10 -c 4 -S 5000 -b "$far" -- \
			ucmatose -C 10 -c 4 -S 5000 -s "$far" -b "$near"
		check "$1 IPv$family: udaddy" connect udaddy -C 10 -c 2 -S 1000 -b "$far" -- \
			udaddy -C 10 -c 2 -S 1000 -s "$far" -b "$near"
		check "$1 IPv$family: rstream" spinning connect rstream -b "$far" -S 20000 -C 50 -T v -- \
			rstream -s "$far" -b "$near" -S 20000 -C 50 -T v
		# shellcheck disable=SC2086 # none or one
		check "$1 IPv$family: ib_send_bw -R" retry_on_race rejected connect ib_send_bw "${SECOND[@]}" -F -R -n 100 -s $SIZE $option -- \
			ib_send_bw "${SECOND[@]}" -F -R -n 100 -s $SIZE $option "$far"
	done
	# The C driver doesn't send all datagrams of mckey, often only the first.
	[[ $1 == "rxe to"* ]] || check "$1: mckey" multicast
	# rdma_cm joins no IPv6 groups for RoCEv2, with any driver (ENOTSUPP, 524).
	refuse "$1: mckey over IPv6 is refused" "joining: .*524" in1 mckey -b $HOST1_V6 -m ff0e::7701
	check "$1 over a VLAN: rping" connect rping -s -C 5 -V -a 10.79.0.2 -- \
		rping -c -C 5 -V -a 10.79.0.2 -I 10.79.0.1
}

check "two hosts" hosts_up 4200
for host in 1 2; do
	ip -n h$host link add link eth0 name vlan5 type vlan id 5
	ip -n h$host addr add 10.79.0.$host/24 dev vlan5
	ip -n h$host link set vlan5 up
done
for types in "rrxe rrxe" "rrxe rxe" "rxe rrxe"; do
	read -r first second <<<"$types"
	check "a link of type $first is added to host 1" link_add 1 "$first"
	check "a link of type $second is added to host 2" link_add 2 "$second"
	test_programs "$first to $second"
	link_del 1
	link_del 2
done

is_receiving() { [[ $(<"/sys/class/infiniband/$DEV2/ports/1/hw_counters/rcvd_pkts") -gt 500 ]]; }

# removed_under_connection COMMAND: runs COMMAND, which removes the devices, while rping uses a
# connection. Fails if COMMAND waits for the connection's end.
removed_under_connection() {
	local pids=() rc=0
	link_add 1 rrxe && link_add 2 rrxe || return
	in2 rping -s -P -S 4000 -a $HOST2_V4 >/dev/null 2>&1 &
	pids+=($!)
	wait_for 20 _listening || rc=1
	in1 rping -c -S 4000 -a $HOST2_V4 -I $HOST1_V4 >/dev/null 2>&1 &
	pids+=($!)
	wait_for 20 is_receiving || rc=1
	patiently 30 bash -c "$1" || rc=$?
	kill -9 "${pids[@]}" 2>/dev/null
	wait "${pids[@]}" 2>/dev/null
	pkill -9 -x rping
	DEV1='' DEV2=''
	return $rc
}

check "link del returns while connections exist" \
	removed_under_connection "rdma link del rrxe1 && rdma link del rrxe2"
check "rmmod returns while connections exist" removed_under_connection "rmmod rrxe"
check "deletion of the veth pair returns while connections exist" \
	removed_under_connection "ip -n h1 link del eth0"
check "the RDMA devices end with the veth pair" wait_for 20 test ! -e /sys/class/infiniband/rrxe2
