# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Prepares the kernel that the module is built for and that guests boot. It is the newest Debian
# kernel whose packages are all available, or the release RRXE_KERNEL. With RRXE_KERNEL_KIND=debug
# it is a kernel that is built from the source of that one, with KASAN, lockdep and other checks
# (tools/vm/debug.config).

# Hours after which Debian's package lists are read again.
readonly CHOICE_HOURS=24

# Prints the kernel to use, in the format of choose-kernel.py. The choice is cached for
# CHOICE_HOURS, and longer if Debian's package lists cannot be downloaded.
kernel_choice() {
	local file=$RRXE_CACHE/state/kernel-${RRXE_KERNEL:-newest}$ARCH_SUFFIX
	# apt locks its lists, and fails if another process has locked them.
	is_fresh "$file" "$CHOICE_HOURS" || with_lock apt kernel_choose "$file"
	cat "$file"
}

kernel_choose() {
	local file=$1
	! is_fresh "$file" "$CHOICE_HOURS" || return 0
	if in_toolbox tools/lib/kernel-choose --architecture "$ARCH" --oldest "$OLDEST_KERNEL" ${RRXE_KERNEL:+"$RRXE_KERNEL"} >"$file.new"; then
		mv "$file.new" "$file"
	elif [[ -s $file ]]; then
		say "could not ask for newer kernels; keeping the last choice"
	else
		die "no kernel to use: see the message above"
	fi
}

kernel_make() {
	[[ ! -e $KERNEL/complete ]] || return 0
	say "preparing kernel $RELEASE: source, headers, Rust metadata (about 2 minutes, once)"
	logged kernel in_toolbox env "${CROSS_KERNEL[@]}" tools/lib/kernel-make "$(inside "$KERNEL")" "$RELEASE" "$@"
	touch "$KERNEL/complete"
}

debug_kernel_make() {
	[[ ! -e $KERNEL/complete ]] || return 0
	say "building the debug kernel (about 15 minutes on two free CPUs, once)"
	logged debug-kernel in_toolbox tools/lib/debug-kernel-make "$(inside "$KERNEL")" "$(inside "$STOCK")"
	touch "$KERNEL/complete"
}

# Builds the debug kernel if it is not cached, and sets KERNEL, RELEASE and KERNEL_MAKE for it.
# Before the call, KERNEL must be the directory of the stock kernel.
debug_kernel_init() {
	STOCK=$KERNEL
	KERNEL=$RRXE_CACHE/kernel/debug-$({
		basename "$STOCK"
		cat "$TOP"/tools/{lib/debug-kernel-make,vm/debug.config}
	} | key)
	[[ -e $KERNEL/complete ]] || with_lock debug-kernel debug_kernel_make
	mark_used "$KERNEL/complete"
	RELEASE=$(<"$KERNEL/release")
	KERNEL_MAKE=(LLVM=1)
	say "debug kernel $RELEASE"
}

# Prepares the kernel if it is not cached. Sets RELEASE to its release, KERNEL to its directory, and
# KERNEL_MAKE to the arguments of make that a module for this kernel needs.
kernel_init() {
	local choice version packages
	[[ -z ${KERNEL:-} ]] || return 0
	toolbox_init
	choice=$(kernel_choice) || exit
	read -r RELEASE version packages <<<"$choice"
	KERNEL=$RRXE_CACHE/kernel/$RELEASE-$({
		echo "$RECIPE $version $packages"
		cat "$TOOLBOX/compilers" "$TOP"/tools/lib/kernel-{make,tree}
	} | key)
	say "kernel $RELEASE (Debian $version)"
	# shellcheck disable=SC2086 # a list of words
	[[ -e $KERNEL/complete ]] || with_lock kernel kernel_make $packages
	mark_used "$KERNEL/complete"
	KERNEL_MAKE=()
	[[ ${RRXE_KERNEL_KIND:-stock} == stock ]] || debug_kernel_init
}
