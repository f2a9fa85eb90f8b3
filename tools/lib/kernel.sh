# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The kernel to build for and to boot: the newest complete one of Debian's, or the one RRXE_KERNEL names; with
# RRXE_KERNEL_KIND=debug one that is built from its source with the kernel's own checks.

readonly CHOICE_HOURS=24

# Which kernel, as kernel-choose prints it; asked again once a day. Offline, the last answer holds.
kernel_choice() {
	local file=$RRXE_CACHE/state/kernel-${RRXE_KERNEL:-newest}
	if [[ -z $(find "$file" -mmin "-$((CHOICE_HOURS * 60))" 2>/dev/null) ]]; then
		if in_toolbox tools/lib/kernel-choose ${RRXE_KERNEL:+"$RRXE_KERNEL"} >"$file.new"; then
			mv "$file.new" "$file"
		elif [[ -s $file ]]; then
			say "could not ask for newer kernels; keeping the last choice"
		else
			die "no kernel to use: see the message above (is the network there?)"
		fi
	fi
	cat "$file"
}

kernel_make() {
	[[ ! -e $KERNEL/complete ]] || return 0
	say "preparing kernel $RELEASE: source, headers, Rust metadata (about 2 minutes, once)"
	logged kernel in_toolbox tools/lib/kernel-make "$(inside "$KERNEL")" "$RELEASE" "$@"
	touch "$KERNEL/complete"
}

debug_kernel_make() {
	[[ ! -e $KERNEL/complete ]] || return 0
	say "building the debug kernel (about 15 minutes on two free CPUs, once)"
	logged debug-kernel in_toolbox tools/lib/debug-kernel-make "$(inside "$KERNEL")" "$(inside "$STOCK")"
	touch "$KERNEL/complete"
}

# After kernel_init has set KERNEL to the stock kernel: the debug kernel made of its source.
debug_kernel_init() {
	STOCK=$KERNEL
	KERNEL=$RRXE_CACHE/kernel/debug-$({
		basename "$STOCK"
		cat "$TOP"/tools/{lib/debug-kernel-make,vm/debug.config}
	} | key)
	[[ -e $KERNEL/complete ]] || with_lock debug-kernel debug_kernel_make
	RELEASE=$(<"$KERNEL/release")
	KERNEL_MAKE=(LLVM=1)
	say "debug kernel $RELEASE"
}

# Sets RELEASE to the kernel's release, KERNEL to its directory, ready to be used, and KERNEL_MAKE to what make needs
# to be told to build for it.
kernel_init() {
	local choice version packages
	[[ -z ${KERNEL:-} ]] || return 0
	case ${RRXE_KERNEL_KIND:-stock} in
	stock | debug) ;;
	*) die "RRXE_KERNEL_KIND is stock or debug" ;;
	esac
	toolbox_init
	choice=$(kernel_choice) || exit
	read -r RELEASE version packages <<<"$choice"
	KERNEL=$RRXE_CACHE/kernel/$RELEASE-$({
		echo "$RECIPE $version $packages"
		cat "$TOOLBOX/compilers" "$TOP/tools/lib/kernel-make"
	} | key)
	say "kernel $RELEASE (Debian $version)"
	# shellcheck disable=SC2086 # a list of words
	[[ -e $KERNEL/complete ]] || with_lock kernel kernel_make $packages
	KERNEL_MAKE=()
	[[ ${RRXE_KERNEL_KIND:-stock} == stock ]] || debug_kernel_init
}
