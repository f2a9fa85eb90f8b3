#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# Nobody waits for a process whose memory is being invalidated without a pause.
source "$(dirname "$0")/../lib/guest.sh"
here=$(dirname "$0")

# begin: the process, with regions on demand and advice that is being followed.
begin() {
	rm -f /tmp/hold
	mkfifo /tmp/hold
	python3 "$here/notifiers.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" stay </tmp/hold >/tmp/held 2>&1 &
	HOLDER=$!
	exec 9>/tmp/hold
	wait_for 30 grep -q ready /tmp/held
}

end() {
	exec 9>&-
	wait $HOLDER
}

# ends COMMAND...: it does, by itself. A command that waits for ever can't be killed.
ends() {
	local pid begin=$EPOCHREALTIME
	"$@" &
	pid=$!
	_gone() { ! kill -0 $pid; }
	if ! wait_for 20 _gone; then
		grep ^State "/proc/$pid/status"
		cat "/proc/$pid/stack"
		return 124
	fi
	note "$* took $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) ms" >/dev/console
	wait $pid
}

link_goes() {
	ends ip netns exec h1 rdma link del "$DEV1" || return
	DEV1=''
}

# Namespaces are taken down one after the other.
namespaces_end() {
	ip netns add other && ip link add there type veth peer name here netns other || return
	ends ip netns del h1 && ends ip netns del other || return
	wait_for 20 bash -c '! ip link show there'
}

removal_ends() {
	local status=0
	ends rmmod rrxe || status=$?
	[[ $status -eq 1 ]]
}

# A thread of the kernel that waits for a hostile process is no hung one.
echo 0 >/proc/sys/kernel/hung_task_timeout_secs
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
python3 "$here/notifiers.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" calls || fail "notifiers.py exits with status 0" "status $?"

check "the process" begin
check "the module is not removed under regions on demand, and nobody waits for that" removal_ends
check "the link is there" test -e "/sys/class/infiniband/$DEV1"
check "the link goes" link_goes
check "another one of the same name comes" link_add 1
check "and goes" link_goes
check "removal of the module waits for nothing" removal_ends
check "the process ends" end
gone() { [[ ! -e /sys/module/rrxe ]] || rmmod rrxe; }
check "then the module goes" wait_for 20 gone

check "the module again" modprobe rrxe
check "link on host 1 again" link_add 1
check "the process again" begin
check "the namespace goes, and so does another one" namespaces_end
check "the device went with it" wait_for 20 test ! -e "/sys/class/infiniband/$DEV1"
check "a namespace can be made" ends ip netns add other
check "and it goes" ends ip netns del other
DEV1=''
check "the process ends again" end
check "then the module goes again" wait_for 20 gone
