// SPDX-License-Identifier: GPL-2.0

//! What a QP is made of and what `modify_qp` may set.

use crate::ids::{Qkey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;

/// The transport of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// General service interface (QP1).
    Gsi,
}

/// Fixed at creation.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The transport.
    pub kind: QpKind,
    /// The QP's own number.
    pub qpn: Qpn,
    /// Receives from a shared receive queue.
    pub has_srq: bool,
}

/// The states of a QP (IBTA 1.x §10.3.1); the discriminants are those of `enum ib_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Just created or reset.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue draining or drained.
    Sqd = 4,
    /// Send queue in error (UC, UD).
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

/// What remote peers may do, and whether: the QP's `qp_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRights {
    /// RDMA WRITE (also ATOMIC WRITE).
    pub write: bool,
    /// RDMA READ.
    pub read: bool,
    /// Atomics.
    pub atomic: bool,
    /// FLUSH of both kinds.
    pub flush: bool,
}

/// The attributes of one `modify_qp` call: `None` where the mask bit is clear.
///
/// Address vectors stay with the host; the engine only learns that one was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// `IB_QP_STATE`.
    pub state: Option<QpState>,
    /// `IB_QP_CUR_STATE`.
    pub cur_state: Option<QpState>,
    /// `IB_QP_EN_SQD_ASYNC_NOTIFY`.
    pub sqd_async_notify: Option<bool>,
    /// `IB_QP_ACCESS_FLAGS`.
    pub access: Option<RemoteRights>,
    /// `IB_QP_PKEY_INDEX`; only 0 exists.
    pub pkey_index: Option<u16>,
    /// `IB_QP_PORT`; only 1 exists.
    pub port: Option<u8>,
    /// `IB_QP_QKEY`.
    pub qkey: Option<Qkey>,
    /// `IB_QP_AV`.
    pub av: bool,
    /// `IB_QP_PATH_MTU`.
    pub path_mtu: Option<Mtu>,
    /// `IB_QP_TIMEOUT`: 4.096 µs · 2ᵗ, 0–31; 0 is never.
    pub timeout: Option<u8>,
    /// `IB_QP_RETRY_CNT`: 0–7.
    pub retry_cnt: Option<u8>,
    /// `IB_QP_RNR_RETRY`: 0–7; 7 is for ever.
    pub rnr_retry: Option<u8>,
    /// `IB_QP_RQ_PSN`.
    pub rq_psn: Option<Psn>,
    /// `IB_QP_MAX_QP_RD_ATOMIC`: READs and atomics in flight as requester.
    pub max_rd_atomic: Option<u8>,
    /// `IB_QP_ALT_PATH`: never supported.
    pub alt_path: bool,
    /// `IB_QP_MIN_RNR_TIMER`: encoded, 0–31.
    pub min_rnr_timer: Option<u8>,
    /// `IB_QP_SQ_PSN`.
    pub sq_psn: Option<Psn>,
    /// `IB_QP_MAX_DEST_RD_ATOMIC`: READs and atomics served at a time as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// `IB_QP_PATH_MIG_STATE`: accepted where the table allows it and otherwise without effect.
    pub path_mig_state: bool,
    /// `IB_QP_CAP`: resizing is never supported.
    pub cap: bool,
    /// `IB_QP_DEST_QPN`.
    pub dest_qpn: Option<Qpn>,
    /// `IB_QP_RATE_LIMIT`: never supported.
    pub rate_limit: bool,
}
