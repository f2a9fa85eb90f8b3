// SPDX-License-Identifier: GPL-2.0

//! What a QP is made of and what `modify_qp` may set.

use crate::ids::{Qkey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::wr::FlushKind;

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
    /// Initiator of an extended reliable connection: sends requests and gets responses (IBTA annex
    /// A14).
    XrcIni,
    /// Its target: carries requests out, with receives from the shared queues that they name.
    XrcTgt,
    /// Whole frames of the link layer, which the engine only takes from the send queue and completes:
    /// they are its host's to send. A frame is a datagram to nobody.
    RawPacket,
}

impl QpKind {
    /// Requests are acknowledged, and sent again until they are.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    /// It has a send queue.
    pub const fn has_requester(self) -> bool {
        !matches!(self, Self::XrcTgt)
    }

    /// It has a receive queue, of its own or shared. An XRC target's receives come from wherever a
    /// request says.
    pub const fn has_receives(self) -> bool {
        !matches!(self, Self::XrcIni | Self::XrcTgt)
    }
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
    /// The port's MTU: the largest payload of a datagram. Connected QPs use their path's.
    pub port_mtu: Mtu,
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

impl QpState {
    /// Requests are in flight, or may be.
    pub fn sends(self) -> bool {
        match self {
            Self::Rts | Self::Sqd => true,
            Self::Reset | Self::Init | Self::Rtr | Self::Sqe | Self::Err => false,
        }
    }
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
    /// FLUSH for global visibility.
    pub flush_global: bool,
    /// FLUSH for persistence.
    pub flush_persistent: bool,
}

impl RemoteRights {
    /// Every placement that `kind` asks for is allowed.
    pub const fn allow_flush(self, kind: FlushKind) -> bool {
        let global = kind.placement & FlushKind::GLOBAL == 0 || self.flush_global;
        let persistent = kind.placement & FlushKind::PERSISTENT == 0 || self.flush_persistent;
        global && persistent
    }
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

/// The attributes that `modify_qp` has set and that both sides of a QP read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What peers may do.
    pub access: RemoteRights,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Port number.
    pub port: u8,
    /// Queue key of a datagram QP.
    pub qkey: Qkey,
    /// Largest payload of a packet of a connected QP.
    pub path_mtu: Mtu,
    /// Acknowledgement timeout: 4.096 µs · 2ᵗ, 0–31; 0 is never.
    pub timeout: u8,
    /// Transport retries, 0–7.
    pub retry_cnt: u8,
    /// RNR retries, 0–7; 7 is for ever.
    pub rnr_retry: u8,
    /// READs and atomics in flight as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics that the responder remembers.
    pub max_dest_rd_atomic: u8,
    /// The timer that an RNR NAK carries, 0–31.
    pub min_rnr_timer: u8,
    /// The connected peer.
    pub dest_qpn: Qpn,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            access: RemoteRights::default(),
            pkey_index: 0,
            port: 1,
            qkey: Qkey(0),
            path_mtu: Mtu::Bytes256,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            dest_qpn: Qpn::new(0),
        }
    }
}

/// What `query_qp` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentAttrs {
    /// The state.
    pub state: QpState,
    /// In SQD: what was started isn't finished.
    pub sq_draining: bool,
    /// The PSN that the next new request packet will carry.
    pub sq_psn: Psn,
    /// The PSN that the next request packet should carry.
    pub rq_psn: Psn,
    /// The rest.
    pub settings: Settings,
}

/// Why a `modify_qp` was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// No such transition from the current state.
    Transition,
    /// `cur_state` isn't the current state.
    CurState,
    /// An attribute that the transition requires is missing.
    Missing,
    /// An attribute that the transition doesn't allow was given.
    Forbidden,
    /// A value is out of range.
    Range,
    /// Alternate paths, rate limits and resizing aren't supported.
    Unsupported,
    /// The send queue hasn't drained yet.
    Draining,
}
