// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: the arguments and results of their verbs.

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

/// Capacities of a QP (`struct ib_qp_cap`): requested at the creation, and returned as granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Number of send WQEs.
    pub max_send_wr: u32,
    /// Number of receive WQEs.
    pub max_recv_wr: u32,
    /// Number of SGEs in a send WQE.
    pub max_send_sge: u32,
    /// Number of SGEs in a receive WQE.
    pub max_recv_sge: u32,
    /// Number of bytes of inline payload in a send WQE.
    pub max_inline: u32,
}

/// Arguments of a QP's creation.
pub struct QpInit<P: Provider> {
    /// Transport type.
    pub kind: QpKind,
    /// Protection domain. An XRC target QP has none.
    pub pd: Option<Arc<P::Pd>>,
    /// CQ for completions of sends, if the QP sends.
    pub send_cq: Option<Arc<P::Cq>>,
    /// CQ for completions of receives, if the QP has a receive queue.
    pub recv_cq: Option<Arc<P::Cq>>,
    /// XRC domain of an XRC target QP.
    pub xrcd: Option<Arc<P::Xrcd>>,
    /// Shared receive queue, if the QP has no receive queue of its own.
    pub srq: Option<Arc<P::Srq>>,
    /// Requested capacities.
    pub cap: QpCap,
    /// Whether every send generates a completion (`IB_SIGNAL_ALL_WR`).
    pub signal_all: bool,
    /// Whether the QP does not receive its own multicast packets
    /// (`IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK`).
    pub block_loopback: bool,
    /// Upcall for asynchronous events of the QP.
    pub upcall: QpUpcall,
}

/// Results of a QP's creation.
pub struct QpCreated<Q> {
    /// The QP.
    pub qp: Arc<Q>,
    /// Number of the QP.
    pub qpn: Qpn,
    /// Granted capacities: at least the requested ones.
    pub cap: QpCap,
    /// Response to the process's library.
    pub reply: QpReply,
}

/// Location of a QP's rings, in the response to its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpReply {
    /// Ring of the receive queue.
    pub rq: RingReply,
    /// Ring of the send queue.
    pub sq: RingReply,
    /// Slot of the QP in the doorbell page, or `None` if its sends take the doorbell call.
    pub slot: Option<u32>,
}

impl QpReply {
    /// Returns the bytes of `struct rxe_create_qp_resp` (`rdma_user_rxe.h`), followed by
    /// `struct rrxe_create_qp_resp` (`rrxe-abi.h`). Stock librxe has no room for the latter.
    pub(crate) fn to_bytes(self) -> [[u8; RingReply::SIZE]; 3] {
        let mut doorbell = [0; RingReply::SIZE];
        let slot = self.slot.unwrap_or(bindings::RRXE_NO_SLOT);
        for (place, byte) in doorbell.iter_mut().zip(slot.to_ne_bytes()) {
            *place = byte;
        }
        [self.rq.to_bytes(), self.sq.to_bytes(), doorbell]
    }
}

/// Location of a ring, in a response to its process: `struct mminfo` of `rdma_user_rxe.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingReply {
    /// Offset for `mmap()`, in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u32,
}

impl RingReply {
    /// Size of the structure in bytes.
    pub const SIZE: usize = 16;

    /// Returns the bytes of the structure: offset, size, padding.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let (offset, rest) = bytes.split_at_mut(8);
        offset.copy_from_slice(&self.offset.to_ne_bytes());
        let (size, _padding) = rest.split_at_mut(4);
        size.copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }
}

/// Changes of a QP by `modify_qp`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpModify {
    /// New attributes.
    pub attrs: Attrs,
    /// Address vector of the peer, if `attrs.av` is set.
    pub av: Option<Av>,
}

/// Results of `query_qp`.
#[derive(Clone, Copy, Debug)]
pub struct QpQuery {
    /// State and attributes.
    pub attrs: CurrentAttrs,
    /// Address vector of the peer, if one was set.
    pub av: Option<Av>,
    /// Granted capacities.
    pub cap: QpCap,
    /// Whether every send generates a completion (`IB_SIGNAL_ALL_WR`).
    pub signal_all: bool,
}
