// SPDX-License-Identifier: GPL-2.0

//! The invariant CRC that ends each RoCEv2 datagram (IBTA annex A17 §A17.3.3).
//!
//! The ICRC covers the IP header, UDP header, BTH, further headers, payload and pad. The fields
//! that a router may change are replaced by ones, and eight bytes of ones precede the IP header in
//! place of the local route header. The function is Ethernet's CRC-32. The ICRC is sent in the bit
//! order of Ethernet's CRC, the low byte first.

use super::{bytes::Bytes, BTH_LEN, ICRC_LEN};

/// Number of bytes of an IPv4 header without options, the only kind that RoCEv2 uses.
pub const IPV4_LEN: usize = 20;

/// Number of bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;

/// Number of bytes of a UDP header.
pub const UDP_LEN: usize = 8;

/// Value of the CRC register after the eight bytes of ones that replace the local route header.
const SEED: u32 = 0xdebb_20e3;

/// Maximum number of bytes after the BTH that are copied behind the headers, so that one call
/// computes the CRC of both. It is enough for a RETH and 64 bytes of payload.
const JOINED_MAX: usize = 80;

/// Offsets and bits of the IPv4 header that count as ones: type of service, time to live, checksum.
const IPV4_MASKS: [(usize, u8); 4] = [(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)];

/// Offsets and bits of the IPv6 header that count as ones: traffic class and flow label, which fill
/// the first word except for the version, and the hop limit.
const IPV6_MASKS: [(usize, u8); 5] = [(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)];

/// Offsets and bits of the UDP header that count as ones: the checksum.
const UDP_MASKS: [(usize, u8); 2] = [(6, 0xff), (7, 0xff)];

/// Offsets and bits of the BTH that count as ones: the fifth byte, which carries congestion marks.
const BTH_MASKS: [(usize, u8); 1] = [(4, 0xff)];

/// An unfinished CRC. The caller adds all bytes between BTH and ICRC in order, in pieces of any
/// size.
///
/// The host provides the CRC function. It takes the register and more bytes and returns the new
/// register, and inverts neither: reflected, polynomial 0xedb88320, as the kernel's `crc32_le`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icrc {
    register: u32,
}

impl Icrc {
    /// Starts with the headers of an IPv4 datagram and `next`, the first or all bytes after the
    /// BTH.
    pub fn start_v4(
        crc32: impl Fn(u32, &[u8]) -> u32,
        ip: &[u8; IPV4_LEN],
        udp: &[u8; UDP_LEN],
        bth: &[u8; BTH_LEN],
        next: &[u8],
    ) -> Self {
        let mut masked: Bytes<{ IPV4_LEN + UDP_LEN + BTH_LEN + JOINED_MAX }> = Bytes::new();
        masked.put_masked(ip, &IPV4_MASKS);
        masked.put_masked(udp, &UDP_MASKS);
        masked.put_masked(bth, &BTH_MASKS);
        Self::start(crc32, &mut masked, next)
    }

    /// Starts with the headers of an IPv6 datagram and `next`, the first or all bytes after the
    /// BTH.
    pub fn start_v6(
        crc32: impl Fn(u32, &[u8]) -> u32,
        ip: &[u8; IPV6_LEN],
        udp: &[u8; UDP_LEN],
        bth: &[u8; BTH_LEN],
        next: &[u8],
    ) -> Self {
        let mut masked: Bytes<{ IPV6_LEN + UDP_LEN + BTH_LEN + JOINED_MAX }> = Bytes::new();
        masked.put_masked(ip, &IPV6_MASKS);
        masked.put_masked(udp, &UDP_MASKS);
        masked.put_masked(bth, &BTH_MASKS);
        Self::start(crc32, &mut masked, next)
    }

    /// Starts the CRC. Each call of the CRC function has a fixed cost, so a `next` that fits is
    /// appended to the headers.
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

    /// Continues with a register that the host computed over bytes that it can't pass to
    /// [`Self::update`].
    pub const fn resume(register: u32) -> Self {
        Self { register }
    }

    /// Returns the current CRC register.
    pub const fn register(self) -> u32 {
        self.register
    }

    /// Adds the next bytes: headers after the BTH, payload or pad.
    pub fn update(&mut self, crc32: impl Fn(u32, &[u8]) -> u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.register = crc32(self.register, bytes);
        }
    }

    /// Returns the ICRC in the byte order of the datagram.
    pub const fn finish(self) -> [u8; ICRC_LEN] {
        (!self.register).to_le_bytes()
    }
}
