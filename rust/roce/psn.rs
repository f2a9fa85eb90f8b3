// SPDX-License-Identifier: GPL-2.0

//! Packet sequence numbers: 24-bit serial numbers (IBTA 1.x §9.7.2).

/// A packet sequence number. It wraps, so it has no `Ord`: compare with [`Psn::since`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0xff_ffff;

    /// Keeps the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & Self::MASK)
    }

    /// The number, below 2²⁴.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `n` packets later.
    pub const fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// The number `n` packets earlier.
    pub const fn minus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// The next number.
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// How far `self` is ahead of `other`: −2²³ … 2²³−1, negative if it is behind.
    pub const fn since(self, other: Self) -> i32 {
        // Shifting the 24-bit difference to the top and back extends its sign.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// `self` comes before `other`.
    pub const fn before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}
