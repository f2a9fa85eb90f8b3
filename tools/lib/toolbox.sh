# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The toolbox: a Debian root file system with all tools that the project needs, so that each machine
# builds with the same compilers. mmdebstrap makes it once. It is mounted read-only when commands
# run in it.

readonly SUITE=trixie
readonly TOOLBOX_PACKAGES=(
	# kernel and module builds, also of the debug kernel and User-Mode Linux
	build-essential bc bison flex libelf-dev libssl-dev libdw-dev kmod pahole cpio rsync xz-utils zstd
	gcc-14 clang lld llvm python3 git patch gawk file
	rustc cargo rustfmt rust-src rust-clippy bindgen
	# user space: the provider, test programs, their headers
	"libibverbs-dev$OF_ARCH" "librdmacm-dev$OF_ARCH"
	# virtual machines and their images
	"$QEMU_PACKAGE" erofs-utils "busybox-static$OF_ARCH" mmdebstrap apt-utils debian-archive-keyring ca-certificates
	# gates
	shellcheck reuse
	"${CROSS_PACKAGES[@]}"
)

# Prints the host's apt settings for the access to Debian mirrors, such as proxies.
host_apt_options() {
	local name value
	for name in Acquire::http::Proxy Acquire::https::Proxy Acquire::Check-Valid-Until Acquire::Check-Date; do
		value=
		eval "$(apt-config shell value "$name" 2>/dev/null)"
		[[ -z $value ]] || printf '%s "%s";\n' "$name" "$value"
	done
	printf 'Acquire::Retries "5";\nAPT::Sandbox::User "root";\n'
}

# Prints the Debian mirror: RRXE_MIRROR, else the mirror of this host if it has the backports of
# SUITE, else the public one.
debian_mirror() {
	local public=http://deb.debian.org/debian uri
	[[ -z ${RRXE_MIRROR:-} ]] || { echo "${RRXE_MIRROR%/}"; return; }
	uri=$(apt-get indextargets --format "\$(REPO_URI) \$(LABEL)" 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
		awk '$2 == "Debian" { print $1; exit }') || true
	uri=${uri%/}
	if [[ $uri == http?(s)://* && $uri != "$public" ]] && mirror_has "$uri/dists/$SUITE-backports/InRelease"; then
		echo "$uri"
	else
		echo "$public"
	fi
}

# mirror_has URI: succeeds if a file can be downloaded. apt-helper fails if the target is /dev/null.
mirror_has() {
	local file rc=0
	file=$(mktemp)
	/usr/lib/apt/apt-helper download-file "$1" "$file" >/dev/null 2>&1 || rc=$?
	rm -f "$file"
	return $rc
}

# apt_sources MIRROR [KEY]: prints apt's list of sources. KEY is a file with the key that signs
# them.
apt_sources() {
	local mirror=$1 by=${2:+[signed-by=$2] } suite
	for suite in "$SUITE" "$SUITE-updates" "$SUITE-backports"; do
		printf 'deb %s%s %s main\n' "$by" "$mirror" "$suite"
	done
}

toolbox_key() { echo "$RECIPE $SUITE ${TOOLBOX_PACKAGES[*]}" | key; }

# Sets TOOLBOX to the directory of the toolbox.
toolbox_name() { TOOLBOX=$RRXE_CACHE/toolbox/$(toolbox_key); }

# toolbox_missing COMMAND: sets TOOLBOX_MISSING to a sentence for each reason why the toolbox cannot
# be used for a command of tools/rrxe. It needs neither root nor the network to find that out.
toolbox_missing() {
	local program space
	TOOLBOX_MISSING=()
	toolbox_name
	[[ $(uname -m) == x86_64 ]] ||
		TOOLBOX_MISSING+=("This machine's architecture is $(uname -m), and the toolbox exists for x86-64 only: use an x86-64 machine.")
	[[ -e $TOOLBOX/complete ]] || command -v mmdebstrap >/dev/null || command -v apt-get >/dev/null ||
		TOOLBOX_MISSING+=("The program mmdebstrap, which makes the toolbox, is not installed: $(install_command mmdebstrap mmdebstrap mmdebstrap).")
	for program in chroot flock mount unshare; do
		command -v $program >/dev/null ||
			TOOLBOX_MISSING+=("The program $program is not installed: $(install_command "util-linux coreutils" "util-linux coreutils" "util-linux coreutils").")
	done
	can_be_root || TOOLBOX_MISSING+=("The toolbox needs root: run the command as root, or install sudo.")
	space=$(space_lack "$(toolbox_space "$1")")
	[[ -z $space ]] || TOOLBOX_MISSING+=("$space")
}

# toolbox_space COMMAND: prints the disk space in GB that a command may take for files that the cache
# lacks. The sizes are those of Debian 13 and Linux 7.3, rounded up.
toolbox_space() {
	local gigabytes=1
	[[ -e $TOOLBOX/complete ]] || ((gigabytes += 3))
	case $1 in
	toolbox | shell | build-provider | install-provider | install-tools) ;;
	*) compgen -G "$RRXE_CACHE/kernel/[0-9]*/complete" >/dev/null || ((gigabytes += 4)) ;;
	esac
	case $1 in
	vm | demo | test | check | test-debug | test-arm64 | test-system | bench | bench-gate | fuzz)
		compgen -G "$RRXE_CACHE/boot/*/complete" >/dev/null || ((gigabytes += 2))
		;;
	esac
	if [[ $1 == test* || $1 == fuzz || ${RRXE_KERNEL_KIND:-} == debug ]]; then
		compgen -G "$RRXE_CACHE/kernel/debug-*/complete" >/dev/null || ((gigabytes += 4))
	fi
	echo $gigabytes
}

# Dies if root may not make mount namespaces, as in most containers.
need_mounts() {
	unshare --mount --pid --fork --propagation private mount -t tmpfs tmpfs /tmp 2>/dev/null ||
		die "root may not mount file systems here, which the toolbox needs: in a container, start the container with --privileged"
}

# Installs mmdebstrap if the host lacks it. The toolbox needs no other additional program of a
# Debian host. Other processes may have locked apt's lists for some time.
need_mmdebstrap() {
	local options=(-qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600)
	command -v mmdebstrap >/dev/null && return
	say "installing mmdebstrap on this machine"
	retry apt-get "${options[@]}" update >&2 || say "apt-get update failed; using the present package lists"
	DEBIAN_FRONTEND=noninteractive retry apt-get "${options[@]}" -y --no-install-recommends install mmdebstrap >&2 ||
		die "apt-get could not install mmdebstrap: see the message above (on Ubuntu it is in the component universe)"
}

# debian_root NAME DIRECTORY PACKAGE...: makes in DIRECTORY/root a Debian root file system with
# packages. NAME is the name of the log.
debian_root() {
	local name=$1 dir=$2
	shift 2
	need_mmdebstrap
	# In a subshell, so that a failure removes the directory, too.
	(
		mirror=$(debian_mirror)
		aux=$(mktemp -d -p "$RRXE_CACHE/tmp") || exit
		trap 'rm -rf "$aux"' EXIT
		cp "$TOP/tools/keys/debian-$SUITE.asc" "$aux/key.asc"
		host_apt_options >"$aux/apt.conf"
		apt_sources "$mirror" "$aux/key.asc" >"$aux/sources"
		logged "$name" retry debian_bootstrap "$dir" "$aux" "$mirror" "$@"
	)
}

# Prints the architectures of the packages of a root, separated by a comma.
toolbox_architectures() { if is_native; then echo "$ARCH"; else echo "$TOOLBOX_ARCH,$ARCH"; fi; }

debian_bootstrap() {
	local dir=$1 aux=$2 mirror=$3 option options=()
	shift 3
	rm -rf "$dir" && mkdir -p "$dir" || return
	while IFS= read -r option; do options+=(--aptopt="$option"); done <"$aux/apt.conf"
	mmdebstrap --variant=minbase --architectures="$(toolbox_architectures)" "${options[@]}" \
		--include="$(IFS=,; echo "$*")" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--skip=cleanup/apt/lists \
		--customize-hook='cd "$1" && mkdir -p rrxe cache && rm -f etc/resolv.conf && touch etc/resolv.conf etc/hosts' \
		"$SUITE" "$dir/root" "$aux/sources" || return
	apt_sources "$mirror" >"$dir/root/etc/apt/sources.list" && rm -f "$dir/root/etc/apt/sources.list.d"/*
}

toolbox_make() {
	local dir=$1
	[[ ! -e $dir/complete ]] || return 0
	say "making the toolbox (Debian $SUITE; about 2 minutes, once)"
	debian_root toolbox "$dir" "${TOOLBOX_PACKAGES[@]}" || exit
	dpkg-query --admindir="$dir/root/var/lib/dpkg" -W rustc rust-src bindgen gcc-14 >"$dir/compilers"
	touch "$dir/complete"
}

# Makes the toolbox if it is not cached, and sets TOOLBOX to its directory.
toolbox_init() {
	toolbox_name
	[[ -e $TOOLBOX/complete ]] || with_lock toolbox toolbox_make "$TOOLBOX"
	mark_used "$TOOLBOX/complete"
}

# in_toolbox COMMAND...: runs a command in the toolbox.
in_toolbox() { in_root "$TOOLBOX/root" "$@"; }

# in_root ROOT COMMAND...: runs a command in a root file system of debian_root, in new mount and PID
# namespaces. Nothing stays mounted or running after it. The repository is at /rrxe, the cache at
# /cache.
in_root() {
	local root=$1
	shift
	RRXE_BUILD=$(inside "$RRXE_BUILD") unshare --mount --pid --fork --kill-child --propagation private \
		"$TOP/tools/lib/enter" "$root" "$TOP" "$RRXE_CACHE" "$@"
}

# inside PATH: prints the path in the toolbox of a file of the cache.
inside() { printf '/cache%s\n' "${1#"$RRXE_CACHE"}"; }
