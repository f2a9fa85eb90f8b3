// SPDX-License-Identifier: GPL-2.0

//! The RoCEv2 wire format: everything between the UDP header and the end of the datagram.
//!
//! A datagram is `headers ‖ payload ‖ pad ‖ ICRC`. Only the headers pass through this module:
//! [`decode()`] turns their bytes into a [`packet::Packet`], [`packet::Packet::encode`] turns a
//! packet into bytes. Payload and pad stay where they are, and the ICRC ([`icrc`]) is computed by
//! whoever holds all the pieces.

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

pub use decode::{decode, Decoded, DropReason};

/// The UDP destination port of RoCEv2 (IBTA annex A17).
pub const UDP_PORT: u16 = 4791;

/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;

/// Bytes of the longest headers: those of an XRC atomic (BTH, XRCETH, AtomicETH).
pub const MAX_HEADER: usize = 44;

/// Bytes of the invariant CRC that ends each datagram.
pub const ICRC_LEN: usize = 4;

/// Most payload bytes that a packet may carry.
pub const MAX_PAYLOAD: u32 = 4096;

/// Longest message in bytes (IBTA 1.x §9.7.1).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// The encoded headers of one packet.
pub type Header = bytes::Bytes<MAX_HEADER>;

/// Zero bytes that fill a payload up to whole 4-byte words: 0–3.
pub const fn pad(payload_len: u32) -> u32 {
    payload_len.wrapping_neg() & 3
}
