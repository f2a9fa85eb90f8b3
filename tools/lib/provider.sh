# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The provider library (librrxe), built in the toolbox against the source package of the
# rdma-core that it is for: a provider's interface is private to each version of libibverbs.

readonly PROVIDER_HOURS=24
# Where libibverbs looks for its providers.
# shellcheck disable=SC2034 # vm.sh reads it
readonly PROVIDERS=usr/lib/x86_64-linux-gnu/libibverbs

# Which version of rdma-core a Debian suite has; asked again once a day. Offline, the last answer holds.
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

# Sets RDMA_CORE to the headers of a suite's rdma-core.
rdma_core_init() {
	local suite=$1 version
	version=$(provider_version "$suite") || exit
	RDMA_CORE=$RRXE_CACHE/rdma-core/$version-$({
		echo "$RECIPE"
		cat "$TOP/tools/lib/rdma-core-make"
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

# Sets PROVIDER to the library for a suite's libibverbs; its name ends as that libibverbs wants it.
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

# The suite whose rdma-core has the interface that a system's libibverbs wants.
provider_suite() {
	local root=$1 version
	version=$(compgen -G "$root/usr/lib*/libibverbs/librxe-rdmav*.so" || compgen -G "$root/usr/lib/*/libibverbs/librxe-rdmav*.so") ||
		die "there are no providers of libibverbs in ${root:-this system}: install them (Debian's package ibverbs-providers)"
	version=${version##*rdmav}
	case ${version%.so} in
	34) echo trixie ;;
	65) echo testing ;;
	*) die "librrxe can't be built for this libibverbs: its interface to providers has version ${version%.so}," \
		"and only 34 (rdma-core 44 to 56) and 65 are known" ;;
	esac
}

provider_install() {
	local root=${DESTDIR:-} suite
	suite=$(provider_suite "$root") || exit
	toolbox_init
	provider_build "$suite"
	"$TOP/tools/lib/provider-install" install "$PROVIDER" "$root" || exit
	say "installed librrxe; make uninstall-provider takes it away"
}

provider_uninstall() {
	"$TOP/tools/lib/provider-install" uninstall "${DESTDIR:-}" || exit
	say "took librrxe away"
}
