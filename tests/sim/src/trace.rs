// SPDX-License-Identifier: GPL-2.0

//! The history of one simulation: a hash, which must be equal for two simulations of one seed, and
//! text that is printed if the user asks for it (`--trace`).

/// The history of one simulation.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    /// Whether to print the text.
    pub(crate) print: bool,
}

impl Trace {
    pub(crate) fn new(print: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            print,
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Adds a number to the hash.
    pub(crate) fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Adds bytes to the hash.
    pub(crate) fn mix_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// If `print` is set, prints a line with the time `now` (nanoseconds) and the result of `text`.
    pub(crate) fn line(&self, now: u64, text: impl FnOnce() -> String) {
        if self.print {
            println!("{:>8}.{:03} us  {}", now / 1000, now % 1000, text());
        }
    }
}
