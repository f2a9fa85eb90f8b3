// SPDX-License-Identifier: GPL-2.0

//! Sets of QPs: each QP that has rules has a number, which no other QP of the device has.

use super::MAX_RULES;

const BITS: u32 = u64::BITS;

/// A set of numbers below [`MAX_RULES`]. There are no more QPs that have rules than rules.
#[derive(Debug)]
pub struct Numbers([u64; (MAX_RULES / BITS) as usize]);

impl Default for Numbers {
    fn default() -> Self {
        Self([0; (MAX_RULES / BITS) as usize])
    }
}

impl Numbers {
    /// Adds a number. Returns whether the set lacked it; `false` also of a number that no QP has.
    pub fn insert(&mut self, number: u32) -> bool {
        let Some(word) = self.0.get_mut((number / BITS) as usize) else {
            return false;
        };
        let bit = 1_u64.wrapping_shl(number);
        let lacked = *word & bit == 0;
        *word |= bit;
        lacked
    }

    /// The least number that the set lacks; `None` if it has all.
    pub fn first_free(&self) -> Option<u32> {
        let has_free = |word: &u64| *word != u64::MAX;
        let index = self.0.iter().position(has_free)?;
        let ones = self.0.get(index)?.trailing_ones();
        Some((index as u32).saturating_mul(BITS).saturating_add(ones))
    }
}
