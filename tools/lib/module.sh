# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds the kernel module in the toolbox. All output is in the cache.

# Builds rrxe.ko and sets MODULE to its path.
module_build() {
	kernel_init
	BUILD=$RRXE_BUILD/$(basename "$KERNEL")
	MODULE=$BUILD/rrxe.ko
	mkdir -p "$BUILD"
	with_lock "build-$(basename "$RRXE_BUILD")" module_make
	say "built $MODULE"
}

module_make() {
	local tree output
	tree=$(inside "$KERNEL/kbuild")
	output=$(inside "$BUILD")
	in_toolbox make --no-print-directory -C "$tree" --jobserver-style=pipe -j"$(nproc)" KBUILD_OUTPUT="$tree" \
		KBUILD_EXTMOD_OUTPUT="$output" M=/rrxe "${KERNEL_MAKE[@]}" modules >&2 || die "the module did not build"
}
