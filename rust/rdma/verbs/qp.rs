// SPDX-License-Identifier: GPL-2.0

//! What the verbs of queue pairs take and return.

pub(crate) mod attributes;
pub(crate) mod operations;

pub(crate) use operations::of;

use kernel::sync::Arc;
use roce::{
    ids::Qpn,
    qp::attr::{Attrs, CurrentAttrs, QpKind},
};

use crate::{
    bindings,
    provider::Provider,
    verbs::{av::Av, upcall::QpUpcall},
};

/// Capacities of a QP: asked for at creation, and returned as granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Send WQEs.
    pub max_send_wr: u32,
    /// Receive WQEs.
    pub max_recv_wr: u32,
    /// SGEs of a send.
    pub max_send_sge: u32,
    /// SGEs of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline payload.
    pub max_inline: u32,
}

/// What a QP is made of.
pub struct QpInit<P: Provider> {
    /// The transport.
    pub kind: QpKind,
    /// Its protection domain; an XRC target has none.
    pub pd: Option<Arc<P::Pd>>,
    /// Where completions of sends go, if it sends.
    pub send_cq: Option<Arc<P::Cq>>,
    /// Where completions of receives go, if it has a receive queue.
    pub recv_cq: Option<Arc<P::Cq>>,
    /// The XRC domain of an XRC target.
    pub xrcd: Option<Arc<P::Xrcd>>,
    /// Where it takes its receives from, if not from a queue of its own.
    pub srq: Option<Arc<P::Srq>>,
    /// The capacities that are asked for.
    pub cap: QpCap,
    /// Every send completes visibly.
    pub signal_all: bool,
    /// What it sends to a multicast group doesn't come back to itself.
    pub block_loopback: bool,
    /// Where events go.
    pub upcall: QpUpcall,
}

/// A new QP.
pub struct QpCreated<Q> {
    /// The QP.
    pub qp: Arc<Q>,
    /// Its number.
    pub qpn: Qpn,
    /// The capacities granted: at least those asked for.
    pub cap: QpCap,
    /// What the process's library is told.
    pub reply: QpReply,
}

/// Where a process finds the rings of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpReply {
    /// The receive queue.
    pub rq: RingReply,
    /// The send queue.
    pub sq: RingReply,
    /// The slot of its doorbell, if it has one.
    pub slot: Option<u32>,
}

impl QpReply {
    /// `struct rxe_create_qp_resp` of `rdma_user_rxe.h`, and behind it `struct rrxe_create_qp_resp`,
    /// for which stock librxe has no room.
    pub(crate) fn to_bytes(self) -> [[u8; RingReply::SIZE]; 3] {
        let mut doorbell = [0; RingReply::SIZE];
        let slot = self.slot.unwrap_or(bindings::RRXE_NO_SLOT);
        for (place, byte) in doorbell.iter_mut().zip(slot.to_ne_bytes()) {
            *place = byte;
        }
        [self.rq.to_bytes(), self.sq.to_bytes(), doorbell]
    }
}

/// Where a process finds a ring: `struct mminfo` of `rdma_user_rxe.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingReply {
    /// The offset to map it by.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u32,
}

impl RingReply {
    /// Bytes of the structure.
    pub const SIZE: usize = 16;

    /// The structure: offset, size, padding.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let (offset, rest) = bytes.split_at_mut(8);
        offset.copy_from_slice(&self.offset.to_ne_bytes());
        let (size, _padding) = rest.split_at_mut(4);
        size.copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }
}

/// What `modify_qp` changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpModify {
    /// The attributes.
    pub attrs: Attrs,
    /// The peer's address, if `attrs.av` is set.
    pub av: Option<Av>,
}

/// What `query_qp` reports.
#[derive(Clone, Copy, Debug)]
pub struct QpQuery {
    /// State and attributes.
    pub attrs: CurrentAttrs,
    /// The peer's address, if one was set.
    pub av: Option<Av>,
    /// Capacities.
    pub cap: QpCap,
    /// Every send completes visibly.
    pub signal_all: bool,
}
