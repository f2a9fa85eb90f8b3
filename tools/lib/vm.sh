# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Runs a script in a virtual machine with the kernel of kernel_init and a Debian root with RDMA
# tools.

readonly GUEST_BASE=(
	rdma-core ibverbs-providers ibverbs-utils perftest rdmacm-utils python3-pyverbs
	iproute2 ethtool kmod procps iputils-ping tcpdump strace iperf3 iptables nftables
)

# Packages of guests whose first process is systemd.
readonly SYSTEMD_PACKAGES=(systemd systemd-sysv udev)

# Sets ACCEL to QEMU's acceleration arguments: ACCEL_ARGS if it is set, else those of KVM if
# kvm_probe booted the kernel by KVM since the host was booted, else those of the emulator (TCG).
accel_init() {
	local state
	if [[ -n ${ACCEL_ARGS:-} ]]; then
		read -ra ACCEL <<<"$ACCEL_ARGS"
		return
	fi
	if ! is_native; then
		# A core of many cloud machines. Its features don't slow down the emulator, as those of the CPU
		# "max" do.
		ACCEL=(-accel 'tcg,thread=multi' -cpu "${CPU:-neoverse-n1}")
		return
	fi
	state=$RRXE_CACHE/state/kvm-$(</proc/sys/kernel/random/boot_id)
	[[ -e $state ]] || with_lock kvm kvm_probe "$state"
	if [[ $(<"$state") == yes ]]; then
		ACCEL=(-accel kvm -cpu "${CPU:-host}")
	else
		ACCEL=(-accel 'tcg,thread=multi' -cpu "${CPU:-max}")
	fi
}

# kvm_probe FILE: writes to FILE whether KVM works here. It boots the kernel with the parameter
# guest.probe, with which the initramfs powers off at once. The device node /dev/kvm proves too
# little: in nested machines the boot may hang early.
kvm_probe() {
	local state=$1 works=no
	if [[ -e $state ]]; then return; fi
	if [[ -w /dev/kvm ]] && in_toolbox timeout -s KILL 4 qemu-system-x86_64 -accel kvm -cpu host -m 512M \
		-nodefaults -no-user-config -display none -no-reboot -kernel "$(inside "$BOOT/vmlinux")" \
		-initrd "$(inside "$BOOT/initramfs")" -append 'guest.probe quiet panic=-1' >/dev/null 2>&1; then
		works=yes
	fi
	rm -f "$RRXE_CACHE"/state/kvm-*
	echo $works >"$state"
	say "KVM works here: $works"
}

# Makes the boot files (tools/vm/make-boot) if they are not cached; sets BOOT to their directory.
boot_init() {
	BOOT=$RRXE_CACHE/boot/$(basename "$KERNEL")-$(cat "$TOP"/tools/vm/{make-boot,initramfs-init} | key)
	[[ -e $BOOT/complete ]] || with_lock boot boot_make
	mark_used "$BOOT/complete"
}

boot_make() {
	[[ ! -e $BOOT/complete ]] || return 0
	say "making the guest's kernel image"
	logged boot in_toolbox tools/vm/make-boot "$(inside "$BOOT")" "$(inside "$KERNEL/root")" "$RELEASE"
	touch "$BOOT/complete"
}

# Makes the guest's root image of GUEST_SUITE, with the packages of GUEST_BASE and GUEST_PACKAGES,
# if it is not cached; sets GUEST to its path.
guest_init() {
	local names=("${GUEST_BASE[@]}") packages suite=${GUEST_SUITE:-$SUITE}
	[[ ${RRXE_INIT:-} != systemd ]] || names+=("${SYSTEMD_PACKAGES[@]}")
	# shellcheck disable=SC2086 # a list of words
	packages=$(printf '%s\n' "${names[@]}" ${GUEST_PACKAGES:-} | LC_ALL=C sort -u | paste -sd,)
	GUEST=$RRXE_CACHE/guest/$({
		echo "$RECIPE $suite $packages$ARCH_SUFFIX"
		cat "$TOP/tools/vm/make-guest"
	} | key).erofs
	[[ -e $GUEST ]] || with_lock guest guest_make "$suite" "$packages"
	mark_used "$GUEST"
}

guest_make() {
	local suite=$1 packages=$2 mirror aux
	[[ ! -e $GUEST ]] || return 0
	say "making the guest's root image, Debian $suite (about 1 minute, once${GUEST_PACKAGES:+ for these GUEST_PACKAGES})"
	aux=$(mktemp -d -p "$RRXE_CACHE/tmp")
	mkdir -p "$RRXE_CACHE/guest"
	host_apt_options >"$aux/apt.conf"
	mirror=$(debian_mirror)
	if [[ $suite == "$SUITE" ]]; then apt_sources "$mirror"; else echo "deb $mirror $suite main"; fi >"$aux/sources"
	logged guest retry in_toolbox tools/vm/make-guest "$(inside "$GUEST")" \
		"$(inside "$aux/apt.conf")" "$(inside "$aux/sources")" "$suite" "$packages" "$ARCH"
	rm -rf "$aux"
}

# payload_fill STAGE SCRIPT: fills a directory with the files of one run: the script, the provider
# library, the test programs, the tests of this repository and of the kernel, RRXE_PAYLOAD, and the
# environment.
payload_fill() {
	local stage=$1 script=$2 path
	mkdir -p "$stage"/{payload/bin,usr/lib/rrxe,"$PROVIDERS"}
	cp "$TOP"/tools/vm/{guest-init,kernel-leaks} "$stage/usr/lib/rrxe/"
	grep -v '^#' "$TOP/tools/vm/splats" >"$stage/usr/lib/rrxe/splats"
	[[ ! -d $TOP/tests ]] || tar -C "$TOP" -c --exclude=target tests | tar -C "$stage/payload" -x
	# librrxe lies beside the stock provider. Programs choose it by RDMAV_DRIVERS=rrxe.
	cp "$PROVIDER" "$stage/$PROVIDERS/"
	cp "$TOP/tools/lib/provider-install" "$stage/payload/bin/"
	[[ ! -e $TOP/tools/rrxe-guard.nft ]] || cp "$TOP/tools/rrxe-guard.nft" "$stage/payload/"
	cp "$TOP"/cli/rrxe.[78] "$TOP/librrxe/librrxe.7" "$TOP/Documentation/troubleshooting.rst" "$stage/payload/"
	find "$PROGRAMS" -maxdepth 1 \( -name rrxe -o -name 'rrxe-*' \) -type f -perm -u+x -exec cp {} "$stage/payload/bin/" \;
	[[ ${RRXE_INIT:-} != systemd ]] || payload_add_systemd "$stage"
	# The kernel's own RDMA selftests, and the library that they source.
	mkdir "$stage/payload/selftests"
	cp -r "$KERNEL"/source/tools/testing/selftests/{rdma,kselftest} "$stage/payload/selftests/"
	for path in ${RRXE_PAYLOAD:-}; do cp -a "$path" "$stage/payload/"; done
	{
		printf 'export %s\n' "TYPE=${TYPE:-rrxe}"
		for path in ${RRXE_ENV:-}; do printf 'export %q\n' "$path"; done
	} >"$stage/payload/environment"
	if [[ $script == "$TOP"/tests/* ]]; then
		echo "/payload${script#"$TOP"}" >"$stage/payload/run"
	else
		cp "$script" "$stage/payload/"
		chmod +x "$stage/payload/$(basename "$script")"
		echo "/payload/$(basename "$script")" >"$stage/payload/run"
	fi
}

# payload_add_systemd STAGE: adds the service that runs the script, and the files of `make
# install-tools`.
payload_add_systemd() {
	local units=$1/usr/lib/systemd/system
	touch "$1/payload/systemd"
	mkdir -p "$units/multi-user.target.wants"
	cp "$TOP/tools/vm/guest-script.service" "$units/"
	ln -s ../guest-script.service "$units/multi-user.target.wants/"
	in_toolbox tools/lib/command-install install "$(inside "$PROGRAMS/rrxe")" "$(inside "$1")" /usr/local
}

# vm_run SCRIPT: builds all parts, boots a guest, runs the script in it, and returns its exit
# status.
vm_run() {
	local script stage console rc=0 mem=3G timeout=300
	script=$(readlink -f "$1")
	kernel_init
	# The debug kernel needs more: KASAN's shadow takes an eighth of the memory, and each memory
	# access of the kernel takes some more instructions.
	[[ ${RRXE_KERNEL_KIND:-stock} == stock ]] || { mem=4G timeout=1200; }
	boot_init
	guest_init
	accel_init
	programs_build
	provider_build "${GUEST_SUITE:-$SUITE}"
	[[ ${RRXE_MODULE:-} == none || ! -e $TOP/Kbuild ]] || module_build

	stage=$(mktemp -d -p "$RRXE_CACHE/tmp" "vm-$(basename "$script" .sh)-XXXXXX")
	console=$RRXE_CACHE/logs/$(basename "$stage").console
	payload_fill "$stage/root" "$script"
	# The lock admits one machine at a time, or one for each RRXE_SLOT. More emulated machines
	# would starve each other of CPUs, and timers would expire.
	with_lock "machine${RRXE_SLOT:+-$RRXE_SLOT}" in_toolbox env "RRXE_ARCH=$ARCH" "RRXE_QEMU_EXTRA=${RRXE_QEMU_EXTRA:-}" tools/vm/launch "$(inside "$stage")" "$(inside "$BOOT")" \
		"$(inside "$GUEST")" "$RELEASE" "${MODULE:+$(inside "$MODULE")}" "$(inside "$console")" "$console" \
		"${VCPUS:-2}" "${MEM:-$mem}" "${TIMEOUT:-$timeout}" "${ACCEL[@]}" || rc=$?
	rm -rf "$stage"
	# Removes files of old and interrupted runs.
	find "$RRXE_CACHE/logs" -name 'vm-*' -mtime +3 -delete
	find "$RRXE_CACHE/tmp" -mindepth 1 -maxdepth 1 -mtime +1 -exec rm -rf {} +
	return $rc
}

demo_run() {
	local log=$RRXE_CACHE/logs/demo.log rc=0 why
	TIMEOUT=${TIMEOUT:-600}
	vm_run "$TOP/tools/demo.sh" | tee "$log" || rc=$?
	if [[ $rc -eq 0 ]]; then
		say "the demo worked; its output is in $log"
		return
	fi
	why=$(sed -n 's/^The demo failed: //p' "$log")
	[[ -n $why || $rc -ne 124 ]] || why="it did not end within $TIMEOUT s."
	die "the demo failed: ${why:-the guest broke down or was never started, see above.}" \
		"Its output is in $log, the guest's console in" \
		"$(find "$RRXE_CACHE/logs" -name 'vm-demo-*' -printf '%T@ %p\n' | sort -n | sed -n '$s/.* //p')."
}
