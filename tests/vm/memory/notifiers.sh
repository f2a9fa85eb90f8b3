#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# Tests that no teardown waits for a process whose memory is invalidated without a pause. Runs the
# cases of notifiers.py. Then `rdma link del`, the exit of a network namespace and rmmod run while
# such a process has on-demand regions and advice in progress. Host 1 (a network namespace) has the
# link.
source "$(dirname "$0")/../lib/guest.sh"
here=$(dirname "$0")

# start_process: starts the process, with on-demand regions and advice that is being followed. The
# process runs until file descriptor 9 is closed.
start_process() {
	rm -f /tmp/hold
	mkfifo /tmp/hold
	python3 "$here/notifiers.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" stay \
		</tmp/hold >/tmp/held 2>&1 &
	HOLDER=$!
	exec 9>/tmp/hold
	wait_for 30 grep -q ready /tmp/held
}

end_process() {
	exec 9>&-
	wait $HOLDER
}

# finishes COMMAND...: runs the command. If it has not ended in time, prints its kernel stack and
# returns 124. Does not kill it: a command that waits in the kernel for ever can't be killed.
finishes() {
	local pid begin=$EPOCHREALTIME
	"$@" &
	pid=$!
	_ended() { ! kill -0 $pid; }
	if ! wait_for 20 _ended; then
		grep ^State "/proc/$pid/status"
		cat "/proc/$pid/stack"
		return 124
	fi
	note "$* took $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) ms" >/dev/console
	wait $pid
}

delete_link() {
	finishes ip netns exec h1 rdma link del "$DEV1" || return
	DEV1=''
}

add_namespace() { ip netns add other && ip link add there type veth peer name here netns other; }
# The kernel cleans a namespace up after `ip netns del` has ended. It then deletes the veth pair.
delete_namespace() { finishes ip netns del other && wait_for 20 bash -c '! ip link show there'; }
# The kernel cleans namespaces up one after the other, so the exit of h1 must not delay the next.
delete_namespaces() { add_namespace && finishes ip netns del h1 && delete_namespace; }

rmmod_fails_at_once() {
	local status=0
	finishes rmmod rrxe || status=$?
	[[ $status -eq 1 ]]
}

# After the link was deleted, only the release of on-demand regions holds the module. It waits until
# the process has no invalidation in progress, which can happen if the process gets no CPU time. So
# rmmod may succeed, but may not wait.
rmmod_ends_at_once() {
	local status=0
	finishes rmmod rrxe || status=$?
	[[ $status -le 1 ]]
}

# A kernel thread that waits for the invalidations of a process may wait for ever. It is not to be
# reported as hung.
echo 0 >/proc/sys/kernel/hung_task_timeout_secs
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
python3 "$here/notifiers.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" calls ||
	fail "notifiers.py exits with status 0" "status $?"

check "a process with on-demand regions and permanent invalidations starts" start_process
check "rmmod fails at once while on-demand regions exist" rmmod_fails_at_once
check "the link exists after rmmod has failed" test -e "/sys/class/infiniband/$DEV1"
check "rdma link del does not wait for invalidations" delete_link
check "a link of the same name can be added" link_add 1
check "rdma link del of the second link does not wait for invalidations" delete_link
check "rmmod ends at once after the link was deleted" rmmod_ends_at_once
check "the process ends" end_process
remove_module() { [[ ! -e /sys/module/rrxe ]] || rmmod rrxe; }
check "rmmod succeeds after the process has ended" wait_for 20 remove_module

check "modprobe succeeds after rmmod" modprobe rrxe
check "link on host 1 again" link_add 1
check "a second process with permanent invalidations starts" start_process
check "the exit of two network namespaces does not wait for invalidations" delete_namespaces
check "the device is deleted with its network namespace" \
	wait_for 20 test ! -e "/sys/class/infiniband/$DEV1"
check "a network namespace can be created" finishes add_namespace
check "the exit of the new network namespace does not wait" delete_namespace
DEV1=''
check "the second process ends" end_process
check "rmmod succeeds after the second process has ended" wait_for 20 remove_module
