// SPDX-License-Identifier: GPL-2.0

//! The invariant CRC that ends each RoCEv2 datagram (IBTA annex A17 §A17.3.3).
//!
//! It covers the IP header, UDP header, BTH, further headers, payload and pad, with the fields
//! that a router may change taken as ones, behind eight bytes of ones in place of the local route
//! header. It is Ethernet's CRC-32 and travels in that CRC's bit order, the low byte first.

use super::{bytes::Bytes, BTH_LEN, ICRC_LEN};

/// Bytes of an IPv4 header without options, the only kind that RoCEv2 uses.
pub const IPV4_LEN: usize = 20;

/// Bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;

/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;

/// The CRC register behind the eight bytes of ones that stand in for the local route header.
const SEED: u32 = 0xdebb_20e3;

/// What follows the BTH is summed in one go with the headers if it is no longer: a READ request, 64
/// bytes of payload.
const NEAR: usize = 80;

/// Which bits of which bytes are taken as ones. Of IPv4: type of service, time to live, checksum.
const IPV4_MASKS: [(usize, u8); 4] = [(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)];

/// Of IPv6: traffic class and flow label, which fill all of the first word but the version; hop limit.
const IPV6_MASKS: [(usize, u8); 5] = [(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)];

/// Of UDP: the checksum.
const UDP_MASKS: [(usize, u8); 2] = [(6, 0xff), (7, 0xff)];

/// Of the BTH: the fifth byte, which carries congestion marks.
const BTH_MASKS: [(usize, u8); 1] = [(4, 0xff)];

/// A CRC under way: feed it everything between BTH and ICRC in order, in pieces of any size.
///
/// The CRC function is the host's. It takes the register and more bytes and returns the register,
/// without inverting anything: reflected, polynomial 0xedb88320; the kernel's `crc32_le`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icrc {
    register: u32,
}

impl Icrc {
    /// Starts with the headers of an IPv4 datagram and `next`, all or some of what follows the BTH.
    pub fn start_v4(
        crc32: impl Fn(u32, &[u8]) -> u32,
        ip: &[u8; IPV4_LEN],
        udp: &[u8; UDP_LEN],
        bth: &[u8; BTH_LEN],
        next: &[u8],
    ) -> Self {
        let mut masked: Bytes<{ IPV4_LEN + UDP_LEN + BTH_LEN + NEAR }> = Bytes::new();
        masked.put_masked(ip, &IPV4_MASKS);
        masked.put_masked(udp, &UDP_MASKS);
        masked.put_masked(bth, &BTH_MASKS);
        Self::start(crc32, &mut masked, next)
    }

    /// As [`Self::start_v4`] with the headers of an IPv6 datagram.
    pub fn start_v6(
        crc32: impl Fn(u32, &[u8]) -> u32,
        ip: &[u8; IPV6_LEN],
        udp: &[u8; UDP_LEN],
        bth: &[u8; BTH_LEN],
        next: &[u8],
    ) -> Self {
        let mut masked: Bytes<{ IPV6_LEN + UDP_LEN + BTH_LEN + NEAR }> = Bytes::new();
        masked.put_masked(ip, &IPV6_MASKS);
        masked.put_masked(udp, &UDP_MASKS);
        masked.put_masked(bth, &BTH_MASKS);
        Self::start(crc32, &mut masked, next)
    }

    /// Starting a CRC costs the host more than going on does: a short piece is joined to the headers.
    fn start<const N: usize>(
        crc32: impl Fn(u32, &[u8]) -> u32,
        masked: &mut Bytes<N>,
        next: &[u8],
    ) -> Self {
        let joined = masked.join(next);
        let register = crc32(SEED, masked);
        Self {
            register: if joined {
                register
            } else {
                crc32(register, next)
            },
        }
    }

    /// Goes on with a register that the host computed over bytes it can't lend.
    pub const fn resume(register: u32) -> Self {
        Self { register }
    }

    /// The CRC register as it stands.
    pub const fn register(self) -> u32 {
        self.register
    }

    /// Takes in the next bytes: headers behind the BTH, payload or pad.
    pub fn update(&mut self, crc32: impl Fn(u32, &[u8]) -> u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.register = crc32(self.register, bytes);
        }
    }

    /// The ICRC as it stands in the datagram.
    pub const fn finish(self) -> [u8; ICRC_LEN] {
        (!self.register).to_le_bytes()
    }
}
