# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# What every part of tools/rrxe shares: paths, messages, locks, retries.

# Bump when the recipe of something cached changes in a way its inputs don't show.
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

# The first 12 hex digits of the hash of standard input: the key of a cached thing.
key() { sha256sum | cut -c1-12; }

# The home of the person behind sudo, so that root and user share one cache.
person_home() { getent passwd "${SUDO_USER:-$(id -un)}" | cut -d: -f6; }

# Where everything downloaded or built lives.
cache_name() {
	: "${RRXE_CACHE:=$(person_home)/.cache/rrxe}"
	# What is built from this repository; other copies of it have their own.
	RRXE_BUILD=$RRXE_CACHE/build/$(echo "$TOP" | key)
	export RRXE_CACHE RRXE_BUILD
}

cache_make() {
	mkdir -p "$RRXE_CACHE"/{tmp,locks,logs,state,home} "$RRXE_BUILD" ||
		die "can't write the cache directory $RRXE_CACHE (set RRXE_CACHE to another)"
}

# Mounts, chroot and mmdebstrap want root: start again through sudo if need be.
need_root() {
	[[ $EUID -eq 0 ]] && return
	command -v sudo >/dev/null || die "this needs root: run it as root, or install sudo"
	say "asking sudo for root (chroot and mounts for the toolbox)"
	local keep=()
	mapfile -t keep < <(env | grep -E '^(RRXE_|https?_proxy=|no_proxy=)|^(RUN|ONLY|TYPE|GUEST_PACKAGES|GUEST_SUITE|VCPUS|CPU|MEM|TIMEOUT|ACCEL_ARGS|KVER|TREE|INSTALL_MOD_PATH|DESTDIR|MINUTES|SEED|COVERAGE|SCALE|DRIVERS|GUARD)=')
	exec sudo env "${keep[@]}" "$TOP/tools/rrxe" "$@"
}

# with_lock NAME COMMAND...: one holder per name, over all processes on this cache.
with_lock() {
	local name=$1 fd
	shift
	exec {fd}>"$RRXE_CACHE/locks/$name"
	if ! flock -n "$fd"; then
		say "waiting for another rrxe that has the $name"
		flock "$fd"
	fi
	"$@"
	local rc=$?
	exec {fd}>&-
	return $rc
}

# retry COMMAND...: for downloads; three tries with a pause between them.
retry() {
	local try
	for try in 1 2 3; do
		"$@" && return 0
		[[ $try -eq 3 ]] || { say "failed, trying again: $*"; sleep $((try * 5)); }
	done
	return 1
}

# logged NAME COMMAND...: run with output in a log file; on failure show its end and where it is.
logged() {
	local name=$1 log
	shift
	log=$RRXE_CACHE/logs/$name.log
	if ! "$@" >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		die "$name failed; the whole log is $log"
	fi
}
