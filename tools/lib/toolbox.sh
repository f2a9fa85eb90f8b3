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
	libibverbs-dev librdmacm-dev
	# virtual machines and their images
	qemu-system-x86 erofs-utils busybox-static mmdebstrap apt-utils debian-archive-keyring ca-certificates
	# gates
	shellcheck
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
	if [[ -n $uri && $uri != "$public" ]] &&
		/usr/lib/apt/apt-helper download-file "$uri/dists/$SUITE-backports/InRelease" /dev/null >/dev/null 2>&1; then
		echo "$uri"
	else
		echo "$public"
	fi
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

# Installs mmdebstrap if the host lacks it. The toolbox needs no other additional program of a
# Debian host.
need_mmdebstrap() {
	command -v mmdebstrap >/dev/null && return
	command -v apt-get >/dev/null ||
		die "this machine has neither mmdebstrap nor apt-get: install mmdebstrap with your package manager"
	say "installing mmdebstrap on this machine"
	retry apt-get -qq -o Acquire::Retries=5 update >&2 ||
		say "apt-get update failed; using the present package lists"
	DEBIAN_FRONTEND=noninteractive retry apt-get -qq -y --no-install-recommends install mmdebstrap >&2 ||
		die "apt-get could not install mmdebstrap"
}

toolbox_make() {
	local dir=$1 mirror aux
	[[ -e $dir/complete ]] && return
	[[ $(dpkg --print-architecture 2>/dev/null) == "$ARCH" ]] || die "only $ARCH machines are supported so far"
	need_mmdebstrap
	mirror=$(debian_mirror)
	say "making the toolbox (Debian $SUITE from $mirror; about 2 minutes, once)"
	aux=$(mktemp -d)
	chmod 755 "$aux"
	cp "$TOP/tools/keys/debian-$SUITE.asc" "$aux/key.asc"
	host_apt_options >"$aux/apt.conf"
	apt_sources "$mirror" "$aux/key.asc" >"$aux/sources"
	logged toolbox retry toolbox_bootstrap "$dir" "$aux" "$mirror"
	rm -rf "$aux"
	dpkg-query --admindir="$dir/root/var/lib/dpkg" -W rustc rust-src bindgen gcc-14 >"$dir/compilers"
	touch "$dir/complete"
}

toolbox_bootstrap() {
	local dir=$1 aux=$2 mirror=$3 option options=()
	rm -rf "$dir" && mkdir -p "$dir" || return
	while IFS= read -r option; do options+=(--aptopt="$option"); done <"$aux/apt.conf"
	mmdebstrap --variant=minbase --architectures="$ARCH" "${options[@]}" \
		--include="$(IFS=,; echo "${TOOLBOX_PACKAGES[*]}")" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--skip=cleanup/apt/lists \
		--customize-hook='cd "$1" && mkdir -p rrxe cache && rm -f etc/resolv.conf && touch etc/resolv.conf etc/hosts' \
		"$SUITE" "$dir/root" "$aux/sources" || return
	apt_sources "$mirror" >"$dir/root/etc/apt/sources.list" && rm -f "$dir/root/etc/apt/sources.list.d"/*
}

# Makes the toolbox if it is not cached, and sets TOOLBOX to its directory.
toolbox_init() {
	TOOLBOX=$RRXE_CACHE/toolbox/$(toolbox_key)
	[[ -e $TOOLBOX/complete ]] || with_lock toolbox toolbox_make "$TOOLBOX"
}

# in_toolbox COMMAND...: runs a command in the toolbox, in new mount and PID namespaces. Nothing
# stays mounted or running after it. The repository is at /rrxe, the cache at /cache.
in_toolbox() {
	RRXE_BUILD=$(inside "$RRXE_BUILD") unshare --mount --pid --fork --kill-child --propagation private \
		"$TOP/tools/lib/enter" "$TOOLBOX/root" "$TOP" "$RRXE_CACHE" "$@"
}

# inside PATH: prints the path in the toolbox of a file of the cache.
inside() { printf '/cache%s\n' "${1#"$RRXE_CACHE"}"; }
