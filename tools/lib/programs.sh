# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds the programs for the guest in the toolbox: the command of users (cli), and the test programs
# (tests/verbs, tests/fuzz), which use the toolbox's libibverbs.

# Builds the programs and sets PROGRAMS to their directory.
programs_build() {
	local crate
	# shellcheck disable=SC2034 # vm.sh reads it
	PROGRAMS=$RRXE_BUILD/verbs/$CARGO_RELEASE
	for crate in tests/verbs tests/fuzz cli; do
		[[ -e $TOP/$crate/Cargo.toml ]] || continue
		in_toolbox env "${CROSS_PROGRAMS[@]}" CARGO_TERM_COLOR=never "CARGO_TARGET_DIR=$(inside "$RRXE_BUILD/verbs")" \
			cargo build --quiet --release --manifest-path "$crate/Cargo.toml" >&2 ||
			die "the programs for the guest did not build"
	done
}
