# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Functions that all parts of tools/rrxe share: paths, messages, locks, retries.

# A part of the keys of all cached objects. Increment it when the recipe of a cached object changes
# and none of the hashed inputs does.
# shellcheck disable=SC2034 # read by the other parts
readonly RECIPE=1
# shellcheck disable=SC2034
readonly ARCH=amd64

say() { printf '\033[1mrrxe:\033[0m %s\n' "$*" >&2; }
[[ -t 2 ]] || say() { printf 'rrxe: %s\n' "$*" >&2; }

die() {
	printf 'rrxe: error: %s\n' "$*" >&2
	exit 1
}

# Prints the key of a cached object: the first 12 hex digits of the SHA-256 hash of standard input.
key() { sha256sum | cut -c1-12; }

# Prints the home directory of the user who called sudo, or of the current user without sudo. So
# root and the caller of sudo share one cache.
sudo_user_home() { getent passwd "${SUDO_USER:-$(id -un)}" | cut -d: -f6; }

# Sets RRXE_BUILD, and RRXE_CACHE unless it is set: the directory of all downloaded and built files.
cache_name() {
	: "${RRXE_CACHE:=$(sudo_user_home)/.cache/rrxe}"
	# Build output of this clone of the repository. Other clones have other directories.
	RRXE_BUILD=$RRXE_CACHE/build/$(echo "$TOP" | key)
	export RRXE_CACHE RRXE_BUILD
}

cache_make() {
	mkdir -p "$RRXE_CACHE"/{tmp,locks,logs,state,home} "$RRXE_BUILD" ||
		die "can't write the cache directory $RRXE_CACHE (set RRXE_CACHE to another)"
}

# need_root ARGUMENT...: starts tools/rrxe again through sudo, with these arguments, unless the user
# is root. Mounts, chroot and mmdebstrap need root.
need_root() {
	[[ $EUID -eq 0 ]] && return
	command -v sudo >/dev/null || die "this needs root: run it as root, or install sudo"
	say "asking sudo for root (chroot and mounts for the toolbox)"
	local keep=()
	mapfile -t keep < <(env | grep -E '^(RRXE_|https?_proxy=|no_proxy=)|^(RUN|ONLY|TYPE|GUEST_PACKAGES|GUEST_SUITE|VCPUS|CPU|MEM|TIMEOUT|ACCEL_ARGS|KVER|TREE|INSTALL_MOD_PATH|DESTDIR|MINUTES|SEED|COVERAGE|SCALE|DRIVERS|OPERATIONS|GUARD|PART|JSON|UPDATE)=')
	exec sudo env "${keep[@]}" "$TOP/tools/rrxe" "$@"
}

# with_lock NAME COMMAND...: runs a command with a lock held, which excludes all other processes
# that use this cache and this name.
with_lock() {
	local name=$1 fd
	shift
	exec {fd}>"$RRXE_CACHE/locks/$name"
	if ! flock -n "$fd"; then
		say "waiting for another rrxe process, which holds the lock '$name'"
		flock "$fd"
	fi
	"$@"
	local rc=$?
	exec {fd}>&-
	return $rc
}

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
	if ! "$@" >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		die "$name failed; the whole log is $log"
	fi
}
