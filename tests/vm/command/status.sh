#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=120
# vm-debug: skip The script tests a program of user space.
# Tests `rrxe add`, `rrxe del`, `rrxe status` and the completion scripts.
source "$(dirname "$0")/../lib/guest.sh"

# shows TEXT COMMAND...: succeeds if the output of a command matches TEXT.
shows() {
	local text=$1 output
	shift
	output=$("$@") || return
	echo "$output"
	grep -qE "$text" <<<"$output"
}
# json EXPRESSION: succeeds if the Python expression is true of `rrxe status --json` (status).
json() {
	in1 rrxe status --json | python3 -c "
import json, sys
status = json.load(sys.stdin)
assert $1, status"
}

check "two hosts" hosts_up 1500
modprobe -r rrxe 2>/dev/null
check "status without a link" shows "There is no link: .rrxe add" in1 rrxe status
check "add loads the module and waits until the link is ACTIVE" \
	shows "Link rrxe0 on eth0 is ACTIVE" in1 rrxe add rrxe0 eth0
check "status shows driver, netdev, state, MTU and QPs" \
	shows "^rrxe0 +rrxe [0-9.]+ +eth0 +ACTIVE +1024 +1 " in1 rrxe status
check "status shows GIDs" shows "[0-9]+: $HOST1_V6" in1 rrxe status
check "status shows a link of another namespace" shows "^rrxe0 .*\(other netns\)" in2 rrxe status
check "the JSON has the link" json 'status["links"][0]["name"] == "rrxe0" and status["links"][0]["mtu"] == 1024'
check "the JSON has all GIDs" json '"'$HOST1_V4'" in [gid["address"] for gid in status["links"][0]["gids"]]'
check "the JSON has all counters" json 'status["links"][0]["counters"]["drop_icrc"] == 0'
in2 bash -c "printf junk >/dev/udp/$HOST1_V4/4791"
check "status shows counters that hint at trouble" wait_for 20 shows "drop_short 1" in1 rrxe status

mkdir /tmp/no-core
printf '#!/bin/sh\necho Failed to open NETLINK_RDMA socket >&2\nexit 1\n' >/tmp/no-core/rdma
chmod +x /tmp/no-core/rdma
check "status on a kernel without the RDMA core" shows "There is no link" \
	in1 env "PATH=/tmp/no-core:$PATH" rrxe status

refuse "a second link on the network device" "eth0 has a link already" in1 rrxe add rrxe1 eth0
refuse "a missing network device" "no network device absent0" in1 rrxe add rrxe1 absent0
ip -n h1 link add link eth0 name vlan5 type vlan id 5
refuse "a VLAN" "add the link to eth0" in1 rrxe add rrxe1 vlan5
refuse "a name that is taken" "name rrxe0 is taken" in1 rrxe add rrxe0 lo
refuse "add without root" "needs root" in1 setpriv --reuid 65534 --clear-groups rrxe add rrxe1 lo
refuse "del without root" "needs root" in1 setpriv --reuid 65534 --clear-groups rrxe del rrxe0
refuse "del of a missing link" "no link rrxe9" in1 rrxe del rrxe9
refuse "top without a terminal" "needs a terminal" in1 rrxe top
check "del deletes the link" in1 rrxe del rrxe0
check "no device is left" test ! -e /sys/class/infiniband/rrxe0
ip -n h1 link set eth0 down
check "add on a network device that is down" shows "rrxe doctor" in1 rrxe add rrxe0 eth0
check "the link is deleted" in1 rrxe del rrxe0
ip -n h1 link set eth0 up

check "a link of rdma_rxe" in1 rdma link add other type rxe netdev eth0
refuse "del of another driver's link" "another driver" in1 rrxe del other
refuse "a port that another driver has" "4791 is taken" in1 rrxe add rrxe0 lo
in1 rdma link del other

check "the completions for bash complete subcommands" bash -c '
	source <(rrxe completions bash)
	COMP_WORDS=(rrxe doc) COMP_CWORD=1
	_rrxe rrxe doc rrxe
	[[ ${COMPREPLY[*]} == doctor ]] || { echo "${COMPREPLY[*]}"; exit 1; }'
for shell in zsh fish; do
	check "there are completions for $shell" shows doctor rrxe completions $shell
done
