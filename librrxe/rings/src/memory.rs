// SPDX-License-Identifier: GPL-2.0

//! Memory that is shared with the kernel.

use crate::sync::{AtomicU32, AtomicU64};

/// Shared memory of a fixed size, at least a page and aligned to one.
///
/// Each place in it is used in one width only.
pub trait Memory {
    /// The 32-bit word at `offset`, a multiple of 4; `None` beyond the end.
    fn word(&self, offset: usize) -> Option<&AtomicU32>;

    /// All 64-bit words from `offset` on, a multiple of 8; none beyond the end.
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

/// Two 32-bit fields as the 64-bit word that they lie in.
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    let (low, high) = if cfg!(target_endian = "little") {
        (first, second)
    } else {
        (second, first)
    };
    u64::from(high) << 32 | u64::from(low)
}

/// The two 32-bit fields of a 64-bit word.
pub(crate) fn split(long: u64) -> (u32, u32) {
    // Truncation is meant.
    let (low, high) = (long as u32, (long >> 32) as u32);
    if cfg!(target_endian = "little") {
        (low, high)
    } else {
        (high, low)
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod testing {
    //! Memory of the heap, for tests.

    use super::{AtomicU32, AtomicU64, Memory};

    /// Both widths side by side: no place is used in both.
    pub(crate) struct Heap {
        words: Vec<AtomicU32>,
        longs: Vec<AtomicU64>,
    }

    impl Heap {
        /// `size` bytes of zeros, of which 32-bit words are used among the first `words` bytes only.
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
