# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Builds and installs the module for a kernel of this machine: the running one, or the release KVER.

# Configuration options of the kernel that the driver needs.
readonly NEEDED_OPTIONS=(RUST MODULES INFINIBAND INFINIBAND_USER_ACCESS INFINIBAND_USER_MEM INFINIBAND_ADDR_TRANS
	INFINIBAND_ON_DEMAND_PAGING INET IPV6 NET_UDP_TUNNEL)
# Kernel functions that the driver needs and older kernels lack. Without rdma_restrack_begin_del(),
# netlink dumps access QPs, CQs and SRQs while the driver destroys them.
readonly NEEDED_SYMBOLS=(rdma_restrack_begin_del hmm_range_fault_unlocked_timeout)

# host_tree RELEASE: prints the build tree of a kernel, or the directory where distributions install
# it.
host_tree() {
	local tree
	for tree in lib/modules/"$1"/build usr/src/linux-headers-"$1" usr/src/kernels/"$1"; do
		[[ ! -e $SYSTEM/$tree/Makefile ]] || { echo "$SYSTEM/$tree"; return; }
	done
	echo "$SYSTEM/lib/modules/$1/build"
}

# host_config RELEASE TREE: prints the path of the kernel's configuration.
host_config() {
	local file
	for file in "$2/.config" "$2/include/config/auto.conf" "$SYSTEM/boot/config-$1" "$SYSTEM/lib/modules/$1/config"; do
		[[ ! -r $file ]] || { echo "$file"; return; }
	done
	echo /dev/null
}

# host_setting CONFIG OPTION: prints the value of an option with a text.
host_setting() { sed -n "s/^CONFIG_$2=\"\(.*\)\"/\1/p" "$1"; }

# host_unfit RELEASE TREE: adds to MISSING a sentence for each reason why rrxe cannot run on this
# kernel. Reasons that neither the build tree nor /boot shows are left out.
host_unfit() {
	local release=$1 tree=$2 config name
	if [[ $(printf '%s\n' "$OLDEST_KERNEL" "$release" | sort -V | head -n 1) != "$OLDEST_KERNEL" ]]; then
		MISSING+=("Kernel $release is too old: boot Linux $OLDEST_KERNEL or newer (on Debian 13: linux-image-amd64 of trixie-backports).")
		return
	fi
	config=$(host_config "$release" "$tree")
	if [[ $config != /dev/null ]]; then
		for name in "${NEEDED_OPTIONS[@]}"; do
			grep -qE "^CONFIG_$name=[ym]" "$config" ||
				MISSING+=("Kernel $release was built without CONFIG_$name: boot a kernel that has it.")
		done
	fi
	if grep -q '^CONFIG_PREEMPT_RT=y' "$config" || [[ $release == *-rt-* ]]; then
		MISSING+=("Kernel $release was built with CONFIG_PREEMPT_RT, on which rrxe is not safe: boot another kernel.")
	fi
	[[ -e $tree/Module.symvers ]] || return 0
	for name in "${NEEDED_SYMBOLS[@]}"; do
		grep -qw "$name" "$tree/Module.symvers" ||
			MISSING+=("Kernel $release has no function $name(), which rrxe needs: boot a newer kernel.")
	done
}

# host_missing RELEASE TREE: sets MISSING to a sentence for each reason why the module cannot be
# built by the programs of this machine. Sets UNFIT to the number of reasons that a build in the
# toolbox does not remove either. These come first in MISSING. Sets METADATA to yes if the tree
# lacks the kernel's Rust metadata. Sets HOST_MAKE to arguments of make.
host_missing() {
	local release=$1 tree=$2 config
	MISSING=() HOST_MAKE=() METADATA=no
	host_unfit "$release" "$tree"
	UNFIT=${#MISSING[@]}
	[[ $UNFIT -eq 0 ]] || return 0
	if [[ ! -e $tree/Makefile ]]; then
		MISSING+=("The build tree of kernel $release is not installed ($tree): $(install_command "linux-headers-$release" "kernel-devel-$release" linux-headers).")
		return
	fi
	config=$(host_config "$release" "$tree")
	host_compilers "$release" "$config"
	[[ -e $tree/rust/libkernel.rmeta ]] || { METADATA=yes; host_source "$release" "$tree" "$config"; }
}

# host_compilers RELEASE CONFIG: adds to MISSING a sentence for each compiler that a build for a
# kernel lacks, and to HOST_MAKE the compilers that were chosen. rustc refuses the metadata that
# any other version of rustc wrote, so the version must be the same to the last character.
host_compilers() {
	local release=$1 config=$2 wanted
	wanted=$(host_setting "$config" RUSTC_VERSION_TEXT)
	if ! host_rustc "$wanted"; then
		MISSING+=("Kernel $release was built by '$wanted', and the rustc found here is '$(host_rustc_found)': install that rustc, and set RUSTC to its path if it is not in PATH.")
	fi
	command -v "${BINDGEN:-bindgen}" >/dev/null ||
		MISSING+=("The program ${BINDGEN:-bindgen} is not installed: $(install_command bindgen bindgen-cli rust-bindgen), or set BINDGEN to its path.")
	[[ -z ${BINDGEN:-} ]] || HOST_MAKE+=("BINDGEN=$BINDGEN")
	command -v make >/dev/null || MISSING+=("The program make is not installed: $(install_command make make make).")
	host_c_compiler "$release" "$config"
}

# host_c_compiler RELEASE CONFIG: does the same for the C compiler. A kernel that clang built needs
# clang, because it was built with flags that gcc does not know.
host_c_compiler() {
	local release=$1 config=$2 llvm=${LLVM:-} program absent=() named
	[[ -n $llvm ]] || ! grep -q '^CONFIG_CC_IS_CLANG=y' "$config" || llvm=1
	if [[ -z $llvm ]]; then
		named=$(host_setting "$config" CC_VERSION_TEXT)
		command -v "${named%% *}" >/dev/null || command -v gcc >/dev/null ||
			MISSING+=("The compiler of kernel $release, ${named%% *}, is not installed: $(install_command gcc gcc gcc).")
		return
	fi
	HOST_MAKE+=("LLVM=$llvm")
	for program in clang ld.lld llvm-objcopy; do
		case $llvm in
		-*) program=$program$llvm ;;
		*/) program=$llvm$program ;;
		esac
		command -v "$program" >/dev/null || absent+=("$program")
	done
	[[ ${#absent[@]} -eq 0 ]] ||
		MISSING+=("Kernel $release was built by clang, and these programs are not installed: ${absent[*]} ($(install_command "clang lld llvm" "clang lld llvm" "clang lld llvm"); LLVM=-19 chooses version 19).")
}

# host_rustc VERSION: chooses the rustc of this version: RUSTC, or one of PATH, or one that a package
# installed beside the default one. Adds it to HOST_MAKE.
host_rustc() {
	local wanted=$1 candidate
	while IFS= read -r candidate; do
		if [[ $("$candidate" --version 2>/dev/null) == "$wanted" ]]; then
			HOST_MAKE+=("RUSTC=$candidate")
			return 0
		fi
	done < <(host_rustc_candidates)
	return 1
}

host_rustc_candidates() {
	if [[ -n ${RUSTC:-} ]]; then
		echo "$RUSTC"
	else
		type -ap rustc || true
		compgen -G "$SYSTEM/usr/bin/rustc*" || true
		compgen -G "$SYSTEM/usr/lib/rust-*/bin/rustc" || true
	fi
}

# Prints the version of the default rustc.
host_rustc_found() { "${RUSTC:-rustc}" --version 2>/dev/null || echo none; }

# host_source RELEASE TREE CONFIG: sets SOURCE to the kernel's source on this machine, from which the
# Rust metadata is made. Adds a sentence to MISSING if the source or programs for that are missing.
host_source() {
	local release=$1 tree=$2 config=$3 series name need=() argument rustc=rustc
	series=$(cut -d. -f1,2 <<<"$release")
	for name in "linux-source-$series" "linux-source-$series.tar.xz"; do
		[[ ! -e $SYSTEM/usr/src/$name ]] || SOURCE=$SYSTEM/usr/src/$name
	done
	[[ -n ${SOURCE:-} ]] || need+=("linux-source-$series")
	host_source_version "$release" "linux-source-$series"
	for argument in "${HOST_MAKE[@]}"; do [[ $argument != RUSTC=* ]] || rustc=${argument#*=}; done
	[[ -e $("$rustc" --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/core/src/lib.rs ]] || need+=(rust-src)
	for name in flex bison bc python3; do
		command -v $name >/dev/null || need+=("$name")
	done
	[[ -e $SYSTEM/usr/include/libelf.h ]] || need+=(libelf-dev)
	[[ -e $SYSTEM/usr/include/openssl/opensslv.h ]] || need+=(libssl-dev)
	[[ ${#need[@]} -eq 0 ]] ||
		MISSING+=("The build tree $tree lacks the kernel's Rust metadata (rust/libkernel.rmeta), and packages to make it again are not installed: apt-get install ${need[*]}.")
	name=$(host_setting "$config" BINDGEN_VERSION_TEXT)
	! command -v "${BINDGEN:-bindgen}" >/dev/null || [[ $("${BINDGEN:-bindgen}" --version) == "$name" ]] ||
		MISSING+=("The Rust metadata of kernel $release was made with '$name': install that bindgen, and set BINDGEN to its path if it is not in PATH.")
}

# host_source_version RELEASE PACKAGE: adds a sentence to MISSING if the package with the kernel's
# source has another version than the package with the kernel's headers.
host_source_version() {
	local release=$1 package=$2 headers source
	headers=$(package_version "linux-headers-$release")
	source=$(package_version "$package")
	[[ -z $headers || -z $source || $headers == "$source" ]] ||
		MISSING+=("The package $package has version $source, and kernel $release has version $headers: install the same version of both, or boot the kernel of version $source.")
}

# host_toolbox_fits RELEASE: succeeds if the toolbox has the compilers that built a kernel.
host_toolbox_fits() { [[ $1 =~ \+deb13(\.[0-9]+)?-([a-z]+-)?$TOOLBOX_ARCH$ ]]; }

# host_output RELEASE: prints the directory of the module for a kernel of this machine.
host_output() { echo "$RRXE_BUILD/host-$1"; }

# host_build RELEASE: builds rrxe.ko for a kernel of this machine, and sets MODULE to its path.
host_build() {
	local release=$1 tree output
	tree=$(host_tree "$release")
	output=$(host_output "$release")
	host_missing "$release" "$tree"
	if [[ ${#MISSING[@]} -ne 0 ]]; then
		if [[ $UNFIT -ne 0 || ${RRXE_TOOLBOX:-} == no ]] || ! host_toolbox_fits "$release"; then host_refuse; fi
		toolbox_missing build
		[[ ${#TOOLBOX_MISSING[@]} -eq 0 ]] || refuse "${MISSING[@]}" "${TOOLBOX_MISSING[@]}"
		cache_try_make || true
		need_root "${ARGUMENTS[@]}"
	fi
	cache_make
	mkdir -p "$output" || die "can't write to $output"
	touch "$output/started" || die "can't write to $output: remove the directory by make clean"
	MODULE=$output/rrxe.ko
	if [[ ${#MISSING[@]} -ne 0 ]]; then
		host_toolbox_build "$release"
	else
		with_lock "host" host_make "$release" "$tree"
	fi
	mv "$output/started" "$output/built"
	give_to_caller "$output"
	say "built $MODULE"
}

# host_check RELEASE: dies with a sentence for each reason why host_build cannot build the module by
# the programs of this machine.
host_check() {
	host_missing "$1" "$(host_tree "$1")"
	[[ ${#MISSING[@]} -eq 0 ]] || refuse "${MISSING[@]}"
	say "the programs of this machine can build rrxe.ko for kernel $1"
}

# Dies with the sentences of MISSING.
host_refuse() {
	say "rrxe in a virtual machine needs no kernel of this machine: make demo"
	refuse "${MISSING[@]}"
}

# A stock Debian kernel: the toolbox has the compilers that built it, and makes the Rust metadata
# from the kernel's source.
host_toolbox_build() {
	local output=$MODULE
	# shellcheck disable=SC2034 # kernel_init reads it
	RRXE_KERNEL=$1
	module_build
	cp "$MODULE" "$output"
	MODULE=$output
}

# host_make RELEASE TREE: builds the module by the programs of this machine. MAKEFLAGS would pass the
# variables of `make install DESTDIR=…` on to the kernel's build.
host_make() {
	local release=$1 tree=$2
	[[ $METADATA == no ]] || host_metadata "$release" "$tree"
	env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make --no-print-directory -C "${HOST_TREE:-$tree}" -j"$(nproc)" \
		${HOST_TREE:+KBUILD_OUTPUT="$HOST_TREE"} KBUILD_EXTMOD_OUTPUT="$(host_output "$release")" M="$TOP" \
		"${HOST_MAKE[@]}" modules >&2 || die "the module did not build"
}

# host_metadata RELEASE TREE: sets HOST_TREE to a copy of the build tree with the Rust metadata.
host_metadata() {
	local release=$1 tree=$2 space
	HOST_TREE=$RRXE_CACHE/host/$release-$({
		echo "$RECIPE $SOURCE ${HOST_MAKE[*]}"
		cat "$tree/.config" "$tree/Module.symvers" "$TOP/tools/lib/kernel-tree"
	} | key)
	if [[ ! -e $HOST_TREE/complete ]]; then
		space=$(space_lack 4)
		[[ -z $space ]] || die "$space"
		say "making the Rust metadata of kernel $release from $SOURCE (about 2 minutes, once)"
		cache_directories "$RRXE_CACHE/host"
		logged "kernel-tree-$release" "$TOP/tools/lib/kernel-tree" "$HOST_TREE" "$release" "$tree" "$SOURCE" "${HOST_MAKE[@]}"
		touch "$HOST_TREE/complete"
		give_to_caller "$HOST_TREE"
	fi
	mark_used "$HOST_TREE/complete"
	HOST_TREE=$HOST_TREE/kbuild
}

# host_is_current RELEASE TREE: succeeds if the module was built from this source for this kernel.
# Then root, who may lack the user's compilers, installs it without a build.
host_is_current() {
	local output inputs=("$TOP"/{Kbuild,include,rust,drivers}) file
	output=$(host_output "$1")
	[[ -e $output/rrxe.ko && -e $output/built ]] || return 1
	for file in "$2/.config" "$2/Module.symvers"; do
		[[ ! -e $file ]] || inputs+=("$file")
	done
	[[ -z $(find "${inputs[@]}" -newer "$output/built" -print -quit) ]]
}

# Sets ROOT to the root of the file system for the module: DESTDIR, the staging directory of a
# package, and INSTALL_MOD_PATH, another root, in the kernel's sense. Sets DEPMOD to the command that
# updates the list of modules there. The list of a package is made when it is installed.
host_root() {
	local release=$1
	ROOT=${DESTDIR:-}${INSTALL_MOD_PATH:-}
	DEPMOD=(true)
	[[ -z ${DESTDIR:-} ]] || return 0
	ROOT=${ROOT:-$SYSTEM}
	DEPMOD=(depmod ${ROOT:+-b "$ROOT"} "$release")
	command -v depmod >/dev/null || die "the program depmod is not installed: $(install_command kmod kmod kmod)"
	[[ -d $ROOT/lib/modules/$release ]] ||
		die "kernel $release is not installed: $ROOT/lib/modules/$release is missing; set KVER to the release of an installed kernel"
}

host_install() {
	local release=$1 tree target
	tree=$(host_tree "$release")
	MISSING=()
	host_unfit "$release" "$tree"
	[[ ${#MISSING[@]} -eq 0 ]] || host_refuse
	host_root "$release"
	if host_is_current "$release" "$tree"; then
		MODULE=$(host_output "$release")/rrxe.ko
	else
		host_build "$release"
	fi
	target=$ROOT/lib/modules/$release/updates/rrxe.ko
	writing "$target" install -D -m 644 "$MODULE" "$target" || die "can't write $target"
	writing "$ROOT/lib/modules/$release" "${DEPMOD[@]}" || die "depmod failed for kernel $release"
	if [[ -n ${DESTDIR:-} ]]; then
		say "installed $target; the package has to run: depmod $release"
		return
	fi
	say "installed $target; load it with: modprobe rrxe"
	if [[ -z $ROOT ]] && grep -qE '\[(integrity|confidentiality)\]' /sys/kernel/security/lockdown 2>/dev/null; then
		say "this machine only loads signed modules (Secure Boot): sign $target with a key the machine trusts"
	fi
}

host_uninstall() {
	local release=$1 target
	host_root "$release"
	target=$ROOT/lib/modules/$release/updates/rrxe.ko
	if [[ ! -e $target ]]; then
		say "rrxe is not installed for kernel $release: there is no $target"
		return
	fi
	writing "$(dirname "$target")" rm -f "$target" || die "can't remove $target"
	writing "$ROOT/lib/modules/$release" "${DEPMOD[@]}" || die "depmod failed for kernel $release"
	say "removed rrxe from kernel $release"
	[[ -n $ROOT || ! -e /sys/module/rrxe ]] || say "it is still loaded: rmmod rrxe unloads it"
}
