// SPDX-License-Identifier: GPL-2.0

//! Checks of the order and the lengths of the packets of a message (IBTA 1.x §9.7.4.1.2,
//! §9.7.4.1.6).

use crate::ids::Imm;
use crate::mtu::Mtu;
use crate::wire::packet::{AtomicEth, NakCode, Reth, SendPart, WritePart};
use crate::wire::MAX_MESSAGE;
use crate::wr::{FlushKind, SendExtra};

/// The message of which some packets were carried out and more must arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// There is no such message. The next packet must start one.
    None,
    /// A SEND of which `received` bytes have arrived.
    Send { received: u32 },
    /// An RDMA WRITE of which `received` bytes have arrived.
    Write { reth: Reth, received: u32 },
}

/// A packet, or a train of packets, that fits its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment<T> {
    /// Offset of its payload in the message, in bytes.
    pub(super) offset: u32,
    /// The immediate data or key of the message's last packet. `None` if more packets must follow.
    pub(super) end: Option<T>,
    /// Number of bytes of the message up to the end of the packet or train.
    pub(super) received: u32,
}

/// The place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    First,
    Middle,
    Last,
    Only,
}

impl Place {
    /// Returns whether the payload length of a train of `count` packets fits the place. FIRST and
    /// MIDDLE packets are full, LAST ones are not empty, and none is longer than the MTU.
    fn admits(self, payload_len: u32, count: u32, mtu: Mtu) -> bool {
        let full = count.saturating_mul(mtu.bytes());
        let before_last = full.saturating_sub(mtu.bytes());
        match self {
            Self::First | Self::Middle => payload_len == full,
            Self::Only if count == 1 => payload_len <= full,
            Self::Last | Self::Only => payload_len > before_last && payload_len <= full,
        }
    }

    /// Returns whether the packet starts a message.
    const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }
}

impl Message {
    /// Checks that a train of `count` packets of a SEND continues or starts a message.
    ///
    /// # Errors
    ///
    /// Returns `InvalidRequest` if the order or the length is wrong.
    pub(super) fn check_send(
        self,
        part: SendPart,
        payload_len: u32,
        count: u32,
        mtu: Mtu,
    ) -> Result<Segment<SendExtra>, NakCode> {
        let (place, end) = match part {
            SendPart::First => (Place::First, None),
            SendPart::Middle => (Place::Middle, None),
            SendPart::Last(extra) => (Place::Last, Some(extra)),
            SendPart::Only(extra) => (Place::Only, Some(extra)),
        };
        let offset = match (self, place.starts()) {
            (Self::None, true) => 0,
            (Self::Send { received }, false) => received,
            _ => return Err(NakCode::InvalidRequest),
        };
        let received = checked_total(offset, payload_len, place.admits(payload_len, count, mtu))?;
        Ok(Segment {
            offset,
            end,
            received,
        })
    }

    /// Checks that a train of `count` packets of an RDMA WRITE continues or starts a message, and
    /// that the message ends at the length in its RETH. `end` of the result is the immediate data
    /// of the last packet.
    ///
    /// # Errors
    ///
    /// Returns `InvalidRequest` if the order or the length is wrong.
    pub(super) fn check_write(
        self,
        part: WritePart,
        payload_len: u32,
        count: u32,
        mtu: Mtu,
    ) -> Result<(Reth, Segment<Option<Imm>>), NakCode> {
        let (place, start, end) = match part {
            WritePart::First(reth) => (Place::First, Some(reth), None),
            WritePart::Middle => (Place::Middle, None, None),
            WritePart::Last(imm) => (Place::Last, None, Some(imm)),
            WritePart::Only(reth, imm) => (Place::Only, Some(reth), Some(imm)),
        };
        let (reth, offset) = match (self, start) {
            (Self::None, Some(reth)) => (reth, 0),
            (Self::Write { reth, received }, None) => (reth, received),
            _ => return Err(NakCode::InvalidRequest),
        };
        let received = checked_total(offset, payload_len, place.admits(payload_len, count, mtu))?;
        let fits = match end {
            Some(_) => received == reth.length,
            None => received < reth.length,
        };
        if !fits || reth.length > MAX_MESSAGE {
            return Err(NakCode::InvalidRequest);
        }
        let segment = Segment {
            offset,
            end,
            received,
        };
        Ok((reth, segment))
    }

    /// Checks that no message is open, as a request of one packet requires.
    ///
    /// # Errors
    ///
    /// Returns `InvalidRequest` if a message is open.
    pub(super) fn check_none(self) -> Result<(), NakCode> {
        match self {
            Self::None => Ok(()),
            _ => Err(NakCode::InvalidRequest),
        }
    }
}

/// Returns the number of bytes received up to this packet, if its payload fits its place.
///
/// # Errors
///
/// Returns `InvalidRequest` if the payload doesn't fit, or the message exceeds [`MAX_MESSAGE`].
fn checked_total(offset: u32, payload_len: u32, fits: bool) -> Result<u32, NakCode> {
    offset
        .checked_add(payload_len)
        .filter(|total| *total <= MAX_MESSAGE && fits)
        .ok_or(NakCode::InvalidRequest)
}

/// Checks that a READ is at most [`MAX_MESSAGE`] bytes long, and that its request has no payload.
///
/// # Errors
///
/// Returns `InvalidRequest` if not.
pub(super) fn check_read(reth: &Reth, payload_len: u32) -> Result<(), NakCode> {
    valid(reth.length <= MAX_MESSAGE && payload_len == 0)
}

/// Returns the number of packets, and PSNs, of the response to a READ of `length` bytes: at least
/// one.
pub(super) fn read_psns(length: u32, mtu: Mtu) -> u32 {
    let shift = mtu.bytes().trailing_zeros();
    let partial = length & mtu.bytes().wrapping_sub(1) != 0;
    let full = length.checked_shr(shift).unwrap_or(0);
    full.saturating_add(u32::from(partial)).max(1)
}

/// Checks that an atomic names an aligned 8-byte word (§9.4.5) and has no payload.
///
/// # Errors
///
/// Returns `InvalidRequest` if not.
pub(super) fn check_atomic(eth: &AtomicEth, payload_len: u32) -> Result<(), NakCode> {
    valid(is_aligned(eth.va) && payload_len == 0)
}

/// Checks that an ATOMIC WRITE stores one aligned 8-byte word (annex A19).
///
/// # Errors
///
/// Returns `InvalidRequest` if not.
pub(super) fn check_atomic_write(reth: &Reth, payload_len: u32) -> Result<(), NakCode> {
    let whole = reth.length == ATOMIC_BYTES && payload_len == ATOMIC_BYTES;
    valid(whole && is_aligned(reth.va))
}

/// Checks that a FLUSH requests at least one placement, of a range or of a whole region (annex
/// A19). Also checks that the range has at most [`MAX_MESSAGE`] bytes, and the request no payload.
///
/// # Errors
///
/// Returns `InvalidRequest` if not.
pub(super) fn check_flush(kind: FlushKind, reth: &Reth, payload_len: u32) -> Result<(), NakCode> {
    let placement = (1..=PLACEMENT_ALL).contains(&kind.placement);
    let lengths = reth.length <= MAX_MESSAGE && payload_len == 0;
    valid(placement && kind.selectivity <= SELECT_REGION && lengths)
}

/// Number of bytes of the word that an atomic works on.
pub(super) const ATOMIC_BYTES: u32 = 8;

/// All placement bits of a FLUSH: global visibility and persistence.
const PLACEMENT_ALL: u8 = FlushKind::GLOBAL | FlushKind::PERSISTENT;

/// Selectivity of a FLUSH of the whole memory region rather than of a range.
pub(super) const SELECT_REGION: u8 = 1;

/// Returns whether the address is a multiple of 8.
const fn is_aligned(va: u64) -> bool {
    va & 7 == 0
}

/// Returns `InvalidRequest` unless the condition holds.
fn valid(condition: bool) -> Result<(), NakCode> {
    condition.then_some(()).ok_or(NakCode::InvalidRequest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Rkey;

    const MTU: Mtu = Mtu::Bytes1024;

    fn reth(length: u32) -> Reth {
        Reth {
            va: 0x1000,
            rkey: Rkey(7),
            length,
        }
    }

    #[test]
    fn payloads_fit_their_place() {
        let table = [
            (
                Place::First,
                [(0, false), (1023, false), (1024, true), (1025, false)],
            ),
            (
                Place::Middle,
                [(0, false), (1023, false), (1024, true), (1025, false)],
            ),
            (
                Place::Last,
                [(0, false), (1, true), (1024, true), (1025, false)],
            ),
            (
                Place::Only,
                [(0, true), (1, true), (1024, true), (1025, false)],
            ),
        ];
        for (place, cases) in table {
            for (len, fits) in cases {
                assert_eq!(place.admits(len, 1, MTU), fits, "{place:?} of {len}");
            }
        }
    }

    #[test]
    fn messages_follow_their_order() {
        let send = Message::Send { received: 1024 };
        let write = Message::Write {
            reth: reth(3000),
            received: 1024,
        };
        let plain = SendExtra::Plain;
        let sends = [
            (SendPart::First, [true, false, false]),
            (SendPart::Middle, [false, true, false]),
            (SendPart::Last(plain), [false, true, false]),
            (SendPart::Only(plain), [true, false, false]),
        ];
        for (part, admitted) in sends {
            for (message, ok) in [Message::None, send, write].into_iter().zip(admitted) {
                let result = message.check_send(part, 1024, 1, MTU);
                assert_eq!(result.is_ok(), ok, "{part:?} in {message:?}");
            }
        }
        let writes = [
            (WritePart::First(reth(3000)), [true, false, false]),
            (WritePart::Middle, [false, false, true]),
            (WritePart::Only(reth(1024), None), [true, false, false]),
        ];
        for (part, admitted) in writes {
            for (message, ok) in [Message::None, send, write].into_iter().zip(admitted) {
                let result = message.check_write(part, 1024, 1, MTU);
                assert_eq!(result.is_ok(), ok, "{part:?} in {message:?}");
            }
        }
    }

    #[test]
    fn writes_end_where_their_reth_says() {
        let imm = Some(Imm(1));
        let at = |length, received| Message::Write {
            reth: reth(length),
            received,
        };
        let table = [
            (at(1500, 1024), WritePart::Last(None), 476, true),
            (at(1500, 1024), WritePart::Last(imm), 475, false),
            (at(1500, 1024), WritePart::Last(imm), 477, false),
            (at(2048, 1024), WritePart::Last(None), 1024, true),
            // A MIDDLE packet must leave some bytes for the LAST one.
            (at(2048, 1024), WritePart::Middle, 1024, false),
            (at(2049, 1024), WritePart::Middle, 1024, true),
            (Message::None, WritePart::First(reth(1024)), 1024, false),
            (Message::None, WritePart::First(reth(1025)), 1024, true),
            (Message::None, WritePart::Only(reth(0), imm), 0, true),
            (Message::None, WritePart::Only(reth(0), imm), 1, false),
            (Message::None, WritePart::Only(reth(1), None), 0, false),
            (
                Message::None,
                WritePart::First(reth(MAX_MESSAGE)),
                1024,
                true,
            ),
            (
                Message::None,
                WritePart::First(reth(MAX_MESSAGE + 1)),
                1024,
                false,
            ),
        ];
        for (message, part, len, ok) in table {
            let result = message.check_write(part, len, 1, MTU);
            assert_eq!(result.is_ok(), ok, "{part:?} of {len} in {message:?}");
        }
    }

    #[test]
    fn sends_are_bounded() {
        let full = Message::Send {
            received: MAX_MESSAGE - 1024,
        };
        let last = SendPart::Last(SendExtra::Plain);
        assert!(full.check_send(last, 1024, 1, MTU).is_ok());
        let over = Message::Send {
            received: MAX_MESSAGE,
        };
        assert!(over.check_send(last, 1, 1, MTU).is_err());
    }

    #[test]
    fn reads_take_a_psn_per_packet() {
        for (length, psns) in [
            (0, 1),
            (1, 1),
            (1024, 1),
            (1025, 2),
            (2048, 2),
            (MAX_MESSAGE, 1 << 21),
            (MAX_MESSAGE - 1, 1 << 21),
        ] {
            assert_eq!(read_psns(length, MTU), psns, "{length} bytes");
        }
    }

    #[test]
    fn flushes_name_a_placement() {
        for (placement, selectivity, ok) in [
            (0, 0, false),
            (1, 0, true),
            (2, 1, true),
            (3, 1, true),
            (4, 0, false),
            (1, 2, false),
        ] {
            let kind = FlushKind {
                placement,
                selectivity,
            };
            assert_eq!(check_flush(kind, &reth(8), 0).is_ok(), ok, "{kind:?}");
        }
    }
}
