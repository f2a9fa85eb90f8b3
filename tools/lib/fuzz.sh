# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Runs the fuzzer (tests/fuzz, tests/vm/hostile/fuzz.sh) in a guest.

# Fuzzes for MINUTES, rounded up to whole runs. A run takes five minutes, or MINUTES if less. Each
# run has a seed of its own, from SEED on. In every third run the module is removed from time to
# time (FUZZ_UNLOAD).
fuzz_run() {
	local minutes=${MINUTES:-10} seed=${SEED:-$(date +%s)} seconds runs index paired='' unloading=''
	seconds=$((minutes < 5 ? minutes * 60 : 300))
	runs=$(((minutes * 60 + seconds - 1) / seconds))
	for ((index = 0; index < runs; index++)); do
		if [[ $((index % 3)) -eq 2 ]]; then unloading+=,$((seed + index)); else paired+=,$((seed + index)); fi
	done
	if [[ -n ${COVERAGE:-} ]]; then
		fuzz_coverage $((minutes * 60)) "$seed"
		return
	fi
	say "fuzzing for $minutes minutes from seed $seed on"
	[[ $(type -t debug_kernel_init) == function ]] ||
		say "there is no debug kernel here: only the stock slab allocator checks memory"
	export RRXE_KERNEL_KIND=debug RRXE_APPEND="slub_debug=FZP,kmalloc-* ${RRXE_APPEND:-}" VCPUS=${VCPUS:-2} MEM=${MEM:-4G}
	export RRXE_ENV="FUZZ_SECONDS=$seconds FUZZ_SEEDS=${paired#,} FUZZ_UNLOAD=${unloading#,} ${RRXE_ENV:-}"
	export TIMEOUT=$((minutes * 60 + runs * 600 + 1200))
	vm_run "$TOP/tests/vm/hostile/fuzz.sh"
}

# fuzz_coverage SECONDS SEED: fuzzes once on the stock kernel, and prints the functions of the
# driver that did not run (tests/tools/coverage.py).
fuzz_coverage() {
	local seconds=$1 seed=$2 rc=0 translated output
	translated=$(mktemp -p "$RRXE_CACHE/logs" fuzz-coverage-XXXXXX)
	output=$(mktemp -p "$RRXE_CACHE/logs" fuzz-coverage-XXXXXX)
	export RRXE_ENV="FUZZ_SECONDS=$seconds FUZZ_SEEDS=$seed FUZZ_UNLOAD= FUZZ_COVERAGE=1 ${RRXE_ENV:-}"
	# The log of translated code needs QEMU's emulator (TCG), since KVM translates no code. The
	# address range of the filter is that of kernel modules.
	export ACCEL_ARGS="-accel tcg,thread=multi -cpu max" TIMEOUT=$((seconds + 900))
	export RRXE_QEMU_EXTRA="-d in_asm -dfilter 0xffffffffc0000000+0x10000000 -D $(inside "$translated")"
	vm_run "$TOP/tests/vm/hostile/fuzz.sh" >"$output" || rc=$?
	grep -v '^symbol: ' "$output"
	python3 "$TOP/tests/tools/coverage.py" "$translated" "$output"
	rm -f "$translated" "$output"
	return $rc
}
