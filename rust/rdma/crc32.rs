// SPDX-License-Identifier: GPL-2.0

//! The kernel's CRC-32, which the CPU computes as fast as it can.

use crate::bindings;

/// Continues the little-endian CRC-32 `seed` over `bytes` (`crc32_le()`; no inversion at either
/// end). Any context.
#[inline]
pub fn crc32_le(seed: u32, bytes: &[u8]) -> u32 {
    // SAFETY: The slice is valid for reads of its length.
    unsafe { bindings::crc32_le(seed, bytes.as_ptr().cast(), bytes.len()) }
}

/// As [`crc32_le`] over memory that may change meanwhile, such as a page of a process.
///
/// # Safety
///
/// `start` is valid for reads of `len` bytes.
#[inline]
pub(crate) unsafe fn crc32_le_raw(seed: u32, start: *const u8, len: usize) -> u32 {
    // SAFETY: The caller's promise. The callee is C, to which a change of the bytes only means
    // another sum.
    unsafe { bindings::crc32_le(seed, start.cast(), len) }
}
