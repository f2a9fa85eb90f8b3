# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds and installs the command `rrxe` of users (cli), the man pages and the shell completions.

# Oldest cargo that builds the command.
readonly OLDEST_CARGO=1.85

# Succeeds if this machine has a cargo that builds the command.
has_cargo() {
	local version
	version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || return
	[[ $(printf '%s\n' "$OLDEST_CARGO" "$version" | sort -V | head -n 1) == "$OLDEST_CARGO" ]]
}

# Builds the command by this machine's cargo if it can, otherwise in the toolbox, which takes root.
# Sets COMMAND to its path.
command_build() {
	local build=(cargo build --quiet --release --locked --manifest-path) target
	if has_cargo; then
		cache_make
		target=$RRXE_BUILD/cli-host
		CARGO_TARGET_DIR=$target "${build[@]}" "$TOP/cli/Cargo.toml" >&2 || die "the command rrxe did not build"
		give_to_caller "$target"
	else
		prepare_root install-tools
		toolbox_init
		target=$RRXE_BUILD/cli
		in_toolbox env CARGO_TERM_COLOR=never "CARGO_TARGET_DIR=$(inside "$target")" \
			"${build[@]}" cli/Cargo.toml >&2 || die "the command rrxe did not build"
	fi
	COMMAND=$target/release/rrxe
}

# Prints the directory below which the files are installed.
command_prefix() { echo "${DESTDIR:-$SYSTEM}${PREFIX:-/usr/local}"; }

command_install() {
	local prefix
	prefix=$(command_prefix)
	command_build
	writing "$prefix" "$TOP/tools/lib/command-install" install "$COMMAND" "$TOP/cli" "$prefix" || exit
	say "installed $prefix/bin/rrxe, its man pages rrxe(8) and rrxe(7), and completions for bash, zsh and fish"
}

command_uninstall() {
	local prefix
	prefix=$(command_prefix)
	writing "$prefix" "$TOP/tools/lib/command-install" uninstall "$prefix" || exit
	say "removed the command rrxe from $prefix"
}
