# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Building and installing for a kernel of this machine: the running one, or the one KVER names.

readonly OLDEST_KERNEL=7.2
# What the driver calls, by configuration option.
readonly NEEDED_OPTIONS=(RUST MODULES INFINIBAND INFINIBAND_USER_ACCESS INFINIBAND_USER_MEM INET IPV6 NET_UDP_TUNNEL)

# Sets MISSING to what stands in the way of building for $1 from its own build tree $2, a sentence each.
host_missing() {
	local release=$1 tree=$2 config=$2/.config option wanted have
	MISSING=()
	if [[ $(printf '%s\n' "$OLDEST_KERNEL" "$release" | sort -V | head -n 1) != "$OLDEST_KERNEL" ]]; then
		MISSING+=("Kernel $release is too old: rrxe needs Linux $OLDEST_KERNEL or newer.")
	fi
	if [[ ! -e $tree/Makefile ]]; then
		MISSING+=("The build tree of kernel $release is not installed ($tree); on Debian and Ubuntu it is the package linux-headers-$release, on Fedora kernel-devel.")
		return
	fi
	[[ -e $config ]] || config=$tree/include/config/auto.conf
	for option in "${NEEDED_OPTIONS[@]}"; do
		grep -qE "^CONFIG_$option=[ym]" "$config" ||
			MISSING+=("Kernel $release was built without CONFIG_$option.")
	done
	! grep -q '^CONFIG_PREEMPT_RT=y' "$config" ||
		MISSING+=("Kernel $release was built with CONFIG_PREEMPT_RT, on which rrxe is not safe.")
	# Without it, netlink dumps look at QPs, CQs and SRQs while the driver destroys them.
	[[ ! -e $tree/Module.symvers ]] || grep -qw rdma_restrack_begin_del "$tree/Module.symvers" ||
		MISSING+=("Kernel $release has an older ib_core, without rdma_restrack_begin_del(): rrxe needs Linux 7.3, or a 7.2 that has it.")
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

# Sets MODULE to an rrxe.ko for kernel $1.
host_build() {
	local release=$1 tree=/lib/modules/$1/build
	host_missing "$release" "$tree"
	if [[ ${#MISSING[@]} -eq 0 ]]; then
		MODULE=$RRXE_BUILD/host-$release/rrxe.ko
		mkdir -p "$(dirname "$MODULE")"
		make --no-print-directory -C "$tree" -j"$(nproc)" KBUILD_EXTMOD_OUTPUT="$(dirname "$MODULE")" M="$TOP" modules >&2 ||
			die "the module did not build"
		say "built $MODULE"
	elif [[ $release =~ \+deb[0-9]+-$ARCH$ ]]; then
		# A stock Debian kernel: the toolbox has its compiler and makes the metadata from its source.
		need_root "${ARGUMENTS[@]}"
		# shellcheck disable=SC2034 # kernel_init reads it
		RRXE_KERNEL=$release
		module_build
	else
		say "rrxe can't be built for kernel $release:"
		printf '  - %s\n' "${MISSING[@]}" >&2
		say "to see it at work nevertheless, in a virtual machine with a kernel that has all this: make demo"
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
