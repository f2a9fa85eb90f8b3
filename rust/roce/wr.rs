// SPDX-License-Identifier: GPL-2.0

//! Work requests as the host passes them to the engine: the host has copied them out of the ring
//! and validated them.

use crate::ids::{Imm, Lkey, Qkey, Qpn, Rkey, Srqn};

/// The host's name for a send WQE that the engine has taken and not yet retired: its place in the
/// send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSlot(pub u32);

/// The host's name for a receive WQE that a QP has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvSlot(pub u32);

/// Data of a SEND besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendExtra {
    /// Nothing.
    Plain,
    /// Immediate data.
    Imm(Imm),
    /// A remote key for the responder to invalidate.
    Invalidate(Rkey),
}

/// A range of the peer's memory. Its length is that of the work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Virtual address at the peer.
    pub va: u64,
    /// Key that grants access to the range.
    pub rkey: Rkey,
}

/// Destination of a datagram. The host keeps the number of the address handle, or the address
/// itself, under the work request's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// Destination QP.
    pub qpn: Qpn,
    /// Queue key of the packet. If its top bit is set, the packet carries the QP's own queue key.
    pub qkey: Qkey,
}

/// An operation that sends no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOp {
    /// Invalidates the key of a memory region or window.
    Invalidate(Lkey),
    /// Registers a fast memory region. The host keeps the parameters, under the work request's
    /// slot.
    RegMr,
    /// Binds a memory window. The host keeps the parameters, under the work request's slot.
    BindMw,
}

/// An operation on one 8-byte word of the responder's memory, which the responder executes
/// atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the old value equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds `add`. The sum wraps.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

/// Placement and selectivity of a FLUSH (IBTA annex A19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushKind {
    /// Placement: [`Self::GLOBAL`], [`Self::PERSISTENT`] or both, as on the wire (`IB_FLUSH_*`).
    pub placement: u8,
    /// Selectivity level as on the wire: 0 for a range, 1 for the whole region.
    pub selectivity: u8,
}

impl FlushKind {
    /// Placement bit: makes the data visible to all CPUs and devices of the responder's machine.
    pub const GLOBAL: u8 = 1;
    /// Placement bit: makes the data durable.
    pub const PERSISTENT: u8 = 2;

    /// Creates the value of the header's fields: four bits of placement and two of selectivity.
    /// Further bits are ignored.
    #[inline]
    pub const fn new(placement: u8, selectivity: u8) -> Self {
        Self {
            placement: placement & 0xf,
            selectivity: selectivity & 0x3,
        }
    }
}

/// Operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND on a connected QP.
    Send(SendExtra),
    /// SEND on a datagram QP, or a frame on a raw packet QP.
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
    /// An operation that sends no packet.
    Local(LocalOp),
}

/// A send work request (`struct ib_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The host's name for the work request. The host keeps payload and SGEs under it.
    pub slot: SendSlot,
    /// The consumer's `wr_id`.
    pub wr_id: u64,
    /// Operation, with its operands.
    pub op: SendOp,
    /// Message length in bytes: the sum of the SGEs, the length of the inline payload, or that of
    /// the range of a FLUSH. The engine completes a longer message than 2³¹ bytes with
    /// `LocLenErr`.
    pub length: u32,
    /// The work request has a completion if it succeeds (`IB_SEND_SIGNALED`). A work request that
    /// fails always has one.
    pub signaled: bool,
    /// The peer's completion is a solicited one (`IB_SEND_SOLICITED`).
    pub solicited: bool,
    /// The request waits for all earlier READs, atomics, ATOMIC WRITEs and FLUSHes
    /// (`IB_SEND_FENCE`).
    pub fence: bool,
    /// Number of the peer's shared receive queue. Used by XRC only.
    pub srqn: Srqn,
}

/// A receive work request that the QP has taken. The host keeps its SGEs, under the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// The host's name for the work request.
    pub slot: RecvSlot,
    /// The consumer's `wr_id`.
    pub wr_id: u64,
    /// Number of bytes that its SGEs hold.
    pub length: u32,
}
