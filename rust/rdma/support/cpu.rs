// SPDX-License-Identifier: GPL-2.0

//! CPUs.

use kernel::cpu::CpuId;

use crate::bindings;

/// Whether `cpu` is online, and stays so while bottom halves are off. Any context.
pub(crate) fn is_online(cpu: CpuId) -> bool {
    // SAFETY: By its type invariant it is a CPU number that there may be.
    unsafe { bindings::cpu_online(cpu.as_u32()) }
}
