# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Functions for test scripts that run in the guest: results as TAP lines, two hosts (network
# namespaces), RDMA links, perftest, pingpong, rping.
#
#   source "$(dirname "$0")/../lib/guest.sh"
#   hosts_up 4200                      # two namespaces over a veth pair; addresses below
#   link_add 1 rrxe; link_add 2 rxe    # devices $DEV1 and $DEV2
#   check "send over IPv4" perftest ib_send_bw -n 100
#
# At the end of the script a trap removes links, hosts and modules. It adds a failed result if the
# kernel has logged a warning, an oops or a leak since the script began. The script's status is 1 if
# any result failed.

# The directory of this file. Python looks for modules there, too.
LIB=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
readonly LIB
export PYTHONPATH=$LIB
readonly HOST1_V4=10.77.0.1 HOST2_V4=10.77.0.2 HOST1_V6=fd77::1 HOST2_V6=fd77::2
# Time limit in seconds of each program, for a quiet machine and a kernel without debug checks.
: "${PROGRAM_SECONDS:=60}"
# Factor by which all time limits are multiplied. The limits only detect hangs. An emulated machine
# on a busy host is several times slower than a quiet one, and a kernel with debug checks is several
# times slower again.
LIMIT_FACTOR=4 DEBUG_KERNEL=
[[ ! -e /sys/kernel/debug/kmemleak ]] || LIMIT_FACTOR=12 DEBUG_KERNEL=yes
readonly LIMIT_FACTOR DEBUG_KERNEL
# Seconds after which the kernel warns that an unregistered network device still has references. The
# kernel's default is 10.
[[ -z $DEBUG_KERNEL ]] || echo $((10 * LIMIT_FACTOR)) >/proc/sys/net/core/netdev_unregister_timeout_secs
# scaled_count N: prints N, a number of messages, or on the debug kernel a fifth of it.
scaled_count() { if [[ -n $DEBUG_KERNEL ]]; then echo $(($1 / 5)); else echo "$1"; fi; }
# The type of links unless a script names one. `make vm TYPE=rxe` runs such scripts over the C
# driver, rdma_rxe.
: "${TYPE:=rrxe}"
DEV1='' DEV2=''
# The output of the last check, perftest or pingpong.
OUTPUT=''
_failed=0

pass() { printf 'ok - %s\n' "$1"; }

# fail NAME [LINES]: prints a failed result, and below it the lines, which give the reason.
fail() {
	_failed=$((_failed + 1))
	printf 'not ok - %s\n' "$1"
	[[ -z ${2:-} ]] || sed 's/^/#   /' <<<"$2"
}

skip() { printf 'ok - %s # SKIP %s\n' "$1" "$2"; }

note() { sed 's/^/# /' <<<"$*"; }

# check NAME COMMAND...: passes if the command succeeds. Prints its output if it fails.
check() {
	local name=$1 rc=0
	shift
	_capture "$@" || rc=$?
	if [[ $rc -eq 0 ]]; then pass "$name"; else fail "$name" "$OUTPUT"$'\n'"status $rc: $*"; fi
	return $rc
}

# refuse NAME TEXT COMMAND...: passes if the command fails in time, and its output matches TEXT (a
# regular expression).
refuse() {
	local name=$1 text=$2 rc=0
	shift 2
	_capture "$@" || rc=$?
	if [[ $rc -ne 0 && $rc -ne 124 && $OUTPUT =~ $text ]]; then
		pass "$name"
	else
		fail "$name" "$OUTPUT"$'\n'"status $rc, and expected a failure with: $text: $*"
	fi
}

# Runs a command, and stores its output in OUTPUT. A function runs in this shell, not in a subshell,
# as it may set variables.
_capture() {
	local rc=0 file
	file=$(mktemp)
	if [[ $(type -t "$1") == function ]]; then
		"$@" >"$file" 2>&1 || rc=$?
	else
		patiently "$PROGRAM_SECONDS" "$@" >"$file" 2>&1 || rc=$?
	fi
	OUTPUT=$(<"$file")
	rm -f "$file"
	return $rc
}

# patiently SECONDS COMMAND...: runs the command, and ends it after SECONDS times LIMIT_FACTOR. In
# the background this function runs in a subshell, whose PID is not that of `timeout`. So scripts
# that kill a background program start it by `timeout` itself.
patiently() {
	local seconds=$1
	shift
	timeout -k 5 "$((seconds * LIMIT_FACTOR))" "$@"
}

# wait_for SECONDS COMMAND...: repeats the command until it succeeds. Fails after SECONDS times
# LIMIT_FACTOR.
wait_for() {
	local end=$((SECONDS + $1 * LIMIT_FACTOR))
	shift
	until "$@" >/dev/null 2>&1; do
		[[ $SECONDS -lt $end ]] || return 1
		sleep 0.1
	done
}

in1() { ip netns exec h1 "$@"; }
in2() { ip netns exec h2 "$@"; }

# start_holder COMMAND...: starts a program, such as `rrxe-check` with hold-group, in the
# background, and waits until it prints "attached". The program runs until `end_holder` closes its
# input.
start_holder() {
	# The output of an earlier program must not be mistaken for that of this one.
	rm -f /tmp/held
	mkfifo /tmp/hold
	"$@" </tmp/hold >/tmp/held 2>&1 &
	HOLDER=$!
	exec 9>/tmp/hold
	wait_for 10 grep -q attached /tmp/held
}

# Ends the program that `start_holder` started. Prints its output if its status is not 0.
end_holder() {
	exec 9>&-
	rm /tmp/hold
	wait $HOLDER || {
		note "$(</tmp/held)"
		return 1
	}
}

# hold_roce_port: starts a process of host 1 that receives by UDP port 4791. HOLDER is its PID.
hold_roce_port() {
	ip netns exec h1 python3 -c "
import signal, socket
holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
holder.bind(('', 4791))
signal.pause()" &
	HOLDER=$!
	wait_for 20 in1 sh -c 'ss -Hlun | grep -q ":4791 "'
}

# hosts_up [MTU [QUEUES]]: creates the namespaces h1 and h2, connected by a veth pair: each has an
# eth0 with QUEUES transmit and receive queues.
hosts_up() {
	local mtu=${1:-1500} queues=${2:-1} host
	ip netns add h1 && ip netns add h2 &&
		ip link add eth0 netns h1 mtu "$mtu" numtxqueues "$queues" numrxqueues "$queues" type veth \
			peer name eth0 netns h2 mtu "$mtu" numtxqueues "$queues" numrxqueues "$queues" || return
	for host in 1 2; do
		ip -n h$host link set lo up
		ip -n h$host addr add "10.77.0.$host/24" dev eth0
		ip -n h$host addr add "fd77::$host/64" dev eth0 nodad
		ip -n h$host link set eth0 up
	done
	# Waits for duplicate address detection of the link-local addresses, and for the carrier.
	for host in 1 2; do
		wait_for 20 dad_finished $host || return
		wait_for 20 bash -c "ip -n h$host link show dev eth0 | grep -q LOWER_UP" || return
	done
	wait_for 20 in1 ping -q -c 1 -W 5 $HOST2_V4 >/dev/null && wait_for 20 in1 ping -q -c 1 -W 5 $HOST2_V6 >/dev/null
}

# dad_finished HOST: succeeds if duplicate address detection has ended on the host's eth0.
dad_finished() { ! ip -n "h$1" -6 addr show dev eth0 | grep -q tentative; }

hosts_down() {
	local host
	for host in 1 2; do
		[[ ! -e /run/netns/h$host ]] || ip netns del h$host
	done
}

# link_add HOST [TYPE]: adds an RDMA link on the host's eth0, and waits until its port is ACTIVE.
# Stores the device's name in DEV1 or DEV2.
link_add() {
	local host=$1 type=${2:-$TYPE} device
	device=$type$host
	ip netns exec "h$host" rdma link add "$device" type "$type" netdev eth0 || return
	printf -v "DEV$host" %s "$device"
	wait_for 10 grep -q ACTIVE "/sys/class/infiniband/$device/ports/1/state"
}

link_del() {
	local name=DEV$1
	[[ -z ${!name} ]] || ip netns exec "h$1" rdma link del "${!name}"
	printf -v "$name" %s ''
}

# _gid_of ADDRESS: prints the GID of an address in the format of sysfs. It starts no program, as
# that is slow on emulated machines.
_gid_of() {
	local address=$1 words=() tail=() word gid=
	if [[ $address == *.* ]]; then
		IFS=. read -ra words <<<"$address"
		printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' "${words[@]}"
		return
	fi
	IFS=: read -ra words <<<"${address%%::*}"
	[[ $address != *::* ]] || IFS=: read -ra tail <<<"${address##*::}"
	while [[ $((${#words[@]} + ${#tail[@]})) -lt 8 ]]; do words+=(0); done
	for word in "${words[@]}" "${tail[@]}"; do printf -v gid '%s:%04x' "$gid" "0x$word"; done
	printf %s "${gid#:}"
}

# gid_index DEVICE ADDRESS: prints the index of the GID that has the address.
gid_index() {
	local gid index entry
	gid=$(_gid_of "$2")
	for index in {0..63}; do
		{ read -r entry <"/sys/class/infiniband/$1/ports/1/gids/$index"; } 2>/dev/null || continue
		if [[ $entry == "$gid" ]]; then
			echo "$index"
			return
		fi
	done
	echo "no GID for $2 on $1" >&2
	return 1
}

# Succeeds if a server on host 2 listens on the TCP port $listen. The default is perftest's, 18515.
_listening() { _listening_on "${listen:-18515}"; }
_listening_on() { [[ -n $(in2 ss -Hltn "sport = :$1") ]]; }

# Succeeds if a program of librdmacm listens. `rdma resource` shows the state LISTEN before
# rdma_listen() has returned, but the kernel refuses connections until then. The threads of the
# program sleep after rdma_listen(), so this fails while any of them runs.
_cm_listening() {
	local pid
	pid=$(rdma resource show cm_id | sed -nE '/LISTEN/s/.* pid ([0-9]+) .*/\1/p' | head -n 1)
	[[ -n $pid ]] && ! grep -qE '^State:\s+[RD]' "/proc/$pid"/task/*/status
}

# terminate PID: ends a background program by SIGTERM. Fails if the program has ended already, or
# catches the signal, and prints the program's status then.
terminate() {
	local status=0
	kill "$1"
	wait "$1" || status=$?
	[[ $status -eq 143 ]] || { echo "the program ended with status $status" && return 1; }
}

# add_queueing_ifb HOST: creates ifb0 on the host, with a qdisc (tbf, 8 bit/s) that keeps packets in
# its queue.
add_queueing_ifb() {
	modprobe ifb numifbs=0 && ip -n "h$1" link add ifb0 type ifb && ip -n "h$1" link set ifb0 up &&
		ip netns exec "h$1" tc qdisc add dev ifb0 root tbf rate 8bit burst 5000 limit 10000000
}

# redirect HOST HOOK PROTOCOL NETDEV: redirects RoCEv2 packets (tc mirred) from the ingress or
# egress HOOK of the host's eth0 to NETDEV, which transmits them. PROTOCOL is ip or ipv6. At ingress
# the packets stay in the same buffers.
redirect() {
	local host=h$1 hook=$2 protocol=$3 netdev=$4
	ip netns exec "$host" tc qdisc add dev eth0 clsact &&
		ip netns exec "$host" tc filter add dev eth0 "$hook" protocol "$protocol" flower ip_proto udp dst_port 4791 \
			action mirred egress redirect dev "$netdev"
}

# backlog NAMESPACE NETDEV: prints the number of packets that wait in the network device's qdisc.
backlog() { ip netns exec "$1" tc -s qdisc show dev "$2" root | sed -n 's/.*backlog [^ ]* \([0-9]*\)p.*/\1/p'; }

# rping_connects SECONDS [HOST]: connects host 2, or HOST, to host 1 by librdmacm, and transfers
# data. Fails after SECONDS times LIMIT_FACTOR.
rping_connects() { _rping "$1" $HOST1_V4 "${2:-2}"; }

# _rping SECONDS ADDRESS HOST [ARGUMENT...]: does the same with ADDRESS of host 1. The arguments are
# for the server and the client.
_rping() {
	local seconds=$1 address=$2 host=$3
	shift 3
	in1 rping -s -C 3 -a "$address" "$@" >/tmp/rping 2>&1 &
	wait_for 20 bash -c "rdma resource show cm_id | grep -q LISTEN" &&
		patiently "$seconds" ip netns exec "h$host" rping -c -C 3 -V -a "$address" "$@" && wait $!
}

# perftest with -R connects a second time, for its messages. Its client doesn't wait until the
# server listens again (create_rdma_cm_connection()), so the server may reject the client. The
# client would try once more then, but that of Debian 13 crashes with SIGSEGV, whose status is 139.
# rejected STATUS: succeeds if a failure is of this kind.
readonly CRASHED=139
rejected() { [[ $1 -eq $CRASHED && $OUTPUT == *"Failed to connect RDMA CM events"* ]]; }

# retry_on_race CONDITION COMMAND...: runs the command, up to five times while it fails by a race in
# the program itself. The function CONDITION gets the status and reads OUTPUT. It succeeds if the
# failure is such a race.
retry_on_race() {
	local condition=$1 try status
	shift
	for try in {1..5}; do
		status=0
		"$@" || status=$?
		[[ $status -ne 0 ]] && "$condition" $status || break
		note "try $try lost a race of the program's own"
	done
	return $status
}

# run_server_and_client SERVER-COMMAND -- CLIENT-COMMAND: runs the server on host 2 and, once it
# listens, the client on host 1. Both must succeed in time. Stores the output of both in OUTPUT.
run_server_and_client() {
	local server=() rc=0 server_rc=0 log pid
	while [[ $1 != -- ]]; do
		server+=("$1")
		shift
	done
	shift
	log=$(mktemp)
	ip netns exec h2 timeout -k 5 $((PROGRAM_SECONDS * LIMIT_FACTOR)) "${server[@]}" >"$log" 2>&1 &
	pid=$!
	wait_for 20 _listening || rc=1
	OUTPUT=$(patiently "$PROGRAM_SECONDS" ip netns exec h1 "$@" 2>&1) || rc=$?
	[[ $rc -eq 0 ]] || kill $pid 2>/dev/null
	wait $pid || server_rc=$?
	OUTPUT+=$'\n'"--- server, status $server_rc"$'\n'$(<"$log")
	rm -f "$log"
	echo "$OUTPUT"
	[[ $rc -eq 0 ]] || return $rc
	return $server_rc
}

# An argument of perftest: a QP timeout of 1 s instead of 67 ms. A vCPU of an emulated machine may
# stand still for longer than all retries with 67 ms take.
readonly SECOND=(-u 18)

# perftest PROGRAM [ARGUMENT...]: runs a program of perftest from host 1 to host 2 with IPv4 GIDs;
# perftest6 does so with IPv6 GIDs.
perftest() {
	local program=$1
	shift
	run_server_and_client "$program" -F "${SECOND[@]}" -d "$DEV2" -x "$(gid_index "$DEV2" $HOST2_V4)" "$@" -- \
		"$program" -F "${SECOND[@]}" -d "$DEV1" -x "$(gid_index "$DEV1" $HOST1_V4)" "$@" $HOST2_V4
}

perftest6() {
	local program=$1
	shift
	run_server_and_client "$program" -F "${SECOND[@]}" -d "$DEV2" -x "$(gid_index "$DEV2" $HOST2_V6)" "$@" -- \
		"$program" -F "${SECOND[@]}" -d "$DEV1" -x "$(gid_index "$DEV1" $HOST1_V6)" "$@" $HOST2_V4
}

# pingpong [-T rc|uc|ud] [ARGUMENT...]: runs ibv_rc_pingpong, or the program of another transport,
# between the hosts; pingpong6 does so with IPv6 GIDs. The server compares the first byte of each page
# of the last message.
pingpong() { _pingpong $HOST1_V4 $HOST2_V4 "$@"; }
pingpong6() { _pingpong $HOST1_V6 $HOST2_V6 "$@"; }

_pingpong() {
	local address1=$1 address2=$2 program=ibv_rc_pingpong
	shift 2
	if [[ ${1:-} == -T ]]; then
		program=ibv_$2_pingpong
		shift 2
	fi
	run_server_and_client "$program" -c -d "$DEV2" -g "$(gid_index "$DEV2" "$address2")" "$@" -- \
		"$program" -c -d "$DEV1" -g "$(gid_index "$DEV1" "$address1")" "$@" $HOST2_V4 || return
	# The program reports wrong data, but not by its status.
	[[ $OUTPUT != *"invalid data"* ]]
}

# ipsec MODE SPI PREFIX-LENGTH PREFIX: sets ESP states and policies on both hosts for packets to the
# RoCEv2 port between the addresses PREFIX1 and PREFIX2. SPI must differ between address families.
ipsec() {
	local mode=$1 spi=$2 bits=$3 prefix=$4 host peer from to
	for host in 1 2; do
		for peer in "1 2" "2 1"; do
			read -r from to <<<"$peer"
			ip -n h$host xfrm state add src "$prefix$from" dst "$prefix$to" proto esp spi "0x$spi$from" mode "$mode" \
				aead "rfc4106(gcm(aes))" 0x00112233445566778899aabbccddeeff00112233 128 || return
			ip -n h$host xfrm policy add src "$prefix$from/$bits" dst "$prefix$to/$bits" proto udp dport 4791 \
				dir "$([[ $from == "$host" ]] && echo out || echo in)" \
				tmpl src "$prefix$from" dst "$prefix$to" proto esp mode "$mode" || return
		done
	done
}

# path_mtu_is ADDRESS MTU: succeeds if MTU is the path MTU from host 1 to the address in the IP
# layer.
path_mtu_is() { in1 ip route get "$1" | grep -q "mtu $2"; }

# netem SETTING: sets the netem qdisc, for example with "loss 5%", on both ends of the wire;
# netem_off removes it.
netem() {
	local host
	for host in 1 2; do
		# shellcheck disable=SC2086 # a list of words
		ip netns exec h$host tc qdisc replace dev eth0 root netem $1 || return
	done
}

netem_off() {
	in1 tc qdisc del dev eth0 root
	in2 tc qdisc del dev eth0 root
}

# Reserves eight huge pages. Compacts memory first, which earlier scripts may have fragmented.
huge_pages() {
	echo 1 >/proc/sys/vm/compact_memory
	echo 8 >/proc/sys/vm/nr_hugepages && [[ $(</proc/sys/vm/nr_hugepages) -eq 8 ]]
}

# kernel_said PATTERN: prints the matching lines that the kernel has logged since this script began.
# Options of grep are allowed, too.
kernel_said() { dmesg | sed -n "\|$_mark|,\$p" | grep -E "$@"; }

# Prints the kernel's warnings, oopses and similar reports since this script began. Succeeds if
# there are any.
_kernel_complaints() {
	dmesg | grep -qF "$_mark" || {
		echo "the kernel's log has lost the beginning of this script"
		return 0
	}
	kernel_said -f /usr/lib/rrxe/splats
}

_on_exit() {
	local rc=$? complaints leaks
	trap - EXIT
	link_del 1
	link_del 2
	hosts_down
	for module in rrxe rdma_rxe; do
		[[ ! -e /sys/module/$module ]] || wait_for 10 rmmod $module || fail "$module can be unloaded"
	done
	leaks=$(/usr/lib/rrxe/kernel-leaks) || fail "the kernel has leaked no memory" "$leaks"
	complaints=$(_kernel_complaints) && fail "the kernel reports no error" "$complaints"
	[[ $rc -eq 0 || $_failed -gt 0 ]] || fail "the script ends with status 0" "status $rc"
	[[ $_failed -eq 0 ]] || rc=1
	exit $rc
}

_mark="rrxe-test $(basename "$0") $$"
echo "$_mark begins" >/dev/kmsg
trap _on_exit EXIT
