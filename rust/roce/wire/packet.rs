// SPDX-License-Identifier: GPL-2.0

//! A packet's headers as types that can't be wrong.

use crate::ids::{Imm, Pkey, Qkey, Qpn, Rkey, Srqn};
use crate::psn::Psn;
use crate::wr::{AtomicOp, FlushKind, SendTail};

/// The base transport header's fields that don't follow from the operation (IBTA 1.x §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Destination QP.
    pub dest: Qpn,
    /// Packet sequence number.
    pub psn: Psn,
    /// Partition key.
    pub pkey: Pkey,
    /// Solicited event.
    pub solicited: bool,
    /// The responder shall acknowledge this packet.
    pub ack_req: bool,
    /// Migration state; sent as 1 (as hardware does), ignored on receipt.
    pub mig_req: bool,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
}

/// RDMA extended transport header: a range of the responder's memory (§9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub va: u64,
    /// Key.
    pub rkey: Rkey,
    /// Length of the whole message in bytes; whoever carries it out checks that it is at most 2³¹.
    pub length: u32,
}

/// Datagram extended transport header (§9.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: Qkey,
    /// Source QP.
    pub src: Qpn,
}

/// Why a responder refuses a request (§9.7.5.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// 0: a packet is missing.
    PsnSequence,
    /// 1: the request is malformed or not supported.
    InvalidRequest,
    /// 2: key, range or permission is wrong.
    RemoteAccess,
    /// 3: the request could not be carried out.
    RemoteOperational,
    /// 4: a request of reliable datagrams, which nobody has, or of XRC is invalid.
    InvalidRdRequest,
}

/// What an acknowledgement says (§9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Done. The five credit bits; 31 means "no flow control".
    Ack {
        /// Encoded credit count, 0–31.
        credits: u8,
    },
    /// The receiver has no buffer; try again after the encoded time (0–31).
    RnrNak {
        /// Encoded timer, 0–31 (§9.7.5.2.8, table 45).
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
}

/// Acknowledgement extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// A packet of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPart {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last(SendTail),
    /// The whole message.
    Only(SendTail),
}

/// A packet of an RDMA WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePart {
    /// The first of several.
    First(Reth),
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last(Option<Imm>),
    /// The whole message.
    Only(Reth, Option<Imm>),
}

/// A packet of a READ response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPart {
    /// The first of several.
    First(Aeth),
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last(Aeth),
    /// The whole response.
    Only(Aeth),
}

/// An atomic request: one 8-byte word of the responder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address.
    pub va: u64,
    /// Key.
    pub rkey: Rkey,
    /// The operation with its operands.
    pub op: AtomicOp,
}

/// What a packet does: the operation with the headers that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// SEND.
    Send(SendPart),
    /// RDMA WRITE.
    Write(WritePart),
    /// RDMA READ request.
    ReadRequest(Reth),
    /// READ response; also answers FLUSH and ATOMIC WRITE.
    ReadResponse(ReadPart),
    /// Acknowledgement.
    Ack(Aeth),
    /// Answer to an atomic: the original value.
    AtomicAck(Aeth, u64),
    /// COMPARE AND SWAP, FETCH AND ADD.
    Atomic(AtomicEth),
    /// FLUSH.
    Flush(FlushKind, Reth),
    /// ATOMIC WRITE; the 8 bytes are the payload.
    AtomicWrite(Reth),
    /// Congestion notification.
    Cnp,
}

/// The transport service, with the header that each of its packets carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud(Deth),
    /// Extended reliable connection: the number of the peer's shared receive queue. Responses
    /// carry none.
    Xrc(Option<Srqn>),
}

/// A packet without its payload, pad and ICRC: one of a known operation with all of its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The service.
    pub service: Service,
    /// The base transport header.
    pub bth: Bth,
    /// The operation.
    pub body: Body,
    /// Payload bytes, without pad; at most 4,096 on the wire.
    pub payload_len: u32,
}
