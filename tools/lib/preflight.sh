# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Finds out whether a command is possible on this machine, before it asks for root and before it
# downloads anything.

# preflight COMMAND ARGUMENT...: dies if a command that uses the toolbox is not possible here or has
# wrong arguments. Otherwise has root continue.
preflight() {
	local command=$1
	shift
	case ${RRXE_KERNEL_KIND:-stock} in
	stock | debug) ;;
	*) die "RRXE_KERNEL_KIND is $RRXE_KERNEL_KIND: set it to stock or debug" ;;
	esac
	case $command in
	vm) [[ -f ${1:-} ]] || die "the script '${1:-}' does not exist: tools/rrxe vm SCRIPT" ;;
	upstream) [[ -z ${TREE:-} || -e $TREE/.git ]] || die "TREE=$TREE is no git checkout of a kernel" ;;
	esac
	case $command in
	toolbox | shell | kernel | build | build-provider | vm | demo) ;;
	*) is_native || die "RRXE_ARCH is $ARCH: $command works with RRXE_ARCH=$TOOLBOX_ARCH only" ;;
	esac
	case $command in
	test | check | test-debug | test-arm64 | test-system | fuzz | bench | bench-gate) need_programs python3 ;;
	esac
	prepare_root "$command"
}

# prepare_root COMMAND: dies if the toolbox can't be used for a command. Otherwise continues as root
# with the cache made.
prepare_root() {
	toolbox_missing "$1"
	[[ ${#TOOLBOX_MISSING[@]} -eq 0 ]] || refuse "${TOOLBOX_MISSING[@]}"
	cache_check
	# Before root does, so that the directories belong to the user.
	cache_try_make || true
	need_root "${ARGUMENTS[@]}"
	cache_make
	need_mounts
	is_fresh "$RRXE_CACHE/state/pruned" 24 || { touch "$RRXE_CACHE/state/pruned" && cache_prune; }
}
