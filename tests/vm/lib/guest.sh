# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# For scripts that run in the guest: results as TAP lines, two hosts, RDMA links, perftest.
#
#   source "$(dirname "$0")/../lib/guest.sh"
#   hosts_up 4200                      # two namespaces over a veth pair; addresses below
#   link_add 1 rrxe; link_add 2 rxe    # devices $DEV1 and $DEV2
#   check "send over IPv4" perftest ib_send_bw -n 100
#
# Everything is taken down when the script ends. A script ends with a failed result when the kernel
# complained meanwhile, and with status 1 when any result failed.

# The directory of this file, where Python looks for modules, too.
LIB=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
readonly LIB
export PYTHONPATH=$LIB
readonly HOST1_V4=10.77.0.1 HOST2_V4=10.77.0.2 HOST1_V6=fd77::1 HOST2_V6=fd77::2
# How long any one program may take on a quiet machine, with a kernel that checks nothing.
: "${PROGRAM_SECONDS:=60}"
# A limit in seconds finds a hang, and no more. An emulated machine on a busy host is several times slower, and a kernel
# with checks again; so each limit is multiplied by this.
PATIENCE=4 DEBUG_KERNEL=
[[ ! -e /sys/kernel/debug/kmemleak ]] || PATIENCE=12 DEBUG_KERNEL=yes
readonly PATIENCE DEBUG_KERNEL
# The kernel reports a network device that has waited for so long until nobody has it any more (10 on other kernels).
[[ -z $DEBUG_KERNEL ]] || echo $((10 * PATIENCE)) >/proc/sys/net/core/netdev_unregister_timeout_secs
# few N: that many messages, on the debug kernel a fifth.
few() { if [[ -n $DEBUG_KERNEL ]]; then echo $(($1 / 5)); else echo "$1"; fi; }
# The link type of scripts that don't care; make vm TYPE=rxe runs them over the C driver.
: "${TYPE:=rrxe}"
DEV1='' DEV2=''
# The output of the last check, perftest or pingpong.
OUTPUT=''
_failed=0

pass() { printf 'ok - %s\n' "$1"; }

# fail NAME [LINES]: the reason, if any, goes below the result.
fail() {
	_failed=$((_failed + 1))
	printf 'not ok - %s\n' "$1"
	[[ -z ${2:-} ]] || sed 's/^/#   /' <<<"$2"
}

skip() { printf 'ok - %s # SKIP %s\n' "$1" "$2"; }

note() { sed 's/^/# /' <<<"$*"; }

# check NAME COMMAND...: passes when the command does; its output is shown when it does not.
check() {
	local name=$1 rc=0
	shift
	_capture "$@" || rc=$?
	if [[ $rc -eq 0 ]]; then pass "$name"; else fail "$name" "$OUTPUT"$'\n'"status $rc: $*"; fi
	return $rc
}

# refuse NAME TEXT COMMAND...: passes when the command fails and says TEXT (a regular expression).
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

# Run with the output in OUTPUT, in this very shell (functions may set variables).
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

# patiently SECONDS COMMAND...: the command, ended after so many seconds times PATIENCE. In the background it would be the
# child of a shell; so a command whose process is to be killed is started by `timeout` itself.
patiently() {
	local seconds=$1
	shift
	timeout -k 5 "$((seconds * PATIENCE))" "$@"
}

# wait_for SECONDS COMMAND...: until the command succeeds, for so many seconds times PATIENCE at most.
wait_for() {
	local end=$((SECONDS + $1 * PATIENCE))
	shift
	until "$@" >/dev/null 2>&1; do
		[[ $SECONDS -lt $end ]] || return 1
		sleep 0.1
	done
}

in1() { ip netns exec h1 "$@"; }
in2() { ip netns exec h2 "$@"; }

# hold COMMAND...: a program, such as rrxe-check's hold-group, that says "attached" and stays until release.
hold() {
	# Its lines are not to be taken for those of the one before.
	rm -f /tmp/held
	mkfifo /tmp/hold
	"$@" </tmp/hold >/tmp/held 2>&1 &
	HOLDER=$!
	exec 9>/tmp/hold
	wait_for 10 grep -q attached /tmp/held
}

# It ends well, or its output is shown.
release() {
	exec 9>&-
	rm /tmp/hold
	wait $HOLDER || {
		note "$(</tmp/held)"
		return 1
	}
}

# hosts_up [MTU [QUEUES]]: namespaces h1 and h2 with eth0 each, connected by a veth pair with so many queues.
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
	# Links and link-local addresses settle (duplicate address detection).
	for host in 1 2; do
		wait_for 20 settled $host || return
		wait_for 20 bash -c "ip -n h$host link show dev eth0 | grep -q LOWER_UP" || return
	done
	wait_for 20 in1 ping -q -c 1 -W 5 $HOST2_V4 >/dev/null && wait_for 20 in1 ping -q -c 1 -W 5 $HOST2_V6 >/dev/null
}

# settled HOST: duplicate address detection has ended on its eth0.
settled() { ! ip -n "h$1" -6 addr show dev eth0 | grep -q tentative; }

hosts_down() {
	local host
	for host in 1 2; do
		[[ ! -e /run/netns/h$host ]] || ip netns del h$host
	done
}

# link_add HOST [TYPE]: an RDMA link over the host's eth0; DEV1 or DEV2 becomes its name.
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

# The GID of an address, as sysfs writes it. No program is started: emulated machines are slow at that.
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

# gid_index DEVICE ADDRESS: which GID the address is.
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

# Whether there is a server: on perftest's port, unless another is said.
_listening() { _listening_on "${listen:-18515}"; }
_listening_on() { [[ -n $(in2 ss -Hltn "sport = :$1") ]]; }

# Whether a listener of librdmacm listens. The kernel says so before rdma_listen() has returned, and refuses connections
# until then; the listener's threads sleep afterwards.
_cm_listening() {
	local pid
	pid=$(rdma resource show cm_id | sed -nE '/LISTEN/s/.* pid ([0-9]+) .*/\1/p' | head -n 1)
	[[ -n $pid ]] && ! grep -qE '^State:\s+[RD]' "/proc/$pid"/task/*/status
}

# terminate PID: ends a background program that has run until now.
terminate() {
	kill "$1"
	wait "$1"
	[[ $? -eq 143 ]]
}

# keeper HOST: its ifb0 keeps what it gets in a queue.
keeper() {
	modprobe ifb numifbs=0 && ip -n "h$1" link add ifb0 type ifb && ip -n "h$1" link set ifb0 up &&
		ip netns exec "h$1" tc qdisc add dev ifb0 root tbf rate 8bit burst 5000 limit 10000000
}

# redirect HOST HOOK PROTOCOL NETDEV: RoCEv2 packets over ip or ipv6 that reach the hook, ingress or egress, of its eth0 leave
# by NETDEV instead. They stay in the same buffer at ingress.
redirect() {
	local host=h$1 hook=$2 protocol=$3 netdev=$4
	ip netns exec "$host" tc qdisc add dev eth0 clsact &&
		ip netns exec "$host" tc filter add dev eth0 "$hook" protocol "$protocol" flower ip_proto udp dst_port 4791 \
			action mirred egress redirect dev "$netdev"
}

# backlog NAMESPACE NETDEV: how many packets wait in the network device's queueing discipline.
backlog() { ip netns exec "$1" tc -s qdisc show dev "$2" root | sed -n 's/.*backlog [^ ]* \([0-9]*\)p.*/\1/p'; }

# rping_connects SECONDS [HOST]: host 2, or another, connects to host 1 by librdmacm within that time, and data arrives.
rping_connects() { _rping "$1" $HOST1_V4 "${2:-2}"; }

# _rping SECONDS ADDRESS HOST [ARGUMENT...]: the same to ADDRESS of host 1, with more arguments of both programs.
_rping() {
	local seconds=$1 address=$2 host=$3
	shift 3
	in1 rping -s -C 3 -a "$address" "$@" >/tmp/rping 2>&1 &
	wait_for 20 bash -c "rdma resource show cm_id | grep -q LISTEN" &&
		patiently "$seconds" ip netns exec "h$host" rping -c -C 3 -V -a "$address" "$@" && wait $!
}

# Perftest with -R connects a second time, for its messages, and its client doesn't wait until the server listens
# again (create_rdma_cm_connection()). Rejected, it would try once more, but Debian 13's has SIGSEGV on the way there.
readonly CRASHED=139
rejected() { [[ $1 -eq $CRASHED && $OUTPUT == *"Failed to connect RDMA CM events"* ]]; }

# again CONDITION COMMAND...: the command, five times at most while CONDITION STATUS says, of how it failed and of its
# OUTPUT, that this is a race of the program's own.
again() {
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

# Run PROGRAM as a server on host 2, then as a client on host 1: both must succeed in time.
# _pair SERVER-ARGS -- CLIENT-ARGS, the program in front of each; output of both in OUTPUT.
_pair() {
	local server=() rc=0 server_rc=0 log pid
	while [[ $1 != -- ]]; do
		server+=("$1")
		shift
	done
	shift
	log=$(mktemp)
	ip netns exec h2 timeout -k 5 $((PROGRAM_SECONDS * PATIENCE)) "${server[@]}" >"$log" 2>&1 &
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

# perftest's timeout of 1 s instead of 67 ms: a CPU of an emulated machine may stand still for longer than all retries take.
readonly SECOND=(-u 18)

# perftest PROGRAM [ARGUMENT...]: host 1 to host 2 over IPv4; perftest6 the same over IPv6.
perftest() {
	local program=$1
	shift
	_pair "$program" -F "${SECOND[@]}" -d "$DEV2" -x "$(gid_index "$DEV2" $HOST2_V4)" "$@" -- \
		"$program" -F "${SECOND[@]}" -d "$DEV1" -x "$(gid_index "$DEV1" $HOST1_V4)" "$@" $HOST2_V4
}

perftest6() {
	local program=$1
	shift
	_pair "$program" -F "${SECOND[@]}" -d "$DEV2" -x "$(gid_index "$DEV2" $HOST2_V6)" "$@" -- \
		"$program" -F "${SECOND[@]}" -d "$DEV1" -x "$(gid_index "$DEV1" $HOST1_V6)" "$@" $HOST2_V4
}

# pingpong [-T rc|uc|ud] [ARGUMENT...]: ibv_rc_pingpong, or that of another transport, with content
# check; pingpong6 with IPv6 GIDs.
pingpong() { _pingpong $HOST1_V4 $HOST2_V4 "$@"; }
pingpong6() { _pingpong $HOST1_V6 $HOST2_V6 "$@"; }

_pingpong() {
	local address1=$1 address2=$2 program=ibv_rc_pingpong
	shift 2
	if [[ ${1:-} == -T ]]; then
		program=ibv_$2_pingpong
		shift 2
	fi
	_pair "$program" -c -d "$DEV2" -g "$(gid_index "$DEV2" "$address2")" "$@" -- \
		"$program" -c -d "$DEV1" -g "$(gid_index "$DEV1" "$address1")" "$@" $HOST2_V4
}

# ipsec MODE SPI PREFIX-LENGTH PREFIX: policies of both hosts for packets to the RoCE port, between the addresses PREFIX1 and
# PREFIX2. SPI tells families apart.
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

# narrow ADDRESS MTU: whether the IP layer of host 1 takes the path there to be that narrow.
narrow() { in1 ip route get "$1" | grep -q "mtu $2"; }

# netem SETTING: on both ends of the wire, as in netem "loss 5%"; netem_off takes it away.
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

# Eight huge pages; memory that earlier scripts fragmented is made whole.
huge_pages() {
	echo 1 >/proc/sys/vm/compact_memory
	echo 8 >/proc/sys/vm/nr_hugepages && [[ $(</proc/sys/vm/nr_hugepages) -eq 8 ]]
}

# kernel_said PATTERN, or grep's options: the kernel's lines since this script began that match.
kernel_said() { dmesg | sed -n "\|$_mark|,\$p" | grep -E "$@"; }

# What the kernel says when it is not well, since this script began.
_kernel_complaints() {
	dmesg | grep -qF "$_mark" || {
		echo "the kernel's log has lost the beginning of this script"
		return 0
	}
	kernel_said -f /usr/lib/rrxe/splats
}

_leave() {
	local rc=$? complaints leaks
	trap - EXIT
	link_del 1
	link_del 2
	hosts_down
	for module in rrxe rdma_rxe; do
		[[ ! -e /sys/module/$module ]] || wait_for 10 rmmod $module || fail "$module unloads"
	done
	leaks=$(/usr/lib/rrxe/kernel-leaks) || fail "the kernel loses no memory" "$leaks"
	complaints=$(_kernel_complaints) && fail "the kernel is well" "$complaints"
	[[ $rc -eq 0 || $_failed -gt 0 ]] || fail "the script ends well" "status $rc"
	[[ $_failed -eq 0 ]] || rc=1
	exit $rc
}

_mark="rrxe-test $(basename "$0") $$"
echo "$_mark begins" >/dev/kmsg
trap _leave EXIT
