#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=700
# Tests combinations of perftest's settings between two hosts, which a veth pair connects: each
# program over each of its transports, polling and with events, inline, with many QPs, in both
# directions, connected by sockets and by librdmacm, over IPv4 and IPv6, with each MTU.
# perftest/cases.py selects combinations in which each pair of settings occurs. XRC runs through
# librrxe, because stock librxe has no XRC. perftest does not compare the data that it transfers. So
# at the end rrxe-check transfers and compares data while perftest loads the devices. Environment
# variables:
#
#   PERFTEST       `all` runs all combinations, which takes an hour, so `make vm` needs a larger
#                  TIMEOUT. A number runs that many random combinations
#   SEED           selects other random combinations (0)
#   PERFTEST_JOBS  number of programs at a time (4): programs that start and wait for each other
#                  leave CPUs idle
here=$(dirname "$(readlink -f "$0")")
source "$here/../lib/guest.sh"
PROGRAM_SECONDS=60
JOBS=${PERFTEST_JOBS:-4}

[[ $TYPE != rrxe ]] || check "the module loads with shared_xrcd=1" modprobe rrxe shared_xrcd=1
check "two hosts" hosts_up 4200
check "link on host 1" link_add 1
check "link on host 2" link_add 2
declare -A GID=(
	[1-4]=$(gid_index "$DEV1" $HOST1_V4) [1-6]=$(gid_index "$DEV1" $HOST1_V6)
	[2-4]=$(gid_index "$DEV2" $HOST2_V4) [2-6]=$(gid_index "$DEV2" $HOST2_V6)
)

# Replaces the function of guest.sh: succeeds if the server listens on a TCP port, or by librdmacm.
# run_server_and_client then starts the client.
connect=tcp port=18515
_listening() {
	if [[ $connect == cm ]]; then
		in2 rdma resource show cm_id dev "$DEV2" | grep LISTEN | grep -q ":$port "
	else
		_listening_on "$port"
	fi
}

# run FAMILY CONNECT PROGRAM ARGUMENT...: runs a program of perftest between the hosts. FAMILY is 4
# or 6, CONNECT is tcp or cm.
run() {
	local lost_race=rejected
	[[ $2 != cm || $* != *"-c UD"*"-q "* ]] || lost_race=rejected_or_disordered
	retry_on_race $lost_race run_once "$@"
}

# perftest with -R takes the n-th UD connection that is established for that of its n-th QP, and
# sends by this QP (rdma_cm_establish_ud_connection(), perftest_communication.c). If another
# connection is established first, the QP may not exist yet. The program then crashes.
rejected_or_disordered() { rejected "$1" || [[ $1 -eq $CRASHED ]]; }

run_once() {
	local family=$1 program=$3 address=$HOST2_V4 words
	connect=$2
	shift 3
	words=("$program" -F -p "$port" "$@")
	[[ $* != *XRC* ]] || local -x RDMAV_DRIVERS=rrxe
	if [[ $connect == cm ]]; then
		words+=(-R)
		[[ $family == 4 ]] || words+=(--ipv6-addr) address=$HOST2_V6
		run_server_and_client "${words[@]}" -d "$DEV2" -- "${words[@]}" -d "$DEV1" "$address"
	else
		run_server_and_client "${words[@]}" "${SECOND[@]}" -d "$DEV2" -x "${GID[2-$family]}" -- \
			"${words[@]}" "${SECOND[@]}" -d "$DEV1" -x "${GID[1-$family]}" "$address"
	fi
}

busy() { [[ $(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts") -gt $((sent + 1000)) ]]; }

# worker NUMBER: runs the cases of one of JOBS workers, on a port of its own.
worker() {
	local case
	port=$((18515 + $1))
	while read -r -a case; do
		check "IPv${case[0]} ${case[*]:1}" run "${case[@]}" </dev/null
	done < <(awk "NR % $JOBS == $1" /tmp/cases)
	return $((_failed > 0))
}

python3 "$here/perftest/cases.py" "${PERFTEST:-pairs}" "${SEED:-0}" >/tmp/cases
workers=()
for ((number = 0; number < JOBS; number++)); do
	worker $number &
	workers+=($!)
done
for pid in "${workers[@]}"; do wait "$pid" || _failed=$((_failed + 1)); done
port=18515

# rrxe-check compares all transfers of reliable connections while perftest loads the same devices.
sent=$(<"/sys/class/infiniband/$DEV1/ports/1/hw_counters/sent_pkts")
run 4 tcp ib_write_bw -b -q 4 -D 15 >/tmp/beside 2>&1 &
LOAD=$!
ended() {
	wait $LOAD || {
		cat /tmp/beside
		return 1
	}
}
wait_for 20 busy || fail "perftest runs"
rrxe-check "$DEV1" "$DEV2" v4 transfer || fail "rrxe-check ends well" "status $?"
check "perftest runs to its end beside rrxe-check" ended
