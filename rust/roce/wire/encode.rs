// SPDX-License-Identifier: GPL-2.0

//! The encoding of packets into bytes.

use super::bytes::Bytes;
use super::opcode;
use super::packet::{AtomicEth, Body, Deth, Packet, ReadPart, Reth, SendPart, Service, WritePart};
use super::{pad, Header};
use crate::ids::{Imm, Rkey};
use crate::wr::{AtomicOp, FlushKind, SendExtra};

impl Packet {
    /// Encodes the headers. After them the caller puts `payload_len` bytes of payload,
    /// [`Packet::pad`] zero bytes and the ICRC.
    ///
    /// A service and an operation that don't belong together result in an opcode that no peer
    /// accepts.
    pub fn encode(&self) -> Header {
        let mut header = Bytes::new();
        let bth = &self.bth;
        let operation = u32::from(self.opcode()) << 24 | self.flags() | u32::from(bth.pkey.0);
        header.put(operation.to_be_bytes());
        let destination = bth.reserved.in_destination() | bth.dest.get();
        header.put(destination.to_be_bytes());
        let sequence = bit(bth.ack_req, 31) | bth.reserved.in_sequence() | bth.psn.get();
        header.put(sequence.to_be_bytes());
        put_service(&mut header, &self.service);
        put_body(&mut header, &self.body);
        header
    }

    /// Returns the number of zero bytes between payload and ICRC: 0–3.
    pub const fn pad(&self) -> u32 {
        pad(self.payload_len)
    }

    /// Returns the opcode byte.
    #[inline(always)]
    pub fn opcode(&self) -> u8 {
        if self.body == Body::Cnp {
            return opcode::CNP;
        }
        let transport = match self.service {
            Service::Rc => opcode::RC,
            Service::Uc => opcode::UC,
            Service::Ud(_) => opcode::UD,
            Service::Xrc(_) => opcode::XRC,
        };
        transport | operation(&self.body)
    }

    /// Returns solicited event, migration state and pad count at their places in the first word of
    /// the BTH. The transport version is 0.
    fn flags(&self) -> u32 {
        bit(self.bth.solicited, 23) | bit(self.bth.mig_req, 22) | self.pad() << 20
    }
}

/// Returns a word with one bit set, or 0.
fn bit(set: bool, position: u32) -> u32 {
    u32::from(set).wrapping_shl(position)
}

/// Returns the operation bits of the opcode.
#[inline(always)]
fn operation(body: &Body) -> u8 {
    match body {
        Body::Send(part) => send_operation(part),
        Body::Write(part) => write_operation(part),
        Body::ReadRequest(_) => opcode::READ_REQUEST,
        Body::ReadResponse(ReadPart::First(_)) => opcode::READ_RESPONSE_FIRST,
        Body::ReadResponse(ReadPart::Middle) => opcode::READ_RESPONSE_MIDDLE,
        Body::ReadResponse(ReadPart::Last(_)) => opcode::READ_RESPONSE_LAST,
        Body::ReadResponse(ReadPart::Only(_)) => opcode::READ_RESPONSE_ONLY,
        Body::Ack(_) => opcode::ACK,
        Body::AtomicAck(..) => opcode::ATOMIC_ACK,
        Body::Atomic(eth) => match eth.op {
            AtomicOp::CompareSwap { .. } => opcode::COMPARE_SWAP,
            AtomicOp::FetchAdd { .. } => opcode::FETCH_ADD,
        },
        Body::Flush(..) => opcode::FLUSH,
        Body::AtomicWrite(_) => opcode::ATOMIC_WRITE,
        Body::Cnp => opcode::CNP,
    }
}

fn send_operation(part: &SendPart) -> u8 {
    match part {
        SendPart::First => opcode::SEND_FIRST,
        SendPart::Middle => opcode::SEND_MIDDLE,
        SendPart::Last(SendExtra::Plain) => opcode::SEND_LAST,
        SendPart::Last(SendExtra::Imm(_)) => opcode::SEND_LAST_IMM,
        SendPart::Last(SendExtra::Invalidate(_)) => opcode::SEND_LAST_INV,
        SendPart::Only(SendExtra::Plain) => opcode::SEND_ONLY,
        SendPart::Only(SendExtra::Imm(_)) => opcode::SEND_ONLY_IMM,
        SendPart::Only(SendExtra::Invalidate(_)) => opcode::SEND_ONLY_INV,
    }
}

fn write_operation(part: &WritePart) -> u8 {
    match part {
        WritePart::First(_) => opcode::WRITE_FIRST,
        WritePart::Middle => opcode::WRITE_MIDDLE,
        WritePart::Last(None) => opcode::WRITE_LAST,
        WritePart::Last(Some(_)) => opcode::WRITE_LAST_IMM,
        WritePart::Only(_, None) => opcode::WRITE_ONLY,
        WritePart::Only(_, Some(_)) => opcode::WRITE_ONLY_IMM,
    }
}

/// Writes the header that belongs to the transport service.
fn put_service(header: &mut Header, service: &Service) {
    match service {
        Service::Rc | Service::Uc | Service::Xrc(None) => {}
        Service::Ud(Deth { qkey, src }) => {
            header.put(qkey.0.to_be_bytes());
            header.put(src.get().to_be_bytes());
        }
        Service::Xrc(Some(srq)) => {
            let [_, number @ ..] = srq.get().to_be_bytes();
            header.put([0]);
            header.put(number);
        }
    }
}

/// Writes the headers that belong to the operation.
fn put_body(header: &mut Header, body: &Body) {
    match body {
        Body::Send(SendPart::First | SendPart::Middle) => {}
        Body::Send(SendPart::Last(extra) | SendPart::Only(extra)) => put_extra(header, extra),
        Body::Write(part) => put_write(header, part),
        Body::ReadRequest(reth) | Body::AtomicWrite(reth) => put_reth(header, reth),
        Body::ReadResponse(ReadPart::Middle) => {}
        Body::ReadResponse(ReadPart::First(aeth) | ReadPart::Last(aeth) | ReadPart::Only(aeth))
        | Body::Ack(aeth) => header.put(aeth.to_wire()),
        Body::AtomicAck(aeth, original) => {
            header.put(aeth.to_wire());
            header.put(original.to_be_bytes());
        }
        Body::Atomic(eth) => put_atomic(header, eth),
        Body::Flush(kind, reth) => {
            put_feth(header, kind);
            put_reth(header, reth);
        }
        Body::Cnp => header.put([0; 16]),
    }
}

fn put_extra(header: &mut Header, extra: &SendExtra) {
    match extra {
        SendExtra::Plain => {}
        SendExtra::Imm(Imm(word)) | SendExtra::Invalidate(Rkey(word)) => {
            header.put(word.to_be_bytes());
        }
    }
}

fn put_write(header: &mut Header, part: &WritePart) {
    let (reth, imm) = match part {
        WritePart::First(reth) => (Some(reth), None),
        WritePart::Middle => (None, None),
        WritePart::Last(imm) => (None, imm.as_ref()),
        WritePart::Only(reth, imm) => (Some(reth), imm.as_ref()),
    };
    if let Some(reth) = reth {
        put_reth(header, reth);
    }
    if let Some(Imm(word)) = imm {
        header.put(word.to_be_bytes());
    }
}

fn put_reth(header: &mut Header, reth: &Reth) {
    header.put(reth.va.to_be_bytes());
    header.put(reth.rkey.0.to_be_bytes());
    header.put(reth.length.to_be_bytes());
}

/// Writes an AtomicETH (§9.3.5). For FETCH AND ADD it has the addend in place of the swap value.
fn put_atomic(header: &mut Header, eth: &AtomicEth) {
    let (swap_or_add, compare) = match eth.op {
        AtomicOp::CompareSwap { compare, swap } => (swap, compare),
        AtomicOp::FetchAdd { add } => (add, 0),
    };
    header.put(eth.va.to_be_bytes());
    header.put(eth.rkey.0.to_be_bytes());
    header.put(swap_or_add.to_be_bytes());
    header.put(compare.to_be_bytes());
}

/// Writes a FLUSH extended transport header (annex A19): selectivity in bits 5–4, placement
/// in bits 3–0.
fn put_feth(header: &mut Header, kind: &FlushKind) {
    let kind = FlushKind::new(kind.placement, kind.selectivity);
    header.put([0, 0, 0, kind.selectivity << 4 | kind.placement]);
}
