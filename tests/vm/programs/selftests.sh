#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=500
# The kernel's own selftests of rxe, from the source of the kernel that runs, with only the names of link type
# and module changed. TYPE=rxe runs them as they are.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=200

cp -r /payload/selftests /tmp/
if [[ $TYPE == rrxe ]]; then
	sed -i 's/\btype rxe\b/type rrxe/g; s/\brdma_rxe\b/rrxe/g' /tmp/selftests/rdma/*.sh
fi

# They give a server a second to listen. It has a minute now, and that second.
listens='for try in {1..600}; do ! rdma resource show cm_id | grep -q LISTEN || break; sleep 0.1; done'
sed -i "s/^sleep 1\\b.*/$listens; &/" /tmp/selftests/rdma/*.sh
shopt -s nullglob
scripts=(/tmp/selftests/rdma/rxe_*.sh)
[[ ${#scripts[@]} -ge 5 ]] || fail "the kernel's source has its selftests" "${scripts[*]}"
for script in "${scripts[@]}"; do
	name=$(basename "$script")
	# Two scripts unload what others find by a device node, that udev would have left there.
	modprobe tun
	check "$name" bash "$script" && sed -n '/^# Totals/p' <<<"$OUTPUT"
done
