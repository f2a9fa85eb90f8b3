// SPDX-License-Identifier: GPL-2.0

//! Packet sequence numbers: 24-bit serial numbers (IBTA 1.x §9.7.2).

/// A packet sequence number, 24 bits. Its order is circular, so there is no `Ord`: see
/// [`Psn::since`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0xff_ffff;

    /// Creates a number from the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & Self::MASK)
    }

    /// Returns the number, below 2²⁴.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the number `n` packets later.
    pub const fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// Returns the number `n` packets earlier.
    pub const fn minus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// Returns the next number.
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Returns how far `self` is ahead of `other`, from −2²³ to 2²³−1. The result is
    /// negative if `self` is behind.
    pub const fn since(self, other: Self) -> i32 {
        // Shifting the 24-bit difference to the top and back extends its sign.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// Returns how many packets `self` comes after `earlier`, 0 … 2²⁴−1, counted forward
    /// round the circle. If `self` comes before `earlier`, the result is above 2²³−1.
    pub const fn ahead_of(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// Returns whether `self` comes before `other`.
    pub const fn before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// Returns the earlier one of two numbers.
    pub const fn earliest(self, other: Self) -> Self {
        match self.before(other) {
            true => self,
            false => other,
        }
    }

    /// Returns the later one of two numbers.
    pub const fn latest(self, other: Self) -> Self {
        match self.before(other) {
            true => other,
            false => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HALF: u32 = 1 << 23;

    #[test]
    fn order_at_the_edges() {
        let cases = [
            (0, 0xff_ffff, 1),
            (0xff_ffff, 0, -1),
            (5, 0xff_fffe, 7),
            (HALF - 1, 0, 0x7f_ffff),
            (HALF, 0, -0x80_0000),
            (0, HALF, -0x80_0000),
            (0, 0, 0),
        ];
        for (a, b, distance) in cases {
            assert_eq!(
                Psn::new(a).since(Psn::new(b)),
                distance,
                "{a:#x} since {b:#x}"
            );
        }
    }

    proptest! {
        #[test]
        fn the_latest_is_not_before_the_earliest(start: u32, n in 0..HALF) {
            let (start, end) = (Psn::new(start), Psn::new(start).plus(n));
            prop_assert_eq!((start.earliest(end), end.earliest(start)), (start, start));
            prop_assert_eq!((start.latest(end), end.latest(start)), (end, end));
        }

        #[test]
        fn since_undoes_plus_and_minus(start: u32, n in 0..HALF) {
            let start = Psn::new(start);
            prop_assert_eq!(start.plus(n).since(start), n as i32);
            prop_assert_eq!(start.minus(n).since(start), -(n as i32));
            prop_assert_eq!(start.plus(n).minus(n), start);
            prop_assert_eq!(start.before(start.plus(n)), n > 0);
            prop_assert!(start.plus(n).get() <= 0xff_ffff);
        }

        #[test]
        fn order_does_not_depend_on_where_the_numbers_lie(a: u32, b: u32, shift: u32) {
            let (a, b) = (Psn::new(a), Psn::new(b));
            prop_assert_eq!(a.since(b), a.plus(shift).since(b.plus(shift)));
        }
    }
}
