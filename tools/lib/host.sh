# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds and installs the module for a kernel of this machine: the running one, or the release KVER.

readonly OLDEST_KERNEL=7.3
# Configuration options of the kernel that the driver needs.
readonly NEEDED_OPTIONS=(RUST MODULES INFINIBAND INFINIBAND_USER_ACCESS INFINIBAND_USER_MEM INFINIBAND_ADDR_TRANS
	INFINIBAND_ON_DEMAND_PAGING INET IPV6 NET_UDP_TUNNEL)
# Kernel functions that the driver needs and older kernels lack. Without rdma_restrack_begin_del(),
# netlink dumps access QPs, CQs and SRQs while the driver destroys them.
readonly NEEDED_SYMBOLS=(rdma_restrack_begin_del hmm_range_fault_unlocked_timeout)

# host_unfit RELEASE TREE: adds to MISSING a sentence for each reason why rrxe cannot run on this
# kernel. Reasons that only the build tree TREE shows are left out if it is not installed.
host_unfit() {
	local release=$1 tree=$2 config=$2/.config name
	if [[ $(printf '%s\n' "$OLDEST_KERNEL" "$release" | sort -V | head -n 1) != "$OLDEST_KERNEL" ]]; then
		MISSING+=("Kernel $release is too old: rrxe needs Linux $OLDEST_KERNEL or newer.")
	fi
	[[ -e $tree/Makefile ]] || return 0
	[[ -e $config ]] || config=$tree/include/config/auto.conf
	for name in "${NEEDED_OPTIONS[@]}"; do
		grep -qE "^CONFIG_$name=[ym]" "$config" ||
			MISSING+=("Kernel $release was built without CONFIG_$name.")
	done
	! grep -q '^CONFIG_PREEMPT_RT=y' "$config" ||
		MISSING+=("Kernel $release was built with CONFIG_PREEMPT_RT, on which rrxe is not safe.")
	[[ -e $tree/Module.symvers ]] || return 0
	for name in "${NEEDED_SYMBOLS[@]}"; do
		grep -qw "$name" "$tree/Module.symvers" ||
			MISSING+=("Kernel $release has no function $name(), which rrxe needs.")
	done
}

# host_missing RELEASE TREE: sets MISSING to a sentence for each reason why the module cannot be
# built for this kernel in its own build tree. Sets UNFIT to the number of reasons that a build in
# the toolbox does not remove either. These come first in MISSING.
host_missing() {
	local release=$1 tree=$2 config=$2/.config wanted have
	MISSING=()
	host_unfit "$release" "$tree"
	UNFIT=${#MISSING[@]}
	if [[ ! -e $tree/Makefile ]]; then
		MISSING+=("The build tree of kernel $release is not installed ($tree); on Debian and Ubuntu it is the package linux-headers-$release, on Fedora kernel-devel.")
		return
	fi
	[[ -e $config ]] || config=$tree/include/config/auto.conf
	grep -q '^CONFIG_RUST=y' "$config" || return 0
	[[ -e $tree/rust/libkernel.rmeta ]] ||
		MISSING+=("The build tree $tree lacks the kernel's Rust metadata (rust/libkernel.rmeta).")
	wanted=$(sed -n 's/^CONFIG_RUSTC_VERSION_TEXT="\(.*\)"/\1/p' "$config")
	have=$(rustc --version 2>/dev/null) || have="none"
	[[ $have == "$wanted" ]] ||
		MISSING+=("Kernel $release was built by '$wanted'; the rustc found here is: $have.")
	command -v bindgen >/dev/null || MISSING+=("The program bindgen is not installed.")
	command -v make >/dev/null || MISSING+=("The program make is not installed.")
}

# host_build RELEASE: builds rrxe.ko for a kernel of this machine, and sets MODULE to its path.
host_build() {
	local release=$1 tree=/lib/modules/$1/build
	host_missing "$release" "$tree"
	if [[ ${#MISSING[@]} -eq 0 ]]; then
		MODULE=$RRXE_BUILD/host-$release/rrxe.ko
		mkdir -p "$(dirname "$MODULE")"
		make --no-print-directory -C "$tree" -j"$(nproc)" KBUILD_EXTMOD_OUTPUT="$(dirname "$MODULE")" M="$TOP" modules >&2 ||
			die "the module did not build"
		say "built $MODULE"
	elif [[ $UNFIT -eq 0 && $release =~ \+deb[0-9]+-$ARCH$ ]]; then
		# A stock Debian kernel: the toolbox has the compiler that built it, and generates
		# the Rust metadata from the kernel's source.
		need_root "${ARGUMENTS[@]}"
		# shellcheck disable=SC2034 # kernel_init reads it
		RRXE_KERNEL=$release
		module_build
	else
		say "rrxe can't be built for kernel $release:"
		printf '  - %s\n' "${MISSING[@]}" >&2
		say "to run it in a virtual machine with a suitable kernel: make demo"
		exit 1
	fi
}

host_install() {
	local release=$1 root=${INSTALL_MOD_PATH:-} target
	command -v depmod >/dev/null || die "the program depmod is not installed (package kmod)"
	host_build "$release"
	target=$root/lib/modules/$release/updates/rrxe.ko
	install -D -m 644 "$MODULE" "$target" || die "can't write $target"
	depmod ${root:+-b "$root"} "$release" || die "depmod failed for kernel $release"
	say "installed $target; load it with: modprobe rrxe"
	if [[ -z $root ]] && grep -qE '\[(integrity|confidentiality)\]' /sys/kernel/security/lockdown 2>/dev/null; then
		say "this machine only loads signed modules (Secure Boot): sign $target with a key the machine trusts"
	fi
}

host_uninstall() {
	local release=$1 root=${INSTALL_MOD_PATH:-}
	rm -f "$root/lib/modules/$release/updates/rrxe.ko"
	depmod ${root:+-b "$root"} "$release" || die "depmod failed for kernel $release"
	say "removed rrxe from kernel $release"
	[[ -n $root || ! -e /sys/module/rrxe ]] || say "it is still loaded: rmmod rrxe unloads it"
}
