#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: packages=ucx-utils,libfabric-bin,openmpi-bin,python3-mpi4py timeout=400
# Tests programs over verbs as Debian ships them: the benchmarks of UCX and libfabric, and an MPI
# program with one process on each of two hosts (apps/messages.py), which compares all data that it
# receives. A veth pair connects the hosts. The counters of sent packets show that the data passes
# the devices.
here=$(dirname "$(readlink -f "$0")")
source "$here/../lib/guest.sh"
source "$here/apps/ucx.sh"
PROGRAM_SECONDS=90

# By default libfabric creates CQs for 256 peers. They are larger than the C driver allows.
[[ $TYPE != rxe ]] || export FI_UNIVERSE_SIZE=4

packets() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"; }

# moves NAME COMMAND...: passes if the command succeeds and both devices send more than 20 packets.
moves() {
	local name=$1 before1 before2
	shift
	before1=$(packets "$DEV1") before2=$(packets "$DEV2")
	check "$name" "$@" && check "$name: both devices send packets" test \
		"$(packets "$DEV1")" -gt $((before1 + 20)) -a "$(packets "$DEV2")" -gt $((before2 + 20))
}

# Runs libfabric's pingpong. With -c it compares its data.
fabric() { listen=47592 run_server_and_client fi_pingpong -c -d "$DEV2" "$@" -- fi_pingpong -c -d "$DEV1" "$@" $HOST2_V4; }

# libfabric's layer for datagrams (ofi_rxm) closes the QP of a connection. Then it handles the
# remaining completions of the CQ, and uses memory that it has freed with the QP (rxm_close_conn(),
# rxm_flush_msg_cq(), prov/rxm/src/rxm_conn.c; fixed in August 2026 by "prov/rxm: fix the msg_ep
# use-after-free at connection teardown"). So the server may crash after its client has compared all
# data.
crashed_at_its_end() { [[ $1 -eq $CRASHED && $OUTPUT == *"=20"*"--- server, status $CRASHED"* ]]; }

# mpi TRANSPORTS: runs the MPI program, one process on each host, over these transports of UCX.
mpi() {
	bash "$here/apps/remote.sh" $HOST1_V4 timeout -k 5 "$((PROGRAM_SECONDS * LIMIT_FACTOR))" mpirun --allow-run-as-root --oversubscribe -n 2 \
		--prtemca plm_ssh_agent "$here/apps/remote.sh" --host $HOST1_V4,$HOST2_V4 --map-by node \
		--mca pml ucx --mca osc ucx --mca btl self -x UCX_TLS="$1" -x UCX_UD_VERBS_ETH_DGID_CHECK ${RDMAV_DRIVERS:+-x RDMAV_DRIVERS} \
		python3 "$here/apps/messages.py" 2>&1 | tr -d '\0'
	return "${PIPESTATUS[0]}"
}

check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
moves "UCX: tagged messages over UD" ucx ud_v tag_lat -n 50 -w 5 -s 3000
moves "UCX: tagged messages of 1 MiB over RC" ucx rc_v tag_bw -n 10 -w 2 -s 1048576
moves "UCX: reading over RC" ucx rc_v ucp_get -n 50 -w 5 -s 3000
moves "UCX: compare-and-swap over RC" ucx rc_v ucp_cswap -n 50 -w 5 -s 8
RDMAV_DRIVERS=rrxe moves "UCX through librrxe: tagged messages over RC" ucx rc_v tag_lat -n 50 -w 5 -s 3000
RDMAV_DRIVERS=rrxe moves "UCX through librrxe: reading over RC" ucx rc_v ucp_get -n 50 -w 5 -s 3000
# With -E sleep UCX relies on an armed CQ to notify of completions that are in it already. Over C
# rxe it hangs at times.
if [[ $TYPE == rrxe ]]; then
	for round in {1..5}; do
		moves "UCX that sleeps: tagged messages over RC, $round" ucx rc_v tag_lat -E sleep -n 50 -w 5 -s 3000
		RDMAV_DRIVERS=rrxe moves "UCX that sleeps, through librrxe, $round" ucx rc_v tag_lat -E sleep -n 50 -w 5 -s 3000
	done
	moves "UCX that sleeps: tagged messages over UD" ucx ud_v tag_lat -E sleep -n 50 -w 5 -s 3000
fi
moves "libfabric: reliable messages, compared" fabric -p verbs -e msg -I 20 -S 65536
moves "libfabric: reliable datagrams, compared" retry_on_race crashed_at_its_end fabric -p "verbs;ofi_rxm" -e rdm -I 20 -S 3000
moves "MPI over UCX over RC, all compared" mpi rc_v,self
RDMAV_DRIVERS=rrxe moves "MPI over UCX through librrxe, all compared" mpi rc_v,self
