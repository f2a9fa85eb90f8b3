# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds the Debian packages of packaging/debian in a root file system of their own, which has the
# build dependencies and lintian.

readonly DEB_PACKAGES=(
	build-essential debhelper dh-dkms lintian python3 cargo rustc rust-src bindgen libibverbs-dev
	bc bison flex kmod libelf-dev libssl-dev xz-utils
)

# Makes the root for package builds if it is not cached, and sets DEB_ROOT to its directory. It also
# has the header and source packages of the kernel that kernel_choice chose. Sets RELEASE and
# KERNEL_VERSION to the release of this kernel and the version of its packages.
deb_root_init() {
	local choice packages package kernel=()
	choice=$(kernel_choice) || exit
	read -r RELEASE KERNEL_VERSION packages <<<"$choice"
	for package in $packages; do
		case $package in
		linux-headers-*-"$ARCH"=* | linux-source-*=*) kernel+=("$package") ;;
		esac
	done
	DEB_ROOT=$RRXE_CACHE/deb/$(echo "$RECIPE $SUITE ${DEB_PACKAGES[*]} ${kernel[*]}" | key)
	[[ -e $DEB_ROOT/complete ]] || with_lock deb deb_root_make "${kernel[@]}"
	mark_used "$DEB_ROOT/complete"
}

deb_root_make() {
	[[ ! -e $DEB_ROOT/complete ]] || return 0
	say "making the root for package builds (about 3 minutes, once)"
	debian_root deb-root "$DEB_ROOT" "${DEB_PACKAGES[@]}" "$@" || exit
	touch "$DEB_ROOT/complete"
}

# Builds the packages, without the network, and sets DEBS to their directory.
deb_build() {
	local tree
	toolbox_init
	deb_root_init
	rdma_core_init "$SUITE"
	DEBS=$RRXE_BUILD/deb
	tree=$DEBS/rrxe
	rm -rf "$DEBS"
	mkdir -p "$DEBS"
	say "building packages for Debian $SUITE, rdma-core $(basename "${RDMA_CORE%-*}") and kernel $RELEASE"
	logged deb-source in_toolbox tools/lib/deb-source "$(inside "$tree")" "$(inside "$RDMA_CORE")" "$RELEASE" "$KERNEL_VERSION"
	logged deb-build in_root "$DEB_ROOT/root" unshare --net sh -c \
		"cd $(inside "$tree") && exec dpkg-buildpackage --no-sign --jobs=auto"
	rm -rf "$tree"
	in_root "$DEB_ROOT/root" sh -c "cd $(inside "$DEBS") && lintian -EviIL +pedantic --tag-display-limit 0 ./*.changes" \
		>"$DEBS/lintian.log" 2>&1 || true
	give_to_caller "$DEBS"
	say "lintian: $(grep -c '^[EW]: ' "$DEBS/lintian.log") errors and warnings, in $DEBS/lintian.log"
	printf '%s\n' "$DEBS"/*.deb
}
