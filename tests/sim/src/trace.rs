// SPDX-License-Identifier: GPL-2.0

//! The history of a run: a hash, which must be equal for two runs of one seed, and text on demand.

/// The history of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
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

    pub(crate) fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    pub(crate) fn mix_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// Prints a line in trace mode. The text is created only then.
    pub(crate) fn line(&self, now: u64, text: impl FnOnce() -> String) {
        if self.print {
            println!("{:>8}.{:03} us  {}", now / 1000, now % 1000, text());
        }
    }
}
