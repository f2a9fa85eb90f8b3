#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together
# Tests raw packet QPs: they send frames unchanged, and receive the frames that their flow steering
# rules select (flow.py). Then the link, its network device, the process with the QPs or the module
# goes away while rules exist. Two hosts are connected by a veth pair.
source "$(dirname "$0")/../lib/guest.sh"

# receive COUNT: prints COUNT received frames of EtherType 0x88b5 (local experiments), in the format
# of rrxe-check.
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

receiver_succeeds() { wait $RECEIVER; }

frames_match() { diff <(grep "^# frame" /tmp/sent) <(grep "^# frame" /tmp/received); }

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
receive 5 >/tmp/received 2>&1 &
RECEIVER=$!
check "host 2 listens" wait_for 10 grep -q ready /tmp/received
rrxe-check "$DEV1" "$DEV1" v4 raw >/tmp/sent || fail "rrxe-check exits with status 0" "status $?"
grep ok /tmp/sent
check "host 2 receives all frames that raw packet QPs of host 1 send" receiver_succeeds
check "host 2 receives the frames unchanged" frames_match
setpriv --bounding-set -net_raw rrxe-check "$DEV1" "$DEV1" v4 raw-denied ||
	fail "rrxe-check exits with status 0" "status $?"

# Receiving by flow steering.
PY=$(dirname "$0")/flow.py
has_packet_handler() { in1 grep -q rrxe /proc/net/ptype || in2 grep -q rrxe /proc/net/ptype; }
has_no_packet_handler() { ! has_packet_handler; }
recreate_hosts() { hosts_down && hosts_up 1500; }
check "no packet handler is registered without rules" has_no_packet_handler
python3 "$PY" "$DEV1" 0 || fail "flow.py exits with status 0" "status $?"
check "no packet handler is registered after the test cases of flow.py" has_no_packet_handler

# A user with CAP_NET_RAW may have half of a device's rules at most, so two users can have all.
as_user() { setpriv --reuid "$1" --regid "$1" --clear-groups --inh-caps $CAPS --ambient-caps $CAPS "${@:2}"; }
CAPS=+net_raw,+sys_admin,+dac_override
check "root may have half of a device's rules" start_holder python3 "$PY" "$DEV1" 0 fill 512
check "another user may have the other half of the rules" \
	as_user 65534 python3 "$PY" "$DEV1" 0 fill 512 </dev/null 9>&-
check "root's rules are destroyed with their process" end_holder
check "no packet handler is registered after both processes have ended" has_no_packet_handler

# The process, the network device, the link or the module goes away while rules match frames.
check "a process holds rules" start_holder python3 "$PY" "$DEV1" 0 hold
check "a packet handler is registered while there are rules" has_packet_handler
kill -KILL $HOLDER
check "no packet handler is registered after the process was killed" \
	wait_for 10 has_no_packet_handler
exec 9>&-
rm /tmp/hold
for way in "ip -n h1 link set eth0 netns h2 name eth9" "ip -n h1 link del eth0" "rdma link del $DEV1" "rmmod rrxe"; do
	check "a process holds rules before: $way" start_holder python3 "$PY" "$DEV1" 0 hold
	ip netns exec h2 ping -f -w 60 $HOST1_V4 >/dev/null 2>&1 9>&- &
	PING=$!
	case $way in
	rdma*) check "$way" in1 $way ;;
	*) check "$way" $way ;;
	esac
	check "the RDMA device is removed after: $way" wait_for 10 test ! -e "/sys/class/infiniband/$DEV1"
	check "no packet handler is registered after: $way" has_no_packet_handler
	check "the process exits with status 0 after: $way" end_holder
	kill $PING 2>/dev/null
	wait $PING
	case $way in
	ip*) check "two hosts again after: $way" recreate_hosts ;;
	esac
	check "a new link on host 1 after: $way" link_add 1
done

# With softirq_percent=1, a few copies of frames put a CPU in debt: its softirqs have exceeded the
# time that they may spend on QPs, and must pause for more than 1 ms (limits/softirq_time.rs).
check "the module is removed" rmmod rrxe
check "the module loads with softirq_percent=1" modprobe rrxe softirq_percent=1
check "link on host 1, with softirq_percent=1" link_add 1
check "eight QPs receive all frames in softirq debt, and further QPs miss some" \
	python3 "$PY" "$DEV1" 0 softirq-debt
