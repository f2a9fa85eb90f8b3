// SPDX-License-Identifier: GPL-2.0

//! Copies of payload to and from memory that a process may change at the same time.

use crate::bindings;

/// Smallest length in bytes from which `rep movsq` is quicker than the loop of `memcpy()`.
#[cfg(target_arch = "x86_64")]
const STRING_FROM: usize = 256;

/// Copies `len` bytes from `from` to `to`. Any context.
///
/// The kernel's `memcpy()` copies by a loop of moves on x86-64 CPUs without the feature
/// `X86_FEATURE_FSRM`, and in virtual machines that hide this feature of the CPU. There `rep movsq`
/// is as quick as the kernel's copies of whole pages. On other machines it is as quick as
/// `memcpy()`.
///
/// # Safety
///
/// `from` must be valid for reads of `len` bytes, and `to` for writes of `len` bytes. No Rust
/// reference to either range may exist. The ranges must not overlap.
#[inline]
pub(crate) unsafe fn copy_bytes(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STRING_FROM {
        let (to_end, from_end): (*mut u8, *const u8);
        // SAFETY: The caller guarantees that both ranges are valid for `len` bytes and do not
        // overlap (see `# Safety`). The direction flag is clear in the kernel. The instruction
        // accesses nothing but the two ranges.
        unsafe {
            core::arch::asm!(
                "rep movsq",
                inout("rcx") len / 8 => _,
                inout("rdi") to => to_end,
                inout("rsi") from => from_end,
                options(nostack, preserves_flags),
            );
        }
        // SAFETY: The remaining `len % 8` bytes are within the ranges that the caller guarantees to
        // be valid (see `# Safety`).
        unsafe { bindings::memcpy(to_end.cast(), from_end.cast(), len % 8) };
        return;
    }
    // SAFETY: The caller guarantees that both ranges are valid for `len` bytes and do not overlap
    // (see `# Safety`).
    unsafe { bindings::memcpy(to.cast(), from.cast(), len) };
}
