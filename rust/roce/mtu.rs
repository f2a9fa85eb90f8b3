// SPDX-License-Identifier: GPL-2.0

//! Path MTUs: the five sizes of the payload of a full packet.

/// A path MTU; the discriminants are those of `enum ib_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256 = 1,
    /// 512 bytes.
    Bytes512 = 2,
    /// 1,024 bytes.
    Bytes1024 = 3,
    /// 2,048 bytes.
    Bytes2048 = 4,
    /// 4,096 bytes.
    Bytes4096 = 5,
}

impl Mtu {
    const ALL: [Self; 5] = [
        Self::Bytes256,
        Self::Bytes512,
        Self::Bytes1024,
        Self::Bytes2048,
        Self::Bytes4096,
    ];

    /// Returns the MTU with this `enum ib_mtu` value, 1–5. Returns `None` for other values.
    pub fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == raw)
    }

    /// Returns the largest MTU of at most `bytes` bytes. Returns `None` below 256 bytes.
    pub fn fitting(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }

    /// Returns the MTU at which `bytes` bytes of payload take `count` packets, all full but the
    /// last one. Returns `None` if there is none.
    ///
    /// For more than one packet there is one such MTU at most: twice the MTU takes fewer packets.
    pub fn of_packets(bytes: u32, count: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|mtu| bytes != 0 && bytes.div_ceil(mtu.bytes()) == count)
    }

    /// Returns the number of payload bytes of a full packet.
    #[inline]
    pub const fn bytes(self) -> u32 {
        128u32 << (self as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_those_of_the_verbs() {
        let cases = [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)];
        for (raw, bytes) in cases {
            assert_eq!(Mtu::from_raw(raw).map(Mtu::bytes), Some(bytes));
        }
        assert_eq!(Mtu::from_raw(0), None);
        assert_eq!(Mtu::from_raw(6), None);
    }

    #[test]
    fn one_mtu_at_most_fits_a_number_of_packets() {
        for mtu in Mtu::ALL {
            for (bytes, count) in [(1, 2), (mtu.bytes(), 2), (7, 15), (mtu.bytes(), 30)] {
                let all = (count - 1) * mtu.bytes() + bytes;
                assert_eq!(Mtu::of_packets(all, count), Some(mtu));
            }
        }
        assert_eq!(Mtu::of_packets(4097, 1), None);
        assert_eq!(Mtu::of_packets(256, 2), None);
        assert_eq!(Mtu::of_packets(0, 0), None);
        assert_eq!(Mtu::of_packets(4096 * 3, 2), None);
    }

    #[test]
    fn fitting_rounds_down() {
        let cases = [
            (0, None),
            (255, None),
            (256, Some(Mtu::Bytes256)),
            (1023, Some(Mtu::Bytes512)),
            (1024, Some(Mtu::Bytes1024)),
            (4095, Some(Mtu::Bytes2048)),
            (u32::MAX, Some(Mtu::Bytes4096)),
        ];
        for (bytes, mtu) in cases {
            assert_eq!(Mtu::fitting(bytes), mtu, "{bytes}");
        }
    }
}
