#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=120
# Tests extended reliable connections (XRC) between two hosts, which a veth pair connects, and
# between QPs of one device: transfers by rrxe-check, and XRC domains, shared and private, by
# xrcds.py. The two programs use commands of uverbs, because stock librxe has no XRC.
here=$(dirname "$(readlink -f "$0")")
source "$here/../lib/guest.sh"
PROGRAM_SECONDS=60

# domains KIND: runs xrcds.py. KIND is shared or private.
domains() {
	python3 "$here/xrcds.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "$1" ||
		fail "xrcds.py ends well" "status $?"
}

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
rrxe-check "$DEV1" "$DEV2" v4 xrc || fail "rrxe-check exits with status 0" "status $?"
rrxe-check "$DEV1" "$DEV1" v6 xrc || fail "rrxe-check exits with status 0" "status $?"
domains private
check "the module is removed" rmmod rrxe
DEV2=
check "the module loads with shared_xrcd=1" modprobe rrxe shared_xrcd=1
check "link on host 1 again" link_add 1
domains shared
