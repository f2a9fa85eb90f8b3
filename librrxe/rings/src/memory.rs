// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Access to memory that the process shares with the kernel.

use crate::sync::{AtomicU32, AtomicU64};

/// Shared memory of a fixed size, aligned to a page.
///
/// Each location is accessed in one width only, either 32 or 64 bits.
pub trait Memory {
    /// Returns the 32-bit word at `offset` (in bytes, a multiple of 4), or `None` beyond the end.
    fn word(&self, offset: usize) -> Option<&AtomicU32>;

    /// Returns all 64-bit words from `offset` (in bytes, a multiple of 8) on. Returns an empty
    /// slice beyond the end.
    fn longs(&self, offset: usize) -> &[AtomicU64];
}

impl<M: Memory> Memory for std::sync::Arc<M> {
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        (**self).word(offset)
    }

    fn longs(&self, offset: usize) -> &[AtomicU64] {
        (**self).longs(offset)
    }
}

/// Returns the 64-bit word that holds two consecutive 32-bit fields.
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    let (low, high) = if cfg!(target_endian = "little") {
        (first, second)
    } else {
        (second, first)
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Returns the two consecutive 32-bit fields of a 64-bit word.
pub(crate) fn split(long: u64) -> (u32, u32) {
    // The truncation is intended.
    let (low, high) = (long as u32, (long >> 32) as u32);
    if cfg!(target_endian = "little") {
        (low, high)
    } else {
        (high, low)
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod testing {
    //! Memory on the heap, for tests.

    use super::{AtomicU32, AtomicU64, Memory};

    /// Memory with separate words of both widths: no location is accessed in both.
    pub(crate) struct Heap {
        words: Vec<AtomicU32>,
        longs: Vec<AtomicU64>,
    }

    impl Heap {
        /// Creates memory of `size` bytes with the value zero. Its 32-bit words are those of the
        /// first `words` bytes.
        pub(crate) fn new(words: usize, size: usize) -> Self {
            Self {
                words: (0..words / 4).map(|_| AtomicU32::new(0)).collect(),
                longs: (0..size / 8).map(|_| AtomicU64::new(0)).collect(),
            }
        }
    }

    impl Memory for Heap {
        fn word(&self, offset: usize) -> Option<&AtomicU32> {
            self.words.get(offset / 4)
        }

        fn longs(&self, offset: usize) -> &[AtomicU64] {
            self.longs.get(offset / 8..).unwrap_or_default()
        }
    }
}
