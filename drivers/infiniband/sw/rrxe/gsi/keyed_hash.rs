// SPDX-License-Identifier: GPL-2.0

//! A keyed hash. Who does not know the key finds no two inputs with the same hash, nor the same part of it, but by trying.

// `core` has no other name for SipHash-2-4.
#![expect(deprecated)]

use core::hash::{Hasher, SipHasher};

use rdma::support::random;

/// The key, which nobody else knows.
pub(super) struct Key([u64; 2]);

impl Key {
    /// One of its own.
    pub(super) fn new() -> Self {
        Self([random::next_u64(), random::next_u64()])
    }

    /// The hash of the parts, one behind the other.
    pub(super) fn hash(&self, parts: &[&[u8]]) -> u64 {
        let [first, second] = self.0;
        let mut hasher = SipHasher::new_with_keys(first, second);
        for part in parts {
            hasher.write(part);
        }
        hasher.finish()
    }
}
