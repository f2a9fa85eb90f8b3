// SPDX-License-Identifier: GPL-2.0

//! Completions: the engine's reports about finished work requests.

use crate::ids::{Imm, Qpn, Rkey};

/// Status of a completion. The discriminants are those of `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WcStatus {
    /// The operation took place.
    Success = 0,
    /// The length of a message was wrong for its buffer, its operation or the network device.
    LocLenErr = 1,
    /// This QP can't carry out the work request.
    LocQpOpErr = 2,
    /// A local key, range or permission was wrong.
    LocProtErr = 4,
    /// The QP entered an error state before the work request completed.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The responder violated the protocol.
    BadRespErr = 7,
    /// A peer's request had no access to the memory that the request named. The QP is in the error
    /// state.
    LocAccessErr = 8,
    /// The responder found the request invalid.
    RemInvReqErr = 9,
    /// The responder refused access to its memory.
    RemAccessErr = 10,
    /// The responder failed to carry out the request.
    RemOpErr = 11,
    /// The transport retry count was exceeded.
    RetryExcErr = 12,
    /// The RNR retry count was exceeded.
    RnrRetryExcErr = 13,
    /// The responder reported a violation of XRC (NAK "invalid RD request").
    RemInvRdReqErr = 15,
    /// An internal error of the provider.
    GeneralErr = 21,
}

/// Operation of a completion. The discriminants are those of `enum ib_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WcOpcode {
    /// SEND.
    Send = 0,
    /// RDMA WRITE.
    RdmaWrite = 1,
    /// RDMA READ.
    RdmaRead = 2,
    /// COMPARE AND SWAP.
    CompSwap = 3,
    /// FETCH AND ADD.
    FetchAdd = 4,
    /// Memory window bind.
    BindMw = 5,
    /// Local invalidation.
    LocalInv = 6,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
    /// Fast registration (kernel only).
    RegMr = 10,
    /// FLUSH.
    Flush = 8,
    /// A received SEND.
    Recv = 128,
    /// A received RDMA WRITE with immediate.
    RecvRdmaWithImm = 129,
}

/// Part of a received message besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvExtra {
    /// The message carried nothing else.
    None,
    /// Immediate data.
    Imm(Imm),
    /// The remote key that the message invalidated.
    Invalidated(Rkey),
}

/// A completion for the send CQ (`struct ib_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWc {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Result of the work request.
    pub status: WcStatus,
    /// Operation of the work request.
    pub opcode: WcOpcode,
    /// Length of the message in bytes: 8 for an atomic, 0 for a local operation. Also set if the
    /// work request failed.
    pub byte_len: u32,
}

/// A completion for the receive CQ (`struct ib_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWc {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Result of the work request.
    pub status: WcStatus,
    /// [`WcOpcode::Recv`] or [`WcOpcode::RecvRdmaWithImm`].
    pub opcode: WcOpcode,
    /// Number of bytes received. Includes the 40 bytes of the global route header of a datagram.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: RecvExtra,
    /// Number of the sender's QP. For a connection, the number of the connected QP. 0 for a raw
    /// packet QP.
    pub src_qp: Qpn,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// The buffer starts with a 40-byte global route header, as those of datagrams do.
    pub grh: bool,
}
