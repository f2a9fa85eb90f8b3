#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=240
# Tests `rrxe capture`: a capture has the packets between QPs of one host, which pass no network
# device, and those on the wire. rrxe-check compares the data of the transfers meanwhile.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=120
readonly FILE=/tmp/capture.pcap

capture() {
	rm -f $FILE /tmp/tcpdump
	ip netns exec h1 rrxe capture "$DEV1" $FILE "$@" 2>/tmp/tcpdump &
	CAPTURE=$!
	wait_for 20 grep -q listening /tmp/tcpdump
}
end_capture() {
	kill "$CAPTURE"
	wait "$CAPTURE"
	cat /tmp/tcpdump
}
# has INDEX PACKETS OPCODE...: checks the packets of a network device (capture.py).
has() { python3 "$(dirname "$0")/capture.py" $FILE "$@"; }
# count COUNTER: prints a counter of the device. ib_core shows values of up to 10 ms ago
# (RDMA_HW_STATS_DEFAULT_LIFESPAN, rdma/ib_verbs.h).
count() {
	sleep 0.02
	cat "/sys/class/infiniband/$DEV1/ports/1/hw_counters/$1"
}
# transfer DEVICE VERSION: transfers messages from host 1 to the device.
transfer() { rrxe-check "$DEV1" "$1" "$2" transfer || fail "rrxe-check exits with status 0" "status $?"; }
index() { ip netns exec h1 cat "/sys/class/net/$1/ifindex"; }

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
refuse "a capture of a link that does not exist" "There is no link other" in1 rrxe capture other $FILE

# The opcodes: SEND First, SEND Only, WRITE First, READ request, READ response First, acknowledgment
# and atomic acknowledgment, all of RC.
opcodes=(00 04 06 0c 0d 11 12)
for version in v4 v6; do
	before=$(count sent_trains)
	transfer "$DEV1" $version
	check "$version: messages within a device take trains" test "$(count sent_trains)" -gt "$before"

	before=$(count sent_trains) packets=$(count sent_pkts)
	check "$version: a capture begins" capture
	transfer "$DEV1" $version
	packets=$(($(count sent_pkts) - packets))
	check "$version: no trains during the capture" test "$(count sent_trains)" -eq "$before"
	# The buffer of tcpdump, 16 MiB, has room for all packets, however slowly tcpdump reads them. A
	# packet that the inbox of its QP has no room for does not count as sent.
	check "$version: it has the packets within the device" \
		wait_for 20 has "$(index eth0)" "$packets" "${opcodes[@]}"
	check "$version: the capture ends" end_capture

	check "$version: another capture begins" capture
	transfer "$DEV2" $version
	check "$version: it has the packets on the wire" wait_for 20 has "$(index eth0)" 1 "${opcodes[@]}"
	check "$version: the capture ends again" end_capture
done

check "a capture of 5 packets begins" capture --count 5
transfer "$DEV1" v4
check "it ends by itself" wait_for 20 grep -q "^5 packets captured" /tmp/tcpdump
wait "$CAPTURE" || fail "tcpdump exits with status 0" "status $?"
check "it has 5 packets" has "$(index eth0)" 5
