// SPDX-License-Identifier: GPL-2.0

//! Completions: what the engine reports of a finished work request.

use crate::ids::{Imm, Qpn, Rkey};

/// The status of a completion; the discriminants are those of `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WcStatus {
    /// The operation took place.
    Success = 0,
    /// A message was longer than the buffer, or than 2³¹ bytes.
    LocLenErr = 1,
    /// The work request could not be carried out by this QP.
    LocQpOpErr = 2,
    /// A local key, range or permission was wrong.
    LocProtErr = 4,
    /// The QP entered the error state first.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The responder violated the protocol.
    BadRespErr = 7,
    /// A local access error while executing an incoming request.
    LocAccessErr = 8,
    /// The responder found the request malformed.
    RemInvReqErr = 9,
    /// The responder refused access to its memory.
    RemAccessErr = 10,
    /// The responder failed to carry out the request.
    RemOpErr = 11,
    /// The transport retry count was exceeded.
    RetryExcErr = 12,
    /// The RNR retry count was exceeded.
    RnrRetryExcErr = 13,
    /// The responder found the request in violation of XRC.
    RemInvRdReqErr = 15,
    /// An internal error of the provider.
    GeneralErr = 21,
}

/// The operation of a completion; the discriminants are those of `enum ib_wc_opcode`.
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

/// What a received message carried besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvExtra {
    /// Nothing.
    None,
    /// Immediate data.
    Imm(Imm),
    /// A key that the message invalidated.
    Invalidated(Rkey),
}

/// A completion of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWc {
    /// The work request's cookie.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it did.
    pub opcode: WcOpcode,
    /// Bytes moved by a READ or atomic; the message length otherwise.
    pub byte_len: u32,
}

/// A completion of the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWc {
    /// The work request's cookie.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// SEND or WRITE WITH IMMEDIATE.
    pub opcode: WcOpcode,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: RecvExtra,
    /// The sender's QP (datagrams; otherwise the connected peer).
    pub src_qp: Qpn,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// The buffer starts with a 40-byte global route header (datagrams only).
    pub grh: bool,
}
