#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# Tests that no teardown waits for a process whose memory is invalidated without a pause. Runs the
# cases of notifiers.py. Then `rdma link del`, the exit of a network namespace and rmmod run while
# such a process has on-demand regions and advice in progress. Host 1 (a network namespace) has the
# link.
source "$(dirname "$0")/../lib/guest.sh"
here=$(dirname "$0")

# begin: starts the process, with on-demand regions and advice that is being followed. It runs until
# file descriptor 9 is closed.
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

# ends COMMAND...: runs the command; status 124 and its kernel stack if it has not ended in time.
# The command is not killed: one that waits in the kernel for ever can't be.
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

# The kernel cleans namespaces up one after the other, so the exit of h1 must not delay the next.
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

# A kernel thread that waits for the invalidations of a process may wait for ever. It is not to be
# reported as hung.
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
