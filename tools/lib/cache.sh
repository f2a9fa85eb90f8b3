# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The cache: the directory of all downloaded and built files. Makes it, measures the disk space for
# it, and removes old or all of its files.

# Entries of a cache. A purge removes no others.
readonly CACHE_ENTRIES=(apt boot build cargo deb guest home host kernel kunit locks logs rdma-core state tmp toolbox
	bench.json bench-gate.json)
# Backup programs leave out a directory with this file (https://bford.info/cachedir/). The second
# line identifies the directory as a cache of rrxe.
readonly CACHE_TAG=CACHEDIR.TAG CACHE_SIGNATURE='Signature: 8a477f597d28d172789f06886806bc55' \
	CACHE_OWNER='# This directory is the cache of rrxe. "make purge" removes it.'

# Prints the home directory of the user who called sudo, or of the current user without sudo. So
# root and the caller of sudo share one cache.
sudo_user_home() { getent passwd "${SUDO_USER:-$(id -un)}" | cut -d: -f6; }

# Sets RRXE_BUILD, and RRXE_CACHE unless it is set.
cache_name() {
	local home
	if [[ -z ${RRXE_CACHE:-} ]]; then
		# Users of containers may have no name.
		home=$(sudo_user_home 2>/dev/null) || home=${HOME:-}
		[[ -n $home ]] || die "the user has no home directory: set RRXE_CACHE to a directory for downloads and builds"
		RRXE_CACHE=$home/.cache/rrxe
	fi
	[[ $RRXE_CACHE == /* ]] || RRXE_CACHE=$PWD/$RRXE_CACHE
	# Build output of this clone of the repository. Other clones have other directories.
	RRXE_BUILD=$RRXE_CACHE/build/$(echo "$TOP" | key)
	export RRXE_CACHE RRXE_BUILD
}

# Succeeds if rrxe made the directory RRXE_CACHE. Earlier versions of rrxe made these directories
# and no tag.
cache_is_ours() {
	local name
	if [[ -e $RRXE_CACHE/$CACHE_TAG ]]; then
		grep -qxF "$CACHE_OWNER" "$RRXE_CACHE/$CACHE_TAG"
		return
	fi
	for name in tmp locks logs state home build; do
		[[ -d $RRXE_CACHE/$name ]] || return 1
	done
}

# Succeeds if RRXE_CACHE is absent or an empty directory.
cache_is_free() {
	[[ ! -e $RRXE_CACHE ]] || [[ -d $RRXE_CACHE && -z $(ls -A "$RRXE_CACHE") ]]
}

# cache_directories DIRECTORY...: makes directories, as mkdir -p does. A directory that root makes
# for the caller of sudo belongs to that user, who could not write to it otherwise.
cache_directories() {
	local path
	for path in "$@"; do
		[[ -d $path ]] || { cache_directories "$(dirname "$path")" && mkdir "$path" && give_to_caller "$path"; } || return
	done
}

# give_to_caller PATH...: makes the user who called sudo the owner of files.
give_to_caller() {
	[[ $EUID -ne 0 || -z ${SUDO_UID:-} ]] || chown -hR "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$@"
}

# Dies if RRXE_CACHE has files that rrxe did not make.
cache_check() {
	cache_is_ours || cache_is_free ||
		die "the directory $RRXE_CACHE is not empty, and rrxe did not make it: set RRXE_CACHE to a new directory"
}

# Makes the directories of the cache. The tag comes first, because a cache that was not completed is
# recognized by it. RRXE_BUILD/clone has the path of this clone, by which cache_prune finds out that
# the clone is in use.
cache_try_make() {
	cache_directories "$RRXE_CACHE" && cache_tag &&
		cache_directories "$RRXE_CACHE"/{tmp,locks,logs,state,home,build} "$RRXE_BUILD" &&
		echo "$TOP" >"$RRXE_BUILD/clone" && give_to_caller "$RRXE_BUILD/clone"
} 2>/dev/null

cache_tag() {
	[[ ! -e $RRXE_CACHE/$CACHE_TAG ]] || return 0
	printf '%s\n' "$CACHE_SIGNATURE" "$CACHE_OWNER" >"$RRXE_CACHE/$CACHE_TAG" && give_to_caller "$RRXE_CACHE/$CACHE_TAG"
}

# Makes the cache, as the user who runs the command.
cache_make() {
	cache_check
	{ cache_try_make && [[ -w $RRXE_CACHE && -w $RRXE_BUILD ]]; } ||
		die "$(id -un) can't write to the cache $RRXE_CACHE: change the owner of its files, or set RRXE_CACHE to a new directory"
}

# space_lack GIGABYTES: prints a sentence if the file system of the cache has less free space.
space_lack() {
	local path=$RRXE_CACHE free
	while [[ ! -e $path ]]; do path=$(dirname "$path"); done
	free=$(df --output=avail -B1G "$path" | tail -n 1) || return 0
	[[ $free -ge $1 ]] ||
		echo "This needs $1 GB of disk space, and $RRXE_CACHE has $((free)) GB: free some space, or set RRXE_CACHE to a directory on another disk."
}

# mark_used PATH: records that an object of the cache was used now.
mark_used() { touch -c "$1" 2>/dev/null || true; }

# cache_prune: removes objects of the cache that no command used for RRXE_KEEP_DAYS days: toolboxes,
# kernels, boot files, images and build output. Also removes build output of clones that are gone,
# and objects that were never completed.
cache_prune() {
	local kind
	for kind in toolbox kernel boot rdma-core guest build host deb; do
		with_free_lock "$kind" cache_prune_kind "$kind"
	done
}

cache_prune_kind() {
	local object
	for object in "$RRXE_CACHE/$1"/*; do
		[[ $object != "$RRXE_BUILD" && -e $object ]] || continue
		! cache_is_old "$object" || rm -rf --one-file-system -- "$object"
	done
}

# cache_is_old OBJECT: succeeds if an object is to be pruned.
cache_is_old() {
	local object=$1 mark=$1/complete days=${RRXE_KEEP_DAYS:-30}
	[[ -f $object ]] && mark=$object
	[[ $object != "$RRXE_CACHE"/build/* ]] || mark=$object/clone
	if [[ ! -e $mark ]]; then
		# An object that is being made, or the build output of an earlier version of rrxe.
		mark=$object
		[[ $object == "$RRXE_CACHE"/build/* ]] || days=1
	elif [[ $mark == */clone && ! -e $(<"$mark") ]]; then
		days=1
	fi
	[[ -n $(find "$mark" -maxdepth 0 -mtime "+$((days - 1))") ]]
}

# cache_remove PATH...: removes files of the cache. Files that root made in the toolbox need root.
# File systems that are mounted below are left alone.
cache_remove() {
	rm -rf --one-file-system -- "$@" 2>/dev/null || need_root "${ARGUMENTS[@]}"
	rm -rf --one-file-system -- "$@" || die "some files could not be removed: see the messages above"
}

# Removes the build output of this clone.
cache_clean() {
	[[ ! -e $RRXE_BUILD ]] || cache_remove "$RRXE_BUILD"
	say "removed the build output of $TOP"
}

# Removes the files that rrxe made in the cache, and the directory if nothing else is in it.
cache_purge() {
	local name fd
	if [[ ! -e $RRXE_CACHE ]]; then
		say "there is no cache $RRXE_CACHE"
		return
	fi
	cache_is_ours || die "rrxe did not make the directory $RRXE_CACHE, so it is left alone: set RRXE_CACHE to the cache"
	for name in "$RRXE_CACHE"/locks/*; do
		[[ -e $name ]] || continue
		exec {fd}<"$name"
		flock -n "$fd" || die "another rrxe process uses the cache $RRXE_CACHE: wait for its end"
		exec {fd}<&-
	done
	cache_remove "${CACHE_ENTRIES[@]/#/$RRXE_CACHE/}"
	# The tag stays with other files, so that the directory can be the cache again.
	if [[ -n $(find "$RRXE_CACHE/" -mindepth 1 -maxdepth 1 ! -name "$CACHE_TAG" -print -quit) ]]; then
		say "removed the files of rrxe in $RRXE_CACHE, but not the directory, which has other files"
		return
	fi
	cache_remove "$RRXE_CACHE"
	say "removed the cache $RRXE_CACHE"
}
