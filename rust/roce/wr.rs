// SPDX-License-Identifier: GPL-2.0

//! Work requests as the engine sees them: already copied out of the ring and validated by the host.

use crate::ids::{Imm, Lkey, Qkey, Qpn, Rkey, Srqn};

/// The host's name for a send WQE in flight: its place in the send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSlot(pub u32);

/// The host's name for the receive WQE that a QP holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvSlot(pub u32);

/// What follows a SEND's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// Nothing.
    Plain,
    /// Immediate data.
    Imm(Imm),
    /// A key that the responder shall invalidate.
    Invalidate(Rkey),
}

/// A range of the peer's memory; its length is that of the work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Virtual address at the peer.
    pub va: u64,
    /// The key that grants access.
    pub rkey: Rkey,
}

/// Where a datagram goes. The address itself (AH) stays with the host, under the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// Destination QP.
    pub qpn: Qpn,
    /// Queue key to send.
    pub qkey: Qkey,
}

/// An operation that involves no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOp {
    /// Invalidates a region's or window's key.
    Invalidate(Lkey),
    /// Registers a fast memory region; the particulars stay with the host, under the slot.
    RegMr,
    /// Binds a memory window; the particulars stay with the host, under the slot.
    BindMw,
}

/// A memory operation that is atomic at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` where the old value equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds, wrapping.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

/// What FLUSH makes durable or visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushKind {
    /// `IB_FLUSH_*` placement bits, as on the wire.
    pub placement: u8,
    /// Selectivity level, as on the wire: 0 range, 1 whole region.
    pub selectivity: u8,
}

impl FlushKind {
    /// Placement: visible to all of the responder's host.
    pub const GLOBAL: u8 = 1;
    /// Placement: durable.
    pub const PERSISTENT: u8 = 2;
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with what follows it.
    Send(SendTail),
    /// A datagram.
    Datagram(UdDest, Option<Imm>),
    /// RDMA WRITE, optionally with immediate data.
    Write(RemoteAddr, Option<Imm>),
    /// RDMA READ.
    Read(RemoteAddr),
    /// COMPARE AND SWAP or FETCH AND ADD on 8 bytes.
    Atomic(RemoteAddr, AtomicOp),
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite(RemoteAddr),
    /// FLUSH.
    Flush(RemoteAddr, FlushKind),
    /// No packet at all.
    Local(LocalOp),
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The host's name for it; payload and SGEs are found under it.
    pub slot: SendSlot,
    /// The user's cookie.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Message length in bytes: the sum of the SGEs, or of the inline payload; at most 2³¹.
    pub length: u32,
    /// A completion is wanted also when the request succeeds.
    pub signaled: bool,
    /// The peer's completion is a solicited one.
    pub solicited: bool,
    /// Waits for all prior READs and atomics.
    pub fence: bool,
    /// The peer's shared receive queue (XRC only).
    pub srqn: Srqn,
}

/// A receive work request held by the QP; its SGEs stay with the host, under the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// The host's name for it.
    pub slot: RecvSlot,
    /// The user's cookie.
    pub wr_id: u64,
    /// Bytes its SGEs hold.
    pub length: u32,
}
