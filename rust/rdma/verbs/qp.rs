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
    abi::replies::QpReply,
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
    /// Shared receive queue, if the QP takes its receives from one.
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
    /// Granted capacities: at least the requested ones, but zero for a receive queue that the QP
    /// does not have of its own.
    pub cap: QpCap,
    /// Response to the process's library.
    pub reply: QpReply,
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
