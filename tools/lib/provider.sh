# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds, installs and uninstalls the provider library (librrxe). The interface of libibverbs to its
# providers is private to each version of libibverbs. So a build needs headers from the source of
# the rdma-core that the library is for. The build runs in the toolbox, with a source package of
# Debian, or on this machine without the toolbox, with the source in RDMA_CORE_SOURCE.

# Hours after which the version of a suite's rdma-core is looked up again.
readonly PROVIDER_HOURS=24
# Debian suite of which rdma-core-make takes libibverbs-dev, and the rest from the source of SUITE.
# Not all mirrors have the source of its rdma-core.
readonly HEADERS_SUITE=bookworm
# Directory of the guest's providers.
# shellcheck disable=SC2034 # vm.sh reads it
readonly PROVIDERS=usr/lib/$TRIPLET/libibverbs

# provider_version SUITE: prints the version of rdma-core in a Debian suite. The version is cached
# for PROVIDER_HOURS, and longer if Debian's package lists cannot be downloaded.
provider_version() {
	local file=$RRXE_CACHE/state/rdma-core-$1
	# apt locks its lists, and fails if another process has locked them.
	is_fresh "$file" "$PROVIDER_HOURS" || with_lock apt provider_ask "$1" "$file"
	cat "$file"
}

provider_ask() {
	local suite=$1 file=$2
	! is_fresh "$file" "$PROVIDER_HOURS" || return 0
	provider_sources "$suite" >"$file.sources"
	if in_toolbox tools/lib/rdma-core-choose "$suite" "$(inside "$file.sources")" >"$file.new"; then
		mv "$file.new" "$file"
	elif [[ -s $file ]]; then
		say "could not look up the rdma-core version of $suite; using the version found last"
	else
		die "could not look up the rdma-core version of $suite: see the message above"
	fi
}

# provider_sources SUITE: prints apt's list of sources for rdma-core-choose and rdma-core-make.
provider_sources() {
	local mirror
	mirror=$(debian_mirror)
	echo "deb-src $mirror $1 main"
	[[ $1 != "$HEADERS_SUITE" ]] || echo "deb $mirror $1 main"
}

# rdma_core_init SUITE: sets RDMA_CORE to the directory with the headers of a suite's rdma-core.
# Makes the directory by rdma-core-make if it does not exist.
rdma_core_init() {
	local suite=$1 version private=
	if [[ $suite == "$HEADERS_SUITE" ]]; then
		rdma_core_init "$SUITE"
		private=$RDMA_CORE
	fi
	version=$(provider_version "$suite") || exit
	RDMA_CORE=$RRXE_CACHE/rdma-core/$version-$({
		echo "$RECIPE" "${private##*/}"
		cat "$TOP"/tools/lib/rdma-core-{make,headers}
	} | key)$ARCH_SUFFIX
	[[ -e $RDMA_CORE/complete ]] || with_lock rdma-core rdma_core_make "$suite" "$version" "$private"
	mark_used "$RDMA_CORE/complete"
}

rdma_core_make() {
	local suite=$1 version=$2 private=$3 sources=$RRXE_CACHE/state/rdma-core-$1.sources
	[[ ! -e $RDMA_CORE/complete ]] || return 0
	say "fetching the headers of rdma-core $version"
	provider_sources "$suite" >"$sources"
	logged rdma-core in_toolbox env "${CROSS_PROGRAMS[@]}" tools/lib/rdma-core-make "$(inside "$RDMA_CORE")" "$suite" \
		"$(inside "$sources")" "$version" ${private:+"$(inside "$private/source.tar")"}
	touch "$RDMA_CORE/complete"
}

# provider_build SUITE: builds the library for a suite's libibverbs and sets PROVIDER to the path of
# the library. The name ends in -rdmavN.so, where N is the version of libibverbs' interface to
# providers.
provider_build() {
	local suite=$1 target
	rdma_core_init "$suite"
	target=$RRXE_BUILD/librrxe/$(basename "$RDMA_CORE")
	in_toolbox env "${CROSS_PROGRAMS[@]}" CARGO_TERM_COLOR=never "CARGO_TARGET_DIR=$(inside "$target")" \
		"RRXE_RDMA_CORE=$(inside "$RDMA_CORE")" \
		cargo build --quiet --release --manifest-path librrxe/provider/Cargo.toml >&2 ||
		die "the provider library did not build"
	# shellcheck disable=SC2034 # vm.sh reads it
	PROVIDER=$target/librrxe-rdmav$(<"$RDMA_CORE/pabi").so
	ln -f "$target/$CARGO_RELEASE/librrxe.so" "$PROVIDER"
}

# provider_layout VERSION: prints the line of rdma-core-layouts for a version of rdma-core, or
# nothing.
provider_layout() {
	awk -v "major=${1%%.*}" '!/^#/ && $1 <= major && major <= $2' "$TOP/tools/lib/rdma-core-layouts"
}

# provider_suite ABI VERSION: prints the suite whose rdma-core has the same layout as rdma-core
# VERSION, whose private symbols have the version ABI.
provider_suite() {
	local abi=$1 version=$2 known suite
	read -r _ _ known suite < <(provider_layout "$version") || true
	if [[ ${known:-} != "$abi" ]]; then
		die "librrxe can't be built for rdma-core $version: the layout of its interface to providers, version $abi, is unknown; $(provider_own_source "$version")"
	elif [[ $suite == none ]]; then
		die "librrxe can't be built for rdma-core $version in the toolbox: no Debian suite has an rdma-core with its interface to providers; $(provider_own_source "$version")"
	fi
	echo "$suite"
}

# provider_same_layout SUITE VERSION: dies if the rdma-core of a suite has another layout than
# rdma-core VERSION. The rdma-core of testing changes.
provider_same_layout() {
	local suite=$1 version=$2 other
	other=$(provider_version "$suite") || exit
	[[ $(provider_layout "$other") == "$(provider_layout "$version")" ]] ||
		die "librrxe can't be built for rdma-core $version in the toolbox: Debian $suite has rdma-core $other now, whose interface to providers differs; $(provider_own_source "$version")"
}

provider_own_source() {
	echo "set RDMA_CORE_SOURCE to the source of rdma-core $1 (on Debian: apt-get source rdma-core), or use stock librxe, which serves rrxe's devices"
}

provider_install() {
	local root=${DESTDIR:-$SYSTEM} directory abi version suite
	read -r directory abi version < <("$TOP/tools/lib/provider-install" locate "$root") || exit
	if [[ -n ${RDMA_CORE_SOURCE:-} ]]; then
		provider_local_build "$version"
	else
		suite=$(provider_suite "$abi" "$version") || exit
		prepare_root install-provider
		toolbox_init
		provider_same_layout "$suite" "$version"
		provider_build "$suite"
	fi
	writing "$root$directory" "$TOP/tools/lib/provider-install" install "$PROVIDER" "$TOP/librrxe/librrxe.7" "$root" || exit
	say "installed librrxe in $root$directory, and its man page librrxe(7); make uninstall-provider removes it"
}

# provider_local_build VERSION: builds the library by the programs of this machine, without the
# toolbox, with headers from RDMA_CORE_SOURCE, the source of rdma-core VERSION. Sets PROVIDER to the
# path of the library.
provider_local_build() {
	local version=$1 have headers target
	have=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$RDMA_CORE_SOURCE/CMakeLists.txt" 2>/dev/null) || true
	[[ $have == "$version" ]] ||
		die "RDMA_CORE_SOURCE=$RDMA_CORE_SOURCE is not the source of rdma-core $version, the version of the installed libibverbs: set RDMA_CORE_SOURCE to that source (on Debian: apt-get source rdma-core)"
	need_programs cargo "${RUSTC:-rustc}" "${BINDGEN:-bindgen}" gcc python3
	cache_make
	headers=$RRXE_BUILD/rdma-core-$version target=$RRXE_BUILD/librrxe/local-$version
	rm -rf "$headers"
	logged "rdma-core-$version" "$TOP/tools/lib/rdma-core-headers" "$headers" "$RDMA_CORE_SOURCE"
	env "CARGO_TARGET_DIR=$target" "RRXE_RDMA_CORE=$headers" cargo build --offline --quiet --release \
		--manifest-path "$TOP/librrxe/provider/Cargo.toml" >&2 || die "the provider library did not build"
	PROVIDER=$target/librrxe-rdmav$(<"$headers/pabi").so
	ln -f "$target/release/librrxe.so" "$PROVIDER"
	give_to_caller "$headers" "$target"
}

provider_uninstall() {
	local root=${DESTDIR:-$SYSTEM}
	if [[ -z $(compgen -G "$root/usr/lib*/libibverbs/librrxe-*" || compgen -G "$root/usr/lib/*/libibverbs/librrxe-*") ]]; then
		say "librrxe is not installed in ${root:-this system}"
		return
	fi
	writing "$root/etc/libibverbs.d" "$TOP/tools/lib/provider-install" uninstall "$root" || exit
	say "removed librrxe"
}
