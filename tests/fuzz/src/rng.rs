// SPDX-License-Identifier: GPL-2.0

//! A pseudorandom number generator (SplitMix64). The seed determines the sequence.

/// A pseudorandom number generator.
pub struct Rng(u64);

impl Rng {
    /// Creates a generator. Each sequence of `names` gives another generator for the same `seed`.
    pub fn new(seed: u64, names: &[u64]) -> Self {
        let mut state = seed;
        for name in names {
            state = Self(state ^ name.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next();
        }
        Self(state)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next 32 bits.
    pub fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// A number less than `end`. An `end` of zero counts as 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A random index of a sequence of `len` elements.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with a probability of 1 in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A random element of `from`.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// A number that code is likely to handle wrongly: a limit, a power of two, a power of two less
    /// one, a small number, or a random one.
    pub fn edge_value(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::from(u32::MAX),
            3 => 1 << self.below(64),
            4 => (1u64 << self.below(64)).wrapping_sub(1),
            5 => self.below(64),
            6 => self.next() >> self.below(64),
            _ => self.next(),
        }
    }
}
