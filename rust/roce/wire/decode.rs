// SPDX-License-Identifier: GPL-2.0

//! The decoding of bytes into a packet.

use super::bytes::Reader;
use super::opcode;
use super::packet::{
    Aeth, AtomicEth, Body, Bth, Deth, Packet, ReadPart, Reserved, Reth, SendPart, Service,
    WritePart,
};
use super::{pad, ICRC_LEN, MAX_PAYLOAD};
use crate::ids::{Imm, Pkey, Qkey, Qpn, Rkey, Srqn};
use crate::psn::Psn;
use crate::wr::{AtomicOp, FlushKind, SendExtra};

/// A decoded datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The headers, and the length of the payload.
    pub packet: Packet,
    /// Offset of the payload from the start of the BTH, in bytes. Payload, pad and ICRC follow one
    /// another and end with the datagram.
    pub payload_offset: usize,
}

/// The reason why a datagram isn't a valid packet. Such a datagram is dropped and counted, and its
/// sender gets no NAK (IBTA 1.x §9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The datagram is too short for its headers, pad and ICRC.
    TooShort,
    /// The transport version isn't 0.
    UnknownVersion,
    /// The opcode is reserved or belongs to a transport that isn't supported.
    UnknownOpcode,
    /// The pad count doesn't fit the length.
    WrongPad,
    /// The payload is longer than 4,096 bytes, or the packet must not have one.
    WrongLength,
    /// The syndrome of the AETH is reserved.
    UnknownSyndrome,
}

impl DropReason {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; 6] = [
        Self::TooShort,
        Self::UnknownVersion,
        Self::UnknownOpcode,
        Self::WrongPad,
        Self::WrongLength,
        Self::UnknownSyndrome,
    ];
}

/// Decodes the headers of a datagram.
///
/// `header` holds the first bytes of the datagram, from the BTH on: at least [`super::MAX_HEADER`]
/// of them, or all. `length` is the length of the datagram in bytes, from the BTH to the end of the
/// ICRC. The ICRC itself isn't checked.
///
/// This checks the version, the opcode and the syndrome, and that all headers are complete. Payload
/// and pad must be a multiple of 4 bytes, with the smallest pad. The payload must be at most 4,096
/// bytes, and acknowledgments and CNPs must have none. The responder checks the errors that it
/// answers with a NAK (§9.7.4.1.6): lengths for the operation and the path MTU, keys, alignment,
/// order.
///
/// # Errors
///
/// Returns the first [`DropReason`] that applies.
#[inline(always)]
pub fn decode(header: &[u8], length: usize) -> Result<Decoded, DropReason> {
    decode_as(header, length, false)
}

/// Decodes the headers of a datagram that describes a train as one packet
/// ([`Train::of`](crate::train::Train::of)), as [`decode`] does. The payload may have any length.
///
/// # Errors
///
/// Those of [`decode`].
#[inline(always)]
pub fn decode_train(header: &[u8], length: usize) -> Result<Decoded, DropReason> {
    decode_as(header, length, true)
}

/// Decodes the headers of a datagram, which describes a train if `is_train` is set.
fn decode_as(header: &[u8], length: usize, is_train: bool) -> Result<Decoded, DropReason> {
    let without_icrc = length.checked_sub(ICRC_LEN).ok_or(DropReason::TooShort)?;
    let header = header.get(..without_icrc).unwrap_or(header);
    let mut reader = Reader(header);

    let base = BaseHeader::read(&mut reader)?;
    let (service, body) = read_extensions(base.opcode(), &mut reader)?;
    let payload_offset = header.len().saturating_sub(reader.0.len());
    let padded_len = without_icrc
        .checked_sub(payload_offset)
        .ok_or(DropReason::TooShort)?;
    let payload_len = payload_len(padded_len, base.pad())?;
    if !is_train && payload_len > most_payload(&body) {
        return Err(DropReason::WrongLength);
    }
    Ok(Decoded {
        packet: Packet {
            service,
            bth: base.bth(),
            body,
            payload_len,
        },
        payload_offset,
    })
}

/// The BTH as on the wire: three big-endian words (IBTA 1.x §9.2).
struct BaseHeader {
    /// Opcode, solicited event, migration state, pad count, version, partition key.
    operation: u32,
    /// Congestion marks, reserved bits that rrxe uses, destination QP.
    destination: u32,
    /// Acknowledgment request, reserved bits that rrxe uses, PSN.
    sequence: u32,
}

impl BaseHeader {
    /// Reads the BTH.
    ///
    /// # Errors
    ///
    /// Returns [`DropReason::TooShort`] or [`DropReason::UnknownVersion`].
    fn read(reader: &mut Reader<'_>) -> Result<Self, DropReason> {
        let header = Self {
            operation: reader.take_u32()?,
            destination: reader.take_u32()?,
            sequence: reader.take_u32()?,
        };
        if header.operation & 0x000f_0000 != 0 {
            return Err(DropReason::UnknownVersion);
        }
        Ok(header)
    }

    fn opcode(&self) -> u8 {
        (self.operation >> 24) as u8
    }

    fn pad(&self) -> u32 {
        self.operation >> 20 & 3
    }

    fn bth(&self) -> Bth {
        Bth {
            dest: Qpn::new(self.destination),
            psn: Psn::new(self.sequence),
            pkey: Pkey(self.operation as u16),
            solicited: self.operation & 1 << 23 != 0,
            ack_req: self.sequence & 1 << 31 != 0,
            mig_req: self.operation & 1 << 22 != 0,
            reserved: Reserved::decode(self.destination, self.sequence),
        }
    }
}

/// Computes the length of the payload from `padded_len`, the number of bytes between headers and
/// ICRC.
///
/// # Errors
///
/// Returns a [`DropReason`] if the length or the pad count is wrong.
fn payload_len(padded_len: usize, claimed_pad: u32) -> Result<u32, DropReason> {
    let padded_len = u32::try_from(padded_len).map_err(|_| DropReason::WrongLength)?;
    let payload_len = padded_len
        .checked_sub(claimed_pad)
        .ok_or(DropReason::TooShort)?;
    if pad(payload_len) != claimed_pad {
        return Err(DropReason::WrongPad);
    }
    Ok(payload_len)
}

/// Returns the maximum payload length of a packet in bytes. It is 0 for an acknowledgment, whose
/// payload the requester could not answer with a NAK, and for a CNP.
fn most_payload(body: &Body) -> u32 {
    match body {
        Body::Ack(_) | Body::AtomicAck(..) | Body::Cnp => 0,
        Body::Send(_)
        | Body::Write(_)
        | Body::ReadRequest(_)
        | Body::ReadResponse(_)
        | Body::Atomic(_)
        | Body::AtomicWrite(_)
        | Body::Flush(..) => MAX_PAYLOAD,
    }
}

/// Reads all headers between BTH and payload.
fn read_extensions(code: u8, reader: &mut Reader<'_>) -> Result<(Service, Body), DropReason> {
    if code == opcode::CNP {
        let _reserved: [u8; 16] = reader.take()?;
        return Ok((Service::Rc, Body::Cnp));
    }
    let transport = code & opcode::TRANSPORT;
    let operation = code & !opcode::TRANSPORT;
    if !opcode::is_defined(transport, operation) {
        return Err(DropReason::UnknownOpcode);
    }
    let service = read_service(transport, operation, reader)?;
    let body = read_body(operation, reader)?;
    Ok((service, body))
}

/// Reads the header that belongs to the transport service: DETH or XRCETH.
fn read_service(
    transport: u8,
    operation: u8,
    reader: &mut Reader<'_>,
) -> Result<Service, DropReason> {
    Ok(match transport {
        opcode::UC => Service::Uc,
        opcode::UD => Service::Ud(Deth {
            qkey: Qkey(reader.take_u32()?),
            src: Qpn::new(reader.take_u32()?),
        }),
        opcode::XRC if opcode::is_response(operation) => Service::Xrc(None),
        opcode::XRC => Service::Xrc(Some(Srqn::new(reader.take_u32()?))),
        _ => Service::Rc,
    })
}

/// Reads the headers that belong to the operation.
fn read_body(operation: u8, reader: &mut Reader<'_>) -> Result<Body, DropReason> {
    Ok(match operation {
        opcode::SEND_FIRST => Body::Send(SendPart::First),
        opcode::SEND_MIDDLE => Body::Send(SendPart::Middle),
        opcode::SEND_LAST => Body::Send(SendPart::Last(SendExtra::Plain)),
        opcode::SEND_LAST_IMM => Body::Send(SendPart::Last(SendExtra::Imm(read_imm(reader)?))),
        opcode::SEND_LAST_INV => Body::Send(SendPart::Last(read_invalidate(reader)?)),
        opcode::SEND_ONLY => Body::Send(SendPart::Only(SendExtra::Plain)),
        opcode::SEND_ONLY_IMM => Body::Send(SendPart::Only(SendExtra::Imm(read_imm(reader)?))),
        opcode::SEND_ONLY_INV => Body::Send(SendPart::Only(read_invalidate(reader)?)),
        opcode::WRITE_FIRST => Body::Write(WritePart::First(read_reth(reader)?)),
        opcode::WRITE_MIDDLE => Body::Write(WritePart::Middle),
        opcode::WRITE_LAST => Body::Write(WritePart::Last(None)),
        opcode::WRITE_LAST_IMM => Body::Write(WritePart::Last(Some(read_imm(reader)?))),
        opcode::WRITE_ONLY => Body::Write(WritePart::Only(read_reth(reader)?, None)),
        opcode::WRITE_ONLY_IMM => {
            let reth = read_reth(reader)?;
            Body::Write(WritePart::Only(reth, Some(read_imm(reader)?)))
        }
        opcode::READ_REQUEST => Body::ReadRequest(read_reth(reader)?),
        opcode::READ_RESPONSE_FIRST => Body::ReadResponse(ReadPart::First(read_aeth(reader)?)),
        opcode::READ_RESPONSE_MIDDLE => Body::ReadResponse(ReadPart::Middle),
        opcode::READ_RESPONSE_LAST => Body::ReadResponse(ReadPart::Last(read_aeth(reader)?)),
        opcode::READ_RESPONSE_ONLY => Body::ReadResponse(ReadPart::Only(read_aeth(reader)?)),
        opcode::ACK => Body::Ack(read_aeth(reader)?),
        opcode::ATOMIC_ACK => Body::AtomicAck(read_aeth(reader)?, reader.take_u64()?),
        opcode::COMPARE_SWAP => Body::Atomic(read_atomic(reader, compare_swap)?),
        opcode::FETCH_ADD => Body::Atomic(read_atomic(reader, fetch_add)?),
        opcode::FLUSH => Body::Flush(read_feth(reader)?, read_reth(reader)?),
        opcode::ATOMIC_WRITE => Body::AtomicWrite(read_reth(reader)?),
        _ => return Err(DropReason::UnknownOpcode),
    })
}

fn read_imm(reader: &mut Reader<'_>) -> Result<Imm, DropReason> {
    reader.take_u32().map(Imm)
}

fn read_invalidate(reader: &mut Reader<'_>) -> Result<SendExtra, DropReason> {
    reader.take_u32().map(Rkey).map(SendExtra::Invalidate)
}

fn read_reth(reader: &mut Reader<'_>) -> Result<Reth, DropReason> {
    Ok(Reth {
        va: reader.take_u64()?,
        rkey: Rkey(reader.take_u32()?),
        length: reader.take_u32()?,
    })
}

fn read_aeth(reader: &mut Reader<'_>) -> Result<Aeth, DropReason> {
    Aeth::from_wire(reader.take()?).ok_or(DropReason::UnknownSyndrome)
}

fn read_atomic(
    reader: &mut Reader<'_>,
    op: fn(swap_or_add: u64, compare: u64) -> AtomicOp,
) -> Result<AtomicEth, DropReason> {
    Ok(AtomicEth {
        va: reader.take_u64()?,
        rkey: Rkey(reader.take_u32()?),
        op: op(reader.take_u64()?, reader.take_u64()?),
    })
}

fn compare_swap(swap: u64, compare: u64) -> AtomicOp {
    AtomicOp::CompareSwap { compare, swap }
}

fn fetch_add(add: u64, _compare: u64) -> AtomicOp {
    AtomicOp::FetchAdd { add }
}

/// Reads a FLUSH extended transport header (annex A19). Its last byte has the selectivity in bits
/// 5–4 and the placement in bits 3–0.
fn read_feth(reader: &mut Reader<'_>) -> Result<FlushKind, DropReason> {
    let [_, _, _, kind] = reader.take()?;
    Ok(FlushKind::new(kind, kind >> 4))
}
