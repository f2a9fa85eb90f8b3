// SPDX-License-Identifier: GPL-2.0

//! The headers of a packet. Each type of operation has exactly the headers that belong to it.

use crate::ids::{Imm, Pkey, Qkey, Qpn, Rkey, Srqn};
use crate::psn::Psn;
use crate::wr::{AtomicOp, FlushKind, SendExtra};

/// The fields of the base transport header that don't follow from the operation (IBTA 1.x §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Destination QP.
    pub dest: Qpn,
    /// Packet sequence number.
    pub psn: Psn,
    /// Partition key.
    pub pkey: Pkey,
    /// The packet requests a solicited event.
    pub solicited: bool,
    /// The packet requests an acknowledgment.
    pub ack_req: bool,
    /// Migration state. Sent as 1, as hardware does, and ignored on receipt.
    pub mig_req: bool,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// The sender repeats a READ whose responses were lost. rrxe sets this in READ requests, for a
    /// responder that would send many responses as one buffer. It is a reserved bit, which other
    /// responders ignore (Resv6) and which the ICRC doesn't cover.
    pub repeats_reads: bool,
}

impl Bth {
    /// Creates the header of a packet of the default partition that requests nothing.
    #[inline]
    pub const fn new(dest: Qpn, psn: Psn) -> Self {
        Self {
            dest,
            psn,
            pkey: Pkey::DEFAULT,
            solicited: false,
            ack_req: false,
            mig_req: true,
            fecn: false,
            becn: false,
            repeats_reads: false,
        }
    }
}

/// RDMA extended transport header: a range of the responder's memory (§9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address of the first byte.
    pub va: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Length of the whole message in bytes. The responder checks that it is at most 2³¹.
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

/// The code of a NAK: the reason why a responder refuses a request (§9.7.5.2.8).
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
    /// 4: an invalid request of reliable datagrams, which are obsolete, or of XRC.
    InvalidRdRequest,
}

/// The statement of an acknowledgment (§9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// The request was carried out.
    Ack {
        /// Encoded credit count, 0–31. 31 means "no flow control".
        credits: u8,
    },
    /// The responder has no receive buffer. The requester may send again after the encoded time.
    RnrNak {
        /// Encoded timer, 0–31 (§9.7.5.2.8, table 45).
        timer: u8,
    },
    /// The request was refused.
    Nak(NakCode),
}

/// Acknowledgment extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledgment, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// The place of a packet in a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPart {
    /// First packet of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last packet of several.
    Last(SendExtra),
    /// Only packet of the message.
    Only(SendExtra),
}

/// The place of a packet in an RDMA WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePart {
    /// First packet of several.
    First(Reth),
    /// Neither first nor last.
    Middle,
    /// Last packet of several.
    Last(Option<Imm>),
    /// Only packet of the message.
    Only(Reth, Option<Imm>),
}

/// The place of a packet in a READ response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPart {
    /// First packet of several.
    First(Aeth),
    /// Neither first nor last.
    Middle,
    /// Last packet of several.
    Last(Aeth),
    /// Only packet of the response.
    Only(Aeth),
}

/// Atomic extended transport header: an operation on one 8-byte word of the responder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address of the word.
    pub va: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Operation, with its operands.
    pub op: AtomicOp,
}

/// The operation of a packet, with the headers that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// SEND.
    Send(SendPart),
    /// RDMA WRITE.
    Write(WritePart),
    /// RDMA READ request.
    ReadRequest(Reth),
    /// READ response. It also answers FLUSH and ATOMIC WRITE.
    ReadResponse(ReadPart),
    /// Acknowledgment.
    Ack(Aeth),
    /// Acknowledgment of an atomic, with the original value of the word.
    AtomicAck(Aeth, u64),
    /// COMPARE AND SWAP or FETCH AND ADD.
    Atomic(AtomicEth),
    /// FLUSH.
    Flush(FlushKind, Reth),
    /// ATOMIC WRITE. The 8 bytes are the payload.
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
    /// Extended reliable connection. Requests carry the number of the peer's shared receive queue;
    /// responses carry none.
    Xrc(Option<Srqn>),
}

/// A packet without its payload, pad and ICRC: a defined operation with all of its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Transport service.
    pub service: Service,
    /// The base transport header.
    pub bth: Bth,
    /// Operation.
    pub body: Body,
    /// Length of the payload in bytes, without pad. At most 4,096 on the wire.
    pub payload_len: u32,
}
