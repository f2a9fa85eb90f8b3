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
        let [version, _tos, l0, l1, id0, id1, f0, f1, _ttl, protocol, _sum0, _sum1, rest @ ..] =
            *ip;
        let mut masked: Bytes<{ IPV4_LEN + UDP_LEN + BTH_LEN + NEAR }> = Bytes::new();
        masked.put([version, 0xff, l0, l1, id0, id1, f0, f1]);
        masked.put([0xff, protocol, 0xff, 0xff]);
        masked.put::<8>(rest);
        put_udp_bth(&mut masked, udp, bth);
        Self::start(crc32, masked, next)
    }

    /// As [`Self::start_v4`] with the headers of an IPv6 datagram.
    pub fn start_v6(
        crc32: impl Fn(u32, &[u8]) -> u32,
        ip: &[u8; IPV6_LEN],
        udp: &[u8; UDP_LEN],
        bth: &[u8; BTH_LEN],
        next: &[u8],
    ) -> Self {
        let [version, _, _, _, l0, l1, protocol, _hop_limit, addresses @ ..] = *ip;
        let mut masked: Bytes<{ IPV6_LEN + UDP_LEN + BTH_LEN + NEAR }> = Bytes::new();
        // Traffic class and flow label fill all of the first word but the version.
        masked.put([version | 0x0f, 0xff, 0xff, 0xff]);
        masked.put([l0, l1, protocol, 0xff]);
        masked.put::<32>(addresses);
        put_udp_bth(&mut masked, udp, bth);
        Self::start(crc32, masked, next)
    }

    /// Starting a CRC costs the host more than going on does: a short piece is joined to the headers.
    fn start<const N: usize>(
        crc32: impl Fn(u32, &[u8]) -> u32,
        mut masked: Bytes<N>,
        next: &[u8],
    ) -> Self {
        let joined = masked.join(next);
        let register = crc32(SEED, &masked);
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

/// The UDP checksum and the BTH's fifth byte, which carries congestion marks, are taken as ones.
fn put_udp_bth<const N: usize>(masked: &mut Bytes<N>, udp: &[u8; UDP_LEN], bth: &[u8; BTH_LEN]) {
    let [s0, s1, d0, d1, l0, l1, _sum0, _sum1] = *udp;
    masked.put([s0, s1, d0, d1, l0, l1, 0xff, 0xff]);
    let [opcode, flags, pkey0, pkey1, _congestion, rest @ ..] = *bth;
    masked.put([opcode, flags, pkey0, pkey1, 0xff]);
    masked.put::<7>(rest);
}
