#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# In the guest: makes two hosts (network namespaces over a veth pair) with an RDMA link each. Stock
# programs (libibverbs' examples, perftest) move data between them, through the stock library librxe
# and through librrxe. TYPE=rxe shows the same over the C driver, with librxe only.
PROGRAM_SECONDS=120
# shellcheck source=../tests/vm/lib/guest.sh
source /payload/tests/vm/lib/guest.sh

step() { printf '\n==> [%d s] %s\n' $SECONDS "$*"; }

# must MESSAGE COMMAND...: runs a command with its output in OUTPUT. If it fails, prints its output
# and MESSAGE, and ends the demo.
must() {
	local message=$1
	shift
	if ! _capture "$@"; then
		printf '%s\n\nThe demo failed: %s.\n' "$OUTPUT" "$message"
		exit 1
	fi
}

# figures PROGRAM: prints bytes, iterations and average bandwidth or typical latency from the last
# row of perftest's output.
figures() {
	case $1 in
	*_bw) awk '/^ *[0-9]+ +[0-9]+ +[0-9.]+ +[0-9.]+/ { row = $1 " " $2 " " $4 " MiB/s" } END { print row }' ;;
	*_lat) awk '/^ *[0-9]+ +[0-9]+ +[0-9.]+ +[0-9.]+/ { row = $1 " " $2 " " $5 " us" } END { print row }' ;;
	esac <<<"$OUTPUT"
}

module=$TYPE
[[ $TYPE != rxe ]] || module=rdma_rxe

step "$(uname -sr): modprobe $module"
must "modprobe $module" modprobe "$module"
grep "^$module " /proc/modules

step "two hosts, h1 ($HOST1_V4) and h2 ($HOST2_V4), over a veth pair"
must "could not make the two hosts" hosts_up 4200

for host in 1 2; do
	step "h$host: rdma link add $TYPE$host type $TYPE netdev eth0"
	must "rdma link add on h$host" link_add $host
done
rdma link

step "ibv_devinfo -d $DEV1"
must "ibv_devinfo" ibv_devinfo -d "$DEV1"
echo "$OUTPUT"

step "ibv_rc_pingpong -c: 200 messages there and back"
must "ibv_rc_pingpong between $DEV1 and $DEV2" pingpong -n 200
grep -E 'bytes in|iters in' <<<"${OUTPUT%%--- server*}"

libraries=(librxe)
[[ $TYPE != rrxe ]] || libraries+=(librrxe)
table=()
for program in ib_send_bw ib_write_bw ib_read_bw ib_send_lat ib_write_lat ib_read_lat; do
	row=''
	for library in "${libraries[@]}"; do
		step "$program, $library: 50 iterations"
		# Without RDMAV_DRIVERS libibverbs takes the stock library.
		RDMAV_DRIVERS=${library#lib} must "$program between $DEV1 and $DEV2" perftest $program -n 50
		read -r bytes times figure < <(figures $program)
		if [[ -z $figure ]]; then
			printf '%s\n\nThe demo failed: %s printed no figures.\n' "$OUTPUT" "$program"
			exit 1
		fi
		echo "$bytes bytes, $times times: $figure"
		row+=$(printf ' %16s' "$figure")
	done
	table+=("$(printf '%-14s %8d %8d%s' $program "$bytes" "$times" "$row")")
done

step "everything down: rdma link del, ip netns del, rmmod $module"
for host in 1 2; do must "rdma link del on h$host" link_del $host; done
hosts_down
must "rmmod $module" rmmod "$module"

printf '\n%-14s %8s %8s' "$TYPE" bytes times
printf ' %16s' "${libraries[@]}"
echo
printf '%s\n' "${table[@]}"
