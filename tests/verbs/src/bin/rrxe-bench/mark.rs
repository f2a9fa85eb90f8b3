// SPDX-License-Identifier: GPL-2.0

//! Marks: instructions without effect by which QEMU's plugin tools/bench/count.c finds the
//! beginning and the end of a measured interval.

/// Number of the mark at which the counts of the plugin begin.
pub const BEGIN: u32 = 0;
/// Number of the mark at the end of a case. The marks of calls have this and the next numbers.
pub const END: u32 = 1;

/// Displacement of the mark `BEGIN`. The low 16 bits of a mark's displacement are its number.
#[cfg(target_arch = "x86_64")]
const MARK: u32 = 0x5278_0000;

/// Executes the mark `NUMBER`.
#[inline(always)]
pub fn mark<const NUMBER: u32>() {
    // SAFETY: The instruction accesses no memory and changes no register and no flag.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "nopl {displacement}(%rax)",
            displacement = const MARK + NUMBER,
            options(att_syntax, nostack, preserves_flags),
        );
    }
}
