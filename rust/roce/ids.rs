// SPDX-License-Identifier: GPL-2.0

//! Identifiers as newtypes, so that the compiler refuses one in place of another.

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// Number of the general service interface (QP1).
    pub const GSI: Self = Self(1);
    /// Destination QPN of multicast packets (IBTA 1.x §9.6.1).
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// Creates a number from the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & 0xff_ffff)
    }

    /// Returns the number, below 2²⁴.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The number of a shared receive queue of an XRC domain: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Srqn(u32);

impl Srqn {
    /// Creates a number from the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & 0xff_ffff)
    }

    /// Returns the number, below 2²⁴.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A partition key: a 15-bit number, and the membership in the top bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pkey(pub u16);

impl Pkey {
    /// The default partition, full member: the only entry of a RoCE port's table.
    pub const DEFAULT: Self = Self(0xffff);

    /// Returns whether both keys name the same partition. Ignores the top bit, the membership.
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & 0x7fff == 0
    }
}

/// A queue key, which a datagram must carry to be received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qkey(pub u32);

/// A remote key: names a memory region or window to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// A local key: names a memory region to its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);

/// Immediate data, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imm(pub u32);
