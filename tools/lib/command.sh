# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds and installs the command `rrxe` of users (cli), the man pages, its shell completions, and
# the files for links that last (packaging/).

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

command_install() {
	command_build
	command_files "installed the command rrxe, its man pages rrxe(8) and rrxe(7), its completions and its systemd units" install "$COMMAND"
}

command_uninstall() {
	command_files "removed the command rrxe and its files" uninstall
}

# command_files MESSAGE COMMAND...: runs a command of command-install, and says which prefix it
# changed.
command_files() {
	local message=$1 root=${DESTDIR:-$SYSTEM} prefix=${PREFIX:-/usr/local}
	shift
	[[ $prefix == /* ]] || die "PREFIX is no absolute path: $prefix"
	writing "$root$prefix" "$TOP/tools/lib/command-install" "$@" "$root" "$prefix" || exit
	say "$message; prefix: $root$prefix"
}
