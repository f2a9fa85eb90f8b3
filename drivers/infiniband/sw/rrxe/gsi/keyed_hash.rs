// SPDX-License-Identifier: GPL-2.0

//! A keyed hash (SipHash-2-4). Without the key, an attacker finds inputs whose hashes agree, wholly
//! or in some bits, by trial only.

// `core` has no other name for SipHash-2-4.
#![expect(deprecated)]

use core::hash::{Hasher, SipHasher};

use rdma::support::random;

/// A random key, which never leaves the kernel.
pub(super) struct Key([u64; 2]);

impl Key {
    /// Creates a random key.
    pub(super) fn new() -> Self {
        Self([random::next_u64(), random::next_u64()])
    }

    /// Returns the hash of the concatenated parts.
    pub(super) fn hash(&self, parts: &[&[u8]]) -> u64 {
        let [first, second] = self.0;
        let mut hasher = SipHasher::new_with_keys(first, second);
        for part in parts {
            hasher.write(part);
        }
        hasher.finish()
    }
}
