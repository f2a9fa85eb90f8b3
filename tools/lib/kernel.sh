# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The kernel to build for and to boot: the newest complete one of Debian's, or the one RRXE_KERNEL names.

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

# Sets RELEASE to the kernel's release and KERNEL to its directory, ready to be used.
kernel_init() {
	local choice version packages
	[[ -z ${KERNEL:-} ]] || return 0
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
}
