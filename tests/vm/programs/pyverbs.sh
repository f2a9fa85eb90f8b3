#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Runs rdma-core's own pyverbs tests, of the version that the guest has, over one device on a veth
# pair. pyverbs/expected-VERSION lists tests that need not pass. TYPE=rxe runs the tests over the C
# driver, PYVERBS=pattern selects some.
here=$(dirname "$(readlink -f "$0")")
source "$here/../lib/guest.sh"

version=$(dpkg-query -W -f '${Version}' rdma-core)
expected=$here/pyverbs/expected-${version%-*}
note "rdma-core $version"
if [[ ! -e $expected ]]; then
	# Debian testing has a newer version than the lists: the newest list is taken.
	newest=$(printf '%s\n' "$here"/pyverbs/expected-* | sort -V | tail -n 1)
	note "no list for this version, taking $(basename "$newest")"
	expected=/tmp/expected
	{ cat "$newest" && echo "both * not reviewed for version $version"; } >$expected
fi

[[ $TYPE != rrxe ]] || check "the module loads with shared_xrcd=1" modprobe rrxe shared_xrcd=1
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
echo 32 >/proc/sys/vm/nr_hugepages
export PYVERBS_TEST_SECONDS=$((60 * LIMIT_FACTOR))
# run.py prints a result line for each test, and exits with status 1 if one failed.
in1 python3 "$here/pyverbs/run.py" "$DEV1" "$(gid_index "$DEV1" $HOST1_V4)" "${PYVERBS_KIND:-$TYPE}" "$expected" \
	"$here/pyverbs/not-yet" ${PYVERBS:+"$PYVERBS"} || [[ $? -eq 1 ]] || fail "rdma-core's tests exit with status 0"
echo 0 >/proc/sys/vm/nr_hugepages
