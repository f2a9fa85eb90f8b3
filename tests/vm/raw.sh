#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together
# Raw packet QPs: the frames that arrive are those that were sent.
source "$(dirname "$0")/lib.sh"

# receive COUNT: prints so many frames of the type for experiments, as rrxe-check prints them.
receive() {
	in2 python3 -c '
import socket, sys
port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b5))
port.bind(("eth0", 0x88b5))
port.settimeout(30)
print("ready", flush=True)
for _ in range(int(sys.argv[1])):
    print("# frame", port.recv(4096).hex(), flush=True)
' "$1"
}

arrived() { wait $RECEIVER; }

same() { diff <(grep "^# frame" /tmp/sent) <(grep "^# frame" /tmp/received); }

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
receive 5 >/tmp/received 2>&1 &
RECEIVER=$!
check "host 2 listens" wait_for 10 grep -q ready /tmp/received
rrxe-check "$DEV1" "$DEV1" v4 raw >/tmp/sent || fail "rrxe-check ends well" "status $?"
grep ok /tmp/sent
check "all frames arrive" arrived
check "they are what was sent" same
setpriv --bounding-set -net_raw rrxe-check "$DEV1" "$DEV1" v4 raw-denied ||
	fail "rrxe-check ends well" "status $?"
