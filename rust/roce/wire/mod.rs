// SPDX-License-Identifier: GPL-2.0

//! The RoCEv2 wire format: the bytes from the end of the UDP header to the end of the datagram.
//!
//! A datagram is `headers ‖ payload ‖ pad ‖ ICRC`. The codec handles only the headers:
//! [`decode()`] turns their bytes into a [`packet::Packet`], [`packet::Packet::encode`] turns a
//! packet into bytes. The caller keeps payload and pad, and computes the ICRC ([`icrc`]) over all
//! parts.

pub mod aeth;
pub mod bytes;
mod decode;
mod encode;
pub mod grh;
pub mod icrc;
pub mod mad;
mod opcode;
pub mod packet;
#[cfg(test)]
mod tests;

pub use decode::{decode, decode_train, Decoded, DropReason};

/// UDP destination port of RoCEv2 (IBTA annex A17).
pub const UDP_PORT: u16 = 4791;

/// Number of bytes of the base transport header.
pub const BTH_LEN: usize = 12;

/// Number of bytes of the longest headers: those of an XRC atomic (BTH, XRCETH, AtomicETH).
pub const MAX_HEADER: usize = 44;

/// Number of bytes of the invariant CRC that ends each datagram.
pub const ICRC_LEN: usize = 4;

/// Maximum number of payload bytes of a packet.
pub const MAX_PAYLOAD: u32 = 4096;

/// Maximum length of a message in bytes (IBTA 1.x §9.7.1).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// The encoded headers of a packet.
pub type Header = bytes::Bytes<MAX_HEADER>;

/// Returns the number of zero bytes, 0–3, that fill a payload up to a multiple of 4 bytes.
pub const fn pad(payload_len: u32) -> u32 {
    payload_len.wrapping_neg() & 3
}
