// SPDX-License-Identifier: GPL-2.0

//! Copies of payload, in memory that a process may be changing.

use crate::bindings;

/// From so many bytes on the string instruction is quicker than the loop of `memcpy()`.
const STRING_FROM: usize = 256;

/// Copies `len` bytes. Any context.
///
/// `memcpy()` uses a loop of moves on CPUs that don't announce fast string operations, and in
/// machines that hide them; `rep movsq` is as quick there as page copies are, and as `memcpy()`
/// elsewhere.
///
/// # Safety
///
/// `from` must be valid for reads and `to` for writes of `len` bytes, no reference to either may
/// exist, and they must not overlap.
#[inline]
pub(crate) unsafe fn copy_bytes(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STRING_FROM {
        let (to_end, from_end): (*mut u8, *const u8);
        // SAFETY: As the caller promises; the direction flag is clear in the kernel, and the
        // instruction touches nothing but the two ranges.
        unsafe {
            core::arch::asm!(
                "rep movsq",
                inout("rcx") len / 8 => _,
                inout("rdi") to => to_end,
                inout("rsi") from => from_end,
                options(nostack, preserves_flags),
            );
        }
        // SAFETY: The rest of the same ranges.
        unsafe { bindings::memcpy(to_end.cast(), from_end.cast(), len % 8) };
        return;
    }
    // SAFETY: As the caller promises.
    unsafe { bindings::memcpy(to.cast(), from.cast(), len) };
}
