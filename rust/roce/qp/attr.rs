// SPDX-License-Identifier: GPL-2.0

//! The attributes of a QP: those fixed at its creation, and those that `modify_qp` sets.

use crate::ids::{Qkey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::wr::FlushKind;

/// Transport service of a QP (`enum ib_qp_type`).
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
    /// Target of an extended reliable connection: carries out requests. Its receive WQEs come from
    /// the shared receive queues that the requests name.
    XrcTgt,
    /// Raw packet QP. It sends and receives whole L2 frames. The engine takes its send WQEs from
    /// the queue and completes them; the host sends the frames. To the engine a frame is a datagram
    /// without a destination.
    RawPacket,
}

impl QpKind {
    /// Returns whether requests are acknowledged, and sent again until they are.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    /// Returns whether the QP has a send queue.
    pub const fn has_requester(self) -> bool {
        !matches!(self, Self::XrcTgt)
    }

    /// Returns whether the QP has a receive queue, its own or a shared one. An XRC target has none:
    /// each request names the queue that it takes a WQE from.
    pub const fn has_receives(self) -> bool {
        !matches!(self, Self::XrcIni | Self::XrcTgt)
    }
}

/// Attributes that are fixed when the QP is created.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Transport service.
    pub kind: QpKind,
    /// The QP's own number.
    pub qpn: Qpn,
    /// The QP takes its receive WQEs from a shared receive queue.
    pub has_srq: bool,
    /// MTU of the port: the largest payload of a datagram. Connected QPs use the path MTU instead.
    pub port_mtu: Mtu,
    /// The QP recovers from losses as only rrxe hosts do: its requester sends only missing packets
    /// again, and its responder keeps early packets ([`crate::early`]). The peer must allow it,
    /// too.
    pub fills_gaps: bool,
}

/// State of a QP (IBTA 1.x §10.3.1). The discriminants are those of `enum ib_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// The QP was just created or reset.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains or has drained.
    Sqd = 4,
    /// The send queue is in error (unreliable QPs).
    Sqe = 5,
    /// The QP is in error. All work requests are flushed.
    Err = 6,
}

impl QpState {
    /// Returns whether requests can be in flight in this state.
    pub fn sends(self) -> bool {
        match self {
            Self::Rts | Self::Sqd => true,
            Self::Reset | Self::Init | Self::Rtr | Self::Sqe | Self::Err => false,
        }
    }
}

/// The operations that peers may do: the QP's `qp_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRights {
    /// RDMA WRITE, and also ATOMIC WRITE.
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
    /// Returns whether every placement that `kind` requests is allowed.
    pub const fn allow_flush(self, kind: FlushKind) -> bool {
        let global = kind.placement & FlushKind::GLOBAL == 0 || self.flush_global;
        let persistent = kind.placement & FlushKind::PERSISTENT == 0 || self.flush_persistent;
        global && persistent
    }
}

/// The attributes of one `modify_qp` call. A field is `None` or `false` if its mask bit is clear.
///
/// The host keeps the address vectors. The engine learns only that the call has one.
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
    /// `IB_QP_TIMEOUT`: 4.096 µs · 2ᵗ, t = 0–31. 0 disables the timer.
    pub timeout: Option<u8>,
    /// `IB_QP_RETRY_CNT`: 0–7.
    pub retry_cnt: Option<u8>,
    /// `IB_QP_RNR_RETRY`: 0–7. 7 means without limit.
    pub rnr_retry: Option<u8>,
    /// `IB_QP_RQ_PSN`.
    pub rq_psn: Option<Psn>,
    /// `IB_QP_MAX_QP_RD_ATOMIC`: see [`Settings::max_rd_atomic`].
    pub max_rd_atomic: Option<u8>,
    /// `IB_QP_ALT_PATH`: never supported.
    pub alt_path: bool,
    /// `IB_QP_MIN_RNR_TIMER`: encoded, 0–31.
    pub min_rnr_timer: Option<u8>,
    /// `IB_QP_SQ_PSN`.
    pub sq_psn: Option<Psn>,
    /// `IB_QP_MAX_DEST_RD_ATOMIC`: see [`Settings::max_dest_rd_atomic`].
    pub max_dest_rd_atomic: Option<u8>,
    /// `IB_QP_PATH_MIG_STATE`: accepted in the transitions that allow it, without effect.
    pub path_mig_state: bool,
    /// `IB_QP_CAP`: resizing is never supported.
    pub cap: bool,
    /// `IB_QP_DEST_QPN`.
    pub dest_qpn: Option<Qpn>,
    /// `IB_QP_RATE_LIMIT`: never supported.
    pub rate_limit: bool,
}

/// The attributes that `modify_qp` has set. The requester and the responder read those they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Operations that peers may do.
    pub access: RemoteRights,
    /// Index of the partition key; always 0.
    pub pkey_index: u16,
    /// Port number; always 1.
    pub port: u8,
    /// Queue key of a datagram QP.
    pub qkey: Qkey,
    /// Largest payload of a packet of a connected QP.
    pub path_mtu: Mtu,
    /// Acknowledgment timeout: 4.096 µs · 2ᵗ, t = 0–31. 0 disables the timer.
    pub timeout: u8,
    /// Transport retries, 0–7.
    pub retry_cnt: u8,
    /// RNR retries, 0–7. 7 means without limit.
    pub rnr_retry: u8,
    /// Maximum of READs, atomics, ATOMIC WRITEs and FLUSHes in flight as requester.
    pub max_rd_atomic: u8,
    /// Maximum of READs, atomics, ATOMIC WRITEs and FLUSHes whose answers the responder remembers.
    pub max_dest_rd_atomic: u8,
    /// Encoded timer of the RNR NAKs that this QP sends, 0–31.
    pub min_rnr_timer: u8,
    /// QP number of the connected peer.
    pub dest_qpn: Qpn,
}

impl Settings {
    /// Returns whether the QP has a timer and retries, so that it sends lost requests again.
    #[inline]
    pub fn retries_losses(&self) -> bool {
        self.timeout != 0 && self.retry_cnt != 0
    }
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

/// Result of `query_qp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentAttrs {
    /// Current state.
    pub state: QpState,
    /// The QP is in SQD, and a started work request isn't finished.
    pub sq_draining: bool,
    /// First PSN of the next message that this QP starts.
    pub sq_psn: Psn,
    /// PSN that the next request packet from the peer should carry.
    pub rq_psn: Psn,
    /// The attributes that `modify_qp` has set.
    pub settings: Settings,
}

/// The reason why `modify_qp` failed. No attribute was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// The current state has no such transition.
    Transition,
    /// `cur_state` isn't the current state.
    CurState,
    /// The call lacks an attribute that the transition requires.
    Missing,
    /// The call has an attribute that the transition doesn't allow.
    Forbidden,
    /// A value is out of range.
    Range,
    /// Alternate paths, rate limits and resizing aren't supported.
    Unsupported,
    /// The send queue hasn't drained yet.
    Draining,
}
