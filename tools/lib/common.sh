# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Functions that all parts of tools/rrxe share: paths, messages, locks, retries.

# A part of the keys of all cached objects. Increment it when the recipe of a cached object changes
# and none of the hashed inputs does.
# shellcheck disable=SC2034 # read by the other parts
readonly RECIPE=1
# shellcheck disable=SC2034
readonly TOOLBOX_ARCH=amd64
# The oldest kernel that has all functions that the driver needs.
# shellcheck disable=SC2034
readonly OLDEST_KERNEL=7.3

say() { printf '\033[1mrrxe:\033[0m %s\n' "$*" >&2; }
[[ -t 2 ]] || say() { printf 'rrxe: %s\n' "$*" >&2; }

die() {
	printf 'rrxe: error: %s\n' "$*" >&2
	exit 1
}

# refuse REASON...: dies with a sentence for each reason why a command is not possible.
refuse() {
	printf 'rrxe: error: %s\n' "$@" >&2
	exit 1
}

# Prints the key of a cached object: the first 12 hex digits of the SHA-256 hash of standard input.
key() { sha256sum | cut -c1-12; }

# Variables of the environment that sudo does not pass on, in addition to RRXE_*.
readonly PASSED_VARIABLES='RUN|ONLY|TYPE|GUEST_PACKAGES|GUEST_SUITE|VCPUS|CPU|MEM|TIMEOUT|ACCEL_ARGS|KVER|TREE|INSTALL_MOD_PATH|DESTDIR|PREFIX|RUSTC|BINDGEN|LLVM|RDMA_CORE_SOURCE|MINUTES|SEED|COVERAGE|SCALE|DRIVERS|OPERATIONS|GUARD|PART|JSON|UPDATE'

# need_root ARGUMENT...: starts tools/rrxe again through sudo, with these arguments, unless the user
# is root. Mounts, chroot and mmdebstrap need root.
need_root() {
	local keep=()
	[[ $EUID -ne 0 ]] || return 0
	need_sudo
	say "asking sudo for root: tools/rrxe $*"
	mapfile -t keep < <(env | grep -E "^(RRXE_|https?_proxy=|no_proxy=)|^($PASSED_VARIABLES)=")
	exec sudo env "${keep[@]}" "$TOP/tools/rrxe" "$@"
}

can_be_root() { [[ $EUID -eq 0 ]] || command -v sudo >/dev/null; }

need_sudo() { can_be_root || die "this needs root: run it as root, or install sudo"; }

# writing PATH COMMAND...: runs a command that writes to PATH; as root if the user can't write there.
writing() {
	local path=$1
	shift
	while [[ ! -e $path ]]; do path=$(dirname "$path"); done
	if [[ -w $path ]]; then
		"$@"
	else
		need_sudo
		say "asking sudo for root: $*"
		sudo "$@"
	fi
}

# open_lock NAME: opens the file of a lock as descriptor FD. It is opened for reading only, because
# it may be root's.
open_lock() {
	[[ -e $RRXE_CACHE/locks/$1 ]] || { : >>"$RRXE_CACHE/locks/$1" && give_to_caller "$RRXE_CACHE/locks/$1"; }
	exec {FD}<"$RRXE_CACHE/locks/$1"
}

# with_lock NAME COMMAND...: runs a command with a lock held, which excludes all other processes
# that use this cache and this name.
with_lock() {
	local name=$1 FD
	shift
	open_lock "$name"
	if ! flock -n "$FD"; then
		say "waiting for another rrxe process, which holds the lock '$name'"
		flock "$FD"
	fi
	"$@"
	local rc=$?
	exec {FD}>&-
	return $rc
}

# with_free_lock NAME COMMAND...: runs a command with a lock held, unless another process holds it.
with_free_lock() {
	local name=$1 FD
	shift
	open_lock "$name"
	! flock -n "$FD" || "$@"
	exec {FD}>&-
}

# is_fresh FILE HOURS: succeeds if a file was written within the last hours.
is_fresh() { [[ -n $(find "$1" -mmin "-$(($2 * 60))" 2>/dev/null) ]]; }

# retry COMMAND...: runs a command, such as a download, until it succeeds, three times at most, with
# pauses between the tries.
retry() {
	local try
	for try in 1 2 3; do
		"$@" && return 0
		[[ $try -eq 3 ]] || { say "failed, trying again: $*"; sleep $((try * 5)); }
	done
	return 1
}

# logged NAME COMMAND...: runs a command with its output in a log file. If the command fails, prints
# the end and the path of the log, and exits.
logged() {
	local name=$1 log
	shift
	log=$RRXE_CACHE/logs/$name.log
	# The log of an earlier run may be root's.
	rm -f "$log"
	if ! "$@" >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		die "$name failed; the whole log is $log"
	fi
}
