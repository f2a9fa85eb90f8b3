#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together
# Tests the guest and lib/guest.sh themselves, over the C driver (rdma_rxe): two hosts over a veth
# pair, pingpongs, perftest, and a command that must fail.
source "$(dirname "$0")/../lib/guest.sh"

check "two hosts over a veth pair" hosts_up 4200
check "link on host 1" link_add 1 rxe
check "link on host 2" link_add 2 rxe
check "pingpong over IPv4" pingpong -n 100
check "pingpong over IPv6" pingpong6 -n 100
check "ib_write_bw over IPv4" perftest ib_write_bw -n 50
check "ib_send_lat over IPv6" perftest6 ib_send_lat -n 50
refuse "a second link on the same network device is refused" "exists|File" \
	in1 rdma link add again type rxe netdev eth0
