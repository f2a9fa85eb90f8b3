# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds the provider library (librrxe) in the toolbox. The interface between libibverbs and its
# providers is private to each version of libibverbs, so the build takes the headers from the source
# package of the rdma-core that the library is for.

# Hours after which the version of a suite's rdma-core is looked up again.
readonly PROVIDER_HOURS=24
# Directory of the guest's providers.
# shellcheck disable=SC2034 # vm.sh reads it
readonly PROVIDERS=usr/lib/x86_64-linux-gnu/libibverbs

# provider_version SUITE: prints the version of rdma-core in a Debian suite. The version is cached
# for PROVIDER_HOURS, and longer if Debian's package lists cannot be downloaded.
provider_version() {
	local suite=$1 file=$RRXE_CACHE/state/rdma-core-$1
	if [[ -z $(find "$file" -mmin "-$((PROVIDER_HOURS * 60))" 2>/dev/null) ]]; then
		echo "deb-src $(debian_mirror) $suite main" >"$file.sources"
		if in_toolbox tools/lib/rdma-core-choose "$suite" "$(inside "$file.sources")" >"$file.new"; then
			mv "$file.new" "$file"
		elif [[ -s $file ]]; then
			say "could not ask for the rdma-core of $suite; keeping the last answer"
		else
			die "no rdma-core to build for: see the message above (is the network there?)"
		fi
	fi
	cat "$file"
}

# rdma_core_init SUITE: sets RDMA_CORE to the directory made by rdma-core-make for a suite's
# rdma-core.
rdma_core_init() {
	local suite=$1 version
	version=$(provider_version "$suite") || exit
	RDMA_CORE=$RRXE_CACHE/rdma-core/$version-$({
		echo "$RECIPE"
		cat "$TOP"/tools/lib/rdma-core-{make,headers}
	} | key)
	[[ -e $RDMA_CORE/complete ]] || with_lock rdma-core rdma_core_make "$suite" "$version"
}

rdma_core_make() {
	local suite=$1 version=$2
	[[ ! -e $RDMA_CORE/complete ]] || return 0
	say "fetching the source of rdma-core $version"
	logged rdma-core in_toolbox tools/lib/rdma-core-make "$(inside "$RDMA_CORE")" "$suite" \
		"$(inside "$RRXE_CACHE/state/rdma-core-$suite.sources")" "$version"
	touch "$RDMA_CORE/complete"
}

# provider_build SUITE: builds the library for a suite's libibverbs and sets PROVIDER to its path.
# Its name ends in -rdmavN.so, where N is the version of the provider interface that libibverbs
# requires.
provider_build() {
	local suite=$1 target
	rdma_core_init "$suite"
	target=$RRXE_BUILD/librrxe/$(basename "$RDMA_CORE")
	in_toolbox env CARGO_TERM_COLOR=never "CARGO_TARGET_DIR=$(inside "$target")" \
		"RRXE_RDMA_CORE=$(inside "$RDMA_CORE")" \
		cargo build --quiet --release --manifest-path librrxe/provider/Cargo.toml >&2 ||
		die "the provider library did not build"
	# shellcheck disable=SC2034 # vm.sh reads it
	PROVIDER=$target/librrxe-rdmav$(<"$RDMA_CORE/pabi").so
	ln -f "$target/release/librrxe.so" "$PROVIDER"
}

# provider_suite ROOT: prints the suite whose rdma-core has the provider interface of ROOT's
# libibverbs.
provider_suite() {
	local root=$1 version
	version=$(compgen -G "$root/usr/lib*/libibverbs/librxe-rdmav*.so" || compgen -G "$root/usr/lib/*/libibverbs/librxe-rdmav*.so") ||
		die "there are no providers of libibverbs in ${root:-this system}: install them (Debian's package ibverbs-providers)"
	version=${version##*rdmav}
	case ${version%.so} in
	34) echo trixie ;;
	65) echo testing ;;
	*) die "librrxe can't be built for this libibverbs: its interface to providers has version ${version%.so}," \
		"and only 34 (Debian 13) and 65 (Debian testing) are known" ;;
	esac
}

provider_install() {
	local root=${DESTDIR:-} suite
	suite=$(provider_suite "$root") || exit
	toolbox_init
	provider_build "$suite"
	"$TOP/tools/lib/provider-install" install "$PROVIDER" "$root" || exit
	say "installed librrxe; make uninstall-provider removes it"
}

provider_uninstall() {
	"$TOP/tools/lib/provider-install" uninstall "${DESTDIR:-}" || exit
	say "removed librrxe"
}
