#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: timeout=600
# Tests that floods of forged, replayed and mutated packets do not disturb honest QPs (hostile.py).
# Host 2 sends them to host 1 over a veth pair, over a second veth pair, and over a VLAN of the
# first. Packets also come from ordinary sockets of host 1. The output contains the seed. To repeat
# a run:
#   RRXE_ENV="SEED=n" make vm RUN=tests/vm/hostile/hostile-peer.sh
# SECONDS_EACH=n sets the minimum time in seconds for which a case floods the RoCE port.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
ip link add eth1 netns h1 type veth peer name eth1 netns h2
for host in 1 2; do
	ip -n h$host addr add 10.78.0.$host/24 dev eth1
	ip -n h$host link set eth1 up
	ip -n h$host link add link eth0 name vlan5 type vlan id 5
	ip -n h$host addr add 10.79.0.$host/24 dev vlan5
	ip -n h$host link set vlan5 up
done
index1=$(gid_index "$DEV1" $HOST1_V4) index2=$(gid_index "$DEV2" $HOST2_V4)
python3 "$(dirname "$0")/hostile.py" "$DEV1" "$index1" "$DEV2" "$index2" ||
	fail "hostile.py exits with status 0" "status $?"
counters=/sys/class/infiniband/$DEV1/ports/1/hw_counters
note "$(grep . "$counters/drop_"* | sed 's/.*drop_//' | paste -sd' ')"
check "a pingpong runs after the floods" pingpong -n 100
