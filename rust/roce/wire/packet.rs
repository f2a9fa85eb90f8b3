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
    /// The bits that IBTA 1.x §9.2 reserves.
    pub reserved: Reserved,
}

/// The bits of the BTH that IBTA 1.x §9.2 reserves. RoCEv2 (annex A17) uses two of them. rrxe
/// uses others, which other implementations ignore.
///
/// Bits 0–7 are FECN, BECN and Resv6, in byte 4 of the BTH; the ICRC doesn't cover them. Bits
/// 8–14 are Resv7, in byte 8; the ICRC covers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved(u16);

const FECN: u16 = 1 << 7;
const BECN: u16 = 1 << 6;
const REPEATS_READS: u16 = 1 << 5;
const FILLS_GAPS: u16 = 1 << 4;
/// The bits of [`Reserved::extension`] in Resv6 and in Resv7.
const EXTENSION: u16 = 0x7f0f;

impl Reserved {
    /// Creates the bits from the words at bytes 4 and 8 of the BTH.
    #[inline]
    pub(super) const fn decode(destination: u32, sequence: u32) -> Self {
        Self((destination >> 24) as u16 | (sequence >> 16) as u16 & 0x7f00)
    }

    /// Returns the bits of the word at byte 4 of the BTH.
    #[inline]
    pub(super) const fn in_destination(self) -> u32 {
        (self.0 as u32) << 24
    }

    /// Returns the bits of the word at byte 8 of the BTH.
    #[inline]
    pub(super) const fn in_sequence(self) -> u32 {
        (self.0 as u32 & 0x7f00) << 16
    }

    /// Forward explicit congestion notification.
    pub const fn fecn(self) -> bool {
        self.0 & FECN != 0
    }

    /// Backward explicit congestion notification.
    pub const fn becn(self) -> bool {
        self.0 & BECN != 0
    }

    /// The sender repeats a READ whose responses were lost. rrxe sets this in READ requests, for a
    /// responder that would send many responses as one buffer.
    #[inline]
    pub const fn repeats_reads(self) -> bool {
        self.0 & REPEATS_READS != 0
    }

    /// In a request: the requester sends only missing packets again if a NAK says which ones are
    /// missing. In an acknowledgment: the extension is valid. Only requesters that set the bit get
    /// such acknowledgments.
    #[inline]
    pub const fn fills_gaps(self) -> bool {
        self.0 & FILLS_GAPS != 0
    }

    /// Eleven bits with which two rrxe hosts recover from losses, 0 for other peers. In a request
    /// and in a positive acknowledgment: the responder's cookie. In a sequence NAK: a
    /// [`GapReport`].
    #[inline]
    pub const fn extension(self) -> u16 {
        self.0 & 15 | self.0 >> 4 & 0x7f0
    }

    /// Sets [`Self::repeats_reads`].
    #[inline]
    pub const fn with_repeats_reads(self, value: bool) -> Self {
        self.with(REPEATS_READS, value)
    }

    /// Sets [`Self::fills_gaps`].
    #[inline]
    pub const fn with_fills_gaps(self, value: bool) -> Self {
        self.with(FILLS_GAPS, value)
    }

    /// Sets [`Self::extension`] to `value`, which is at most [`MOST_EXTENSION`].
    #[inline]
    pub const fn with_extension(self, value: u16) -> Self {
        Self(self.0 & !EXTENSION | value & 15 | (value & 0x7f0) << 4)
    }

    #[inline]
    const fn with(self, bit: u16, value: bool) -> Self {
        match value {
            true => Self(self.0 | bit),
            false => Self(self.0 & !bit),
        }
    }
}

/// Largest value of [`Reserved::extension`].
pub const MOST_EXTENSION: u16 = 0x7ff;
/// Largest value of [`GapReport::missing`].
pub const MOST_MISSING: u8 = 15;

/// The extension of a sequence NAK, which reports missing packets. Only requesters with
/// [`Reserved::fills_gaps`] in their requests get one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GapReport {
    /// Number of missing packets from the PSN of the NAK on, 1–15; 0 if the NAK doesn't say. 15
    /// stands for 15 or more.
    pub missing: u8,
    /// The gap is behind early packets that the responder keeps. Such a NAK acknowledges nothing.
    pub is_later: bool,
}

impl GapReport {
    /// Decodes [`Reserved::extension`] of a sequence NAK.
    pub const fn decode(extension: u16) -> Self {
        Self {
            missing: extension as u8 & MOST_MISSING,
            is_later: extension & 1 << 4 != 0,
        }
    }

    /// Encodes the report as [`Reserved::extension`].
    pub const fn encode(self) -> u16 {
        (self.missing & MOST_MISSING) as u16 | (self.is_later as u16) << 4
    }
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
            reserved: Reserved(0),
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
