// SPDX-License-Identifier: GPL-2.0

//! The opcode byte of the BTH: three bits of transport and five of operation (IBTA 1.x §9.2.1,
//! table 38).

/// Transport bits.
pub(super) const RC: u8 = 0x00;
pub(super) const UC: u8 = 0x20;
pub(super) const UD: u8 = 0x60;
pub(super) const XRC: u8 = 0xa0;

/// Congestion notification packet, the only opcode of its transport (annex A17).
pub(super) const CNP: u8 = 0x81;

/// Mask of the transport bits of an opcode byte.
pub(super) const TRANSPORT: u8 = 0xe0;

/// Operation bits.
pub(super) const SEND_FIRST: u8 = 0x00;
pub(super) const SEND_MIDDLE: u8 = 0x01;
pub(super) const SEND_LAST: u8 = 0x02;
pub(super) const SEND_LAST_IMM: u8 = 0x03;
pub(super) const SEND_ONLY: u8 = 0x04;
pub(super) const SEND_ONLY_IMM: u8 = 0x05;
pub(super) const WRITE_FIRST: u8 = 0x06;
pub(super) const WRITE_MIDDLE: u8 = 0x07;
pub(super) const WRITE_LAST: u8 = 0x08;
pub(super) const WRITE_LAST_IMM: u8 = 0x09;
pub(super) const WRITE_ONLY: u8 = 0x0a;
pub(super) const WRITE_ONLY_IMM: u8 = 0x0b;
pub(super) const READ_REQUEST: u8 = 0x0c;
pub(super) const READ_RESPONSE_FIRST: u8 = 0x0d;
pub(super) const READ_RESPONSE_MIDDLE: u8 = 0x0e;
pub(super) const READ_RESPONSE_LAST: u8 = 0x0f;
pub(super) const READ_RESPONSE_ONLY: u8 = 0x10;
pub(super) const ACK: u8 = 0x11;
pub(super) const ATOMIC_ACK: u8 = 0x12;
pub(super) const COMPARE_SWAP: u8 = 0x13;
pub(super) const FETCH_ADD: u8 = 0x14;
pub(super) const SEND_LAST_INV: u8 = 0x16;
pub(super) const SEND_ONLY_INV: u8 = 0x17;
pub(super) const FLUSH: u8 = 0x1c;
pub(super) const ATOMIC_WRITE: u8 = 0x1d;

/// Returns whether the specification defines this operation for this transport.
///
/// Reliable datagrams (0x40) are obsolete and count as undefined. So does the CNP, for which the
/// caller checks first.
pub(super) const fn is_defined(transport: u8, operation: u8) -> bool {
    match transport {
        RC => matches!(
            operation,
            SEND_FIRST..=FETCH_ADD | SEND_LAST_INV | SEND_ONLY_INV | FLUSH | ATOMIC_WRITE
        ),
        UC => operation <= WRITE_ONLY_IMM,
        UD => matches!(operation, SEND_ONLY | SEND_ONLY_IMM),
        XRC => matches!(
            operation,
            SEND_FIRST..=FETCH_ADD | SEND_LAST_INV | SEND_ONLY_INV
        ),
        _ => false,
    }
}

/// Returns whether the operation is a response.
pub(super) const fn is_response(operation: u8) -> bool {
    matches!(operation, READ_RESPONSE_FIRST..=ATOMIC_ACK)
}
