# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034 # the other parts of tools/rrxe read the variables
# The architecture of the guest, and of all that is built for it: RRXE_ARCH, by Debian's name. The
# toolbox has x86-64 programs for each of them, and QEMU emulates the guest's CPU.

readonly ARCH=${RRXE_ARCH:-amd64}
# TRIPLET is the name of the architecture in Debian's directories, and RUST_TARGET the target of
# rustc if it is not the toolbox's own. CROSS_PACKAGES are additional packages of the toolbox.
case $ARCH in
amd64) TRIPLET=x86_64-linux-gnu RUST_TARGET='' CROSS_PACKAGES=() QEMU_PACKAGE=qemu-system-x86 ;;
arm64)
	TRIPLET=aarch64-linux-gnu RUST_TARGET=aarch64-unknown-linux-gnu QEMU_PACKAGE=qemu-system-arm
	CROSS_PACKAGES=(gcc-aarch64-linux-gnu gcc-14-aarch64-linux-gnu libc6-dev:arm64 libstd-rust-dev:arm64)
	;;
*) die "RRXE_ARCH is $ARCH: set it to amd64 or arm64" ;;
esac

# Succeeds if the guest has the toolbox's architecture.
is_native() { [[ $ARCH == "$TOOLBOX_ARCH" ]]; }

# Suffixes of files of the cache that exist once for each architecture, and of packages.
ARCH_SUFFIX='' OF_ARCH=''
is_native || ARCH_SUFFIX=-$ARCH OF_ARCH=:$ARCH
readonly TRIPLET RUST_TARGET CROSS_PACKAGES QEMU_PACKAGE ARCH_SUFFIX OF_ARCH

# Environments of commands in the toolbox that build the kernel's metadata, and user programs.
CROSS_KERNEL=() CROSS_PROGRAMS=()
if ! is_native; then
	CROSS_KERNEL=("ARCH=$ARCH" "CROSS_COMPILE=$TRIPLET-")
	name=${RUST_TARGET//-/_}
	CROSS_PROGRAMS=(
		"CC=$TRIPLET-gcc" "CARGO_BUILD_TARGET=$RUST_TARGET" "CARGO_TARGET_${name^^}_LINKER=$TRIPLET-gcc"
		"BINDGEN_EXTRA_CLANG_ARGS=--target=$TRIPLET"
	)
	unset name
fi
readonly CROSS_KERNEL CROSS_PROGRAMS
# Directory below cargo's target directory that has the programs.
readonly CARGO_RELEASE=${RUST_TARGET:+$RUST_TARGET/}release
