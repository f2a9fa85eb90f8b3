# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The fuzzer (tests/fuzz) for as long as one likes.

# MINUTES of it from SEED on, in runs of at most five minutes with a seed each; in every third the module is removed at times.
fuzz_run() {
	local minutes=${MINUTES:-10} seed=${SEED:-$(date +%s)} seconds runs index paired='' unloading=''
	seconds=$((minutes < 5 ? minutes * 60 : 300))
	runs=$(((minutes * 60 + seconds - 1) / seconds))
	for ((index = 0; index < runs; index++)); do
		if [[ $((index % 3)) -eq 2 ]]; then unloading+=,$((seed + index)); else paired+=,$((seed + index)); fi
	done
	say "fuzzing for $minutes minutes from seed $seed on"
	[[ $(type -t debug_kernel_init) == function ]] ||
		say "there is no debug kernel here: the stock one's slab allocator alone checks what it does"
	export RRXE_KERNEL_KIND=debug RRXE_APPEND="slub_debug=FZP,kmalloc-* ${RRXE_APPEND:-}" VCPUS=${VCPUS:-2} MEM=${MEM:-4G}
	export RRXE_ENV="FUZZ_SECONDS=$seconds FUZZ_SEEDS=${paired#,} FUZZ_UNLOAD=${unloading#,} FUZZ_COVERAGE=1 ${RRXE_ENV:-}"
	export TIMEOUT=$((minutes * 60 + runs * 120 + 900))
	vm_run "$TOP/tests/vm/fuzz.sh"
}
