#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together
# Tests raw packet QPs: they send frames unchanged, and receive the frames that their flow steering
# rules select (flow.py). Then the link, its network device, its process or the module goes away
# while rules exist. Two hosts are connected by a veth pair.
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

# Receiving by flow steering.
PY=$(dirname "$0")/flow.py
tapped() { in1 grep -q rrxe /proc/net/ptype || in2 grep -q rrxe /proc/net/ptype; }
untapped() { ! tapped; }
hosts_anew() { hosts_down && hosts_up 1500; }
check "nothing looks at frames without rules" untapped
python3 "$PY" "$DEV1" 0 || fail "flow.py ends well" "status $?"
check "nothing looks at frames any more" untapped

# A user with CAP_NET_RAW may have half of a device's rules at most, so two users can have all.
as_user() { setpriv --reuid "$1" --regid "$1" --clear-groups --inh-caps $CAPS --ambient-caps $CAPS "${@:2}"; }
CAPS=+net_raw,+sys_admin,+dac_override
check "root has its share of the rules" hold python3 "$PY" "$DEV1" 0 fill 512
check "another user has a share, too" as_user 65534 python3 "$PY" "$DEV1" 0 fill 512 </dev/null 9>&-
check "root's rules go" release
check "nothing looks at frames then" untapped

# The process, the network device, the link or the module goes away while rules match frames.
check "rules are held" hold python3 "$PY" "$DEV1" 0 hold
check "a packet handler looks at frames" tapped
kill -KILL $HOLDER
check "none once the process was killed" wait_for 10 untapped
exec 9>&-
rm /tmp/hold
for way in "ip -n h1 link set eth0 netns h2 name eth9" "ip -n h1 link del eth0" "rdma link del $DEV1" "rmmod rrxe"; do
	check "rules are held" hold python3 "$PY" "$DEV1" 0 hold
	ip netns exec h2 ping -f -w 60 $HOST1_V4 >/dev/null 2>&1 9>&- &
	PING=$!
	case $way in
	rdma*) check "$way" in1 $way ;;
	*) check "$way" $way ;;
	esac
	check "the device goes" wait_for 10 test ! -e "/sys/class/infiniband/$DEV1"
	check "and its packet handler" untapped
	check "the process ends well" release
	kill $PING 2>/dev/null
	wait $PING
	case $way in
	ip*) check "two hosts again" hosts_anew ;;
	esac
	check "a link again" link_add 1
done

# With softirq_percent=1, a few copies of frames exceed the CPU time of softirqs.
check "rmmod" rmmod rrxe
check "the module, whose softirqs have little time" modprobe rrxe softirq_percent=1
check "a link" link_add 1
check "eight QPs get all that passes, further ones what there is time for" python3 "$PY" "$DEV1" 0 overdrawn
