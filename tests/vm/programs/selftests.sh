#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# Runs the kernel's own selftests of rxe (tools/testing/selftests/rdma), of the version of the
# running kernel. The names of the link type and of the module are replaced by those of rrxe.
# TYPE=rxe runs them over the C driver.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=200

cp -r /payload/selftests /tmp/
if [[ $TYPE == rrxe ]]; then
	sed -i 's/\btype rxe\b/type rrxe/g; s/\brdma_rxe\b/rrxe/g' /tmp/selftests/rdma/*.sh
fi

# The selftests give a server one second to listen. The replacement waits up to a minute until it
# listens, and then that second.
listens='for try in {1..600}; do ! rdma resource show cm_id | grep -q LISTEN || break; sleep 0.1; done'
sed -i "s/^sleep 1\\b.*/$listens; &/" /tmp/selftests/rdma/*.sh
shopt -s nullglob
scripts=(/tmp/selftests/rdma/rxe_*.sh)
[[ ${#scripts[@]} -ge 5 ]] || fail "the kernel's source has its selftests" "${scripts[*]}"
for script in "${scripts[@]}"; do
	name=$(basename "$script")
	# Two scripts unload the module tun. Another loads it by opening its device node. udev would keep
	# that node when the module is unloaded, but the guest has no udev.
	modprobe tun
	check "selftest $name" bash "$script" && sed -n '/^# Totals/p' <<<"$OUTPUT"
done
