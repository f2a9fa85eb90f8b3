// SPDX-License-Identifier: GPL-2.0

//! Path MTUs: the five payload sizes that a packet may be cut to.

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

    /// The MTU of this `enum ib_mtu` value.
    pub fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == raw)
    }

    /// The largest MTU of at most `bytes` bytes of payload.
    pub fn fitting(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128u32 << (self as u32)
    }
}
