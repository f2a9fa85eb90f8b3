// SPDX-License-Identifier: GPL-2.0

//! Sets of QPs. Each QP with rules has a number that is unique in its device.

use super::MAX_RULES;

const BITS: u32 = u64::BITS;

/// A set of numbers below [`MAX_RULES`]. A device has at most as many QPs with rules as rules.
#[derive(Debug)]
pub struct Numbers([u64; (MAX_RULES / BITS) as usize]);

impl Default for Numbers {
    fn default() -> Self {
        Self([0; (MAX_RULES / BITS) as usize])
    }
}

impl Numbers {
    /// Adds a number. Returns whether the set lacked it. Returns `false` for a number of
    /// [`MAX_RULES`] or more, which no QP has.
    pub fn insert(&mut self, number: u32) -> bool {
        let Some(word) = self.0.get_mut((number / BITS) as usize) else {
            return false;
        };
        let bit = 1_u64.wrapping_shl(number);
        let lacked = *word & bit == 0;
        *word |= bit;
        lacked
    }

    /// Returns the least number that isn't in the set, or `None` if the set is full.
    pub fn first_free(&self) -> Option<u32> {
        let has_free = |word: &u64| *word != u64::MAX;
        let index = self.0.iter().position(has_free)?;
        let ones = self.0.get(index)?.trailing_ones();
        Some((index as u32).saturating_mul(BITS).saturating_add(ones))
    }
}
