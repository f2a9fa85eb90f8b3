// SPDX-License-Identifier: GPL-2.0

//! Queries of the state of CPUs.

use kernel::cpu::CpuId;

use crate::bindings;

/// Returns whether `cpu` is online (`cpu_online()`, include/linux/cpumask.h).
///
/// Callable in any context. The result `true` holds for as long as the caller has bottom halves
/// disabled.
pub(crate) fn is_online(cpu: CpuId) -> bool {
    // SAFETY: By the type invariant of `CpuId` the number is less than `nr_cpu_ids`, as
    // `cpu_online()` requires.
    unsafe { bindings::cpu_online(cpu.as_u32()) }
}
