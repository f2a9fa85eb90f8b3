// SPDX-License-Identifier: GPL-2.0

//! What the engine asks of its surroundings.
//!
//! All calls are made by whoever runs the engine, with exclusive access to it; none may sleep, and
//! none may call back into the engine. "The payload" is that of the packet being handled: the host
//! keeps it, the engine only says where it goes.

use crate::ids::{Rkey, Srqn};
use crate::wc::{RecvWc, SendWc, WcStatus};
use crate::wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendSlot, SendWr};

/// The answer to "give me the next work request".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch<T> {
    /// None is posted.
    Empty,
    /// The next one.
    Wr(T),
    /// The next one can't be executed; the QP reports it so and goes to the error state.
    Malformed(T, WcStatus),
}

/// Why a shared queue gives no receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFault {
    /// An XRC request names it, and the QP's XRC domain has no such queue: NAK invalid request.
    Unknown,
    /// It is in error, and so is who needs it: NAK remote operational error.
    Broken,
}

/// Why memory was refused to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFault {
    /// Unknown key, other protection domain, out of range or no permission: NAK remote access error.
    Denied,
    /// Misaligned or otherwise malformed: NAK invalid request.
    Invalid,
    /// An XRC request names a shared queue that the QP's XRC domain doesn't have: NAK invalid request.
    NoQueue,
    /// The memory could not be reached although it was granted: NAK remote operational error.
    Failed,
    /// The memory isn't resident; the host will make it so. The packet counts as lost.
    Retry,
}

/// Why payload could not be stored to the QP's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterFault {
    /// The status with which the work request ends.
    Failed(WcStatus),
    /// The memory isn't resident; the host will make it so. The packet counts as lost.
    Retry,
}

impl From<WcStatus> for ScatterFault {
    fn from(status: WcStatus) -> Self {
        Self::Failed(status)
    }
}

/// What a peer wants with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Atomic operation.
    Atomic,
    /// FLUSH.
    Flush(FlushKind),
}

/// What a local work request does to its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// Gathers from it.
    Read,
    /// Scatters to it.
    Write,
}

/// The send queue of the QP.
pub trait SendQueue {
    /// Copies the next posted WQE out of the ring, validates it and keeps its SGEs under its slot.
    fn take_send(&mut self) -> Fetch<SendWr>;

    /// Gives the oldest taken slot back to the poster. Called once for each taken slot, in order.
    fn retire_send(&mut self, slot: SendSlot);

    /// Checks that all SGEs of `slot` may be used so. Inline payload always may.
    ///
    /// # Errors
    ///
    /// `LocProtErr`.
    fn check_send(&mut self, slot: SendSlot, access: LocalAccess) -> Result<(), WcStatus>;

    /// Copies the payload to `offset` bytes into the slot's SGEs (a READ response).
    ///
    /// # Errors
    ///
    /// [`ScatterFault`]; with `LocProtErr`, `LocLenErr`.
    fn scatter_send(&mut self, slot: SendSlot, offset: u32) -> Result<(), ScatterFault>;

    /// Stores the original value that an atomic returned, in host order, to the slot's SGEs.
    ///
    /// # Errors
    ///
    /// [`ScatterFault`]; with `LocProtErr`, `LocLenErr`.
    fn scatter_atomic(&mut self, slot: SendSlot, original: u64) -> Result<(), ScatterFault>;

    /// Carries out an operation that needs no peer.
    ///
    /// # Errors
    ///
    /// `MwBindErr`, `LocQpOpErr`, …: the completion's status.
    fn execute_local(&mut self, slot: SendSlot, op: LocalOp) -> Result<(), WcStatus>;
}

/// The receive queue of the QP, or its shared receive queue; of an XRC target, all those of its
/// domain.
pub trait RecvQueue {
    /// Takes the next receive WQE for good; the host keeps its SGEs until `release_recv`.
    ///
    /// # Errors
    ///
    /// [`QueueFault::Broken`] of a shared queue.
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault>;

    /// Takes the next receive WQE of the shared queue that an XRC request names. The host keeps the
    /// WQE's SGEs, and in mind whose it is: its completion goes to that queue's CQ.
    ///
    /// # Errors
    ///
    /// Any.
    fn take_xrc_recv(&mut self, _srqn: Srqn) -> Result<Fetch<RecvWr>, QueueFault> {
        Err(QueueFault::Unknown)
    }

    /// Whether the shared queue from which `take_xrc_recv` took last is there still.
    fn has_named_queue(&self) -> bool {
        true
    }

    /// The QP no longer needs the SGEs of `slot`.
    fn release_recv(&mut self, slot: RecvSlot);

    /// Copies the payload to `offset` bytes into the slot's SGEs.
    ///
    /// That of a datagram goes behind [`crate::wire::grh::GRH_LEN`] bytes, which the host fills
    /// with the global route header; the engine asks for it even if the payload is empty.
    ///
    /// # Errors
    ///
    /// [`ScatterFault`]; with `LocProtErr`, `LocLenErr`.
    fn scatter_recv(&mut self, slot: RecvSlot, offset: u32) -> Result<(), ScatterFault>;
}

/// The memory that peers may reach through this QP's protection domain; of an XRC target, through
/// that of the shared queue which the packet being handled names (IBTA annex A14). One that its
/// domain doesn't have is [`AccessFault::NoQueue`].
pub trait Memory {
    /// Checks a whole range before its first byte is touched. Not called for zero lengths.
    ///
    /// # Errors
    ///
    /// [`AccessFault`].
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessFault>;

    /// Copies the payload to `va`. Key, range and permission are checked again: they may have been
    /// revoked since the message's first packet.
    ///
    /// # Errors
    ///
    /// [`AccessFault`].
    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault>;

    /// Carries out an atomic on 8 aligned bytes and returns the original value (host order).
    ///
    /// # Errors
    ///
    /// [`AccessFault`].
    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault>;

    /// Stores the 8 payload bytes to `va` in one piece (ATOMIC WRITE).
    ///
    /// # Errors
    ///
    /// [`AccessFault`].
    fn atomic_write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault>;

    /// Makes a range durable or visible.
    ///
    /// # Errors
    ///
    /// [`AccessFault`].
    fn flush_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        kind: FlushKind,
    ) -> Result<(), AccessFault>;

    /// Invalidates a key because a SEND WITH INVALIDATE asked for it.
    ///
    /// # Errors
    ///
    /// [`AccessFault::Denied`].
    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault>;
}

/// An asynchronous event of the QP; delivered by the host outside all locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `IB_EVENT_COMM_EST`: a request was carried out while in RTR.
    CommEst,
    /// `IB_EVENT_SQ_DRAINED`.
    SqDrained,
    /// `IB_EVENT_QP_FATAL`.
    QpFatal,
    /// `IB_EVENT_QP_REQ_ERR`: a malformed request came.
    QpReqErr,
    /// `IB_EVENT_QP_ACCESS_ERR`: a request without access rights came.
    QpAccessErr,
    /// `IB_EVENT_QP_LAST_WQE_REACHED`.
    LastWqeReached,
}

/// What the engine counts; the host keeps the counters (names of `rdma statistic`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// A request that was already carried out came again.
    DuplicateRequest,
    /// A request came ahead of its turn.
    OutOfSeqRequest,
    /// An RNR NAK came.
    RcvdRnrErr,
    /// An RNR NAK was sent.
    SendRnrErr,
    /// A sequence-error NAK came.
    RcvdSeqErr,
    /// An acknowledgement was deferred.
    AckDeferred,
    /// Retries were exceeded.
    RetryExceeded,
    /// RNR retries were exceeded.
    RnrRetryExceeded,
    /// The requester went back.
    CompleterRetry,
    /// A packet could not be sent.
    SendErr,
    /// A SEND was completed.
    RdmaSends,
    /// A message was received.
    RdmaRecvs,
    /// A packet was dropped, for this reason.
    Dropped(QpDropReason),
}

/// Why a queue pair drops a packet that reached it. What a NAK or an RNR NAK tells the peer of, and
/// requests ahead of their turn or behind it, are counted under names of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpDropReason {
    /// It is of another transport service (IBTA 1.x §9.6.1.4).
    Service,
    /// The QP's state takes none such (§10.3.1).
    State,
    /// Its partition isn't the QP's (§9.6.1.1.3).
    Pkey,
    /// Its Q_Key isn't the QP's (§9.6.1.1.4).
    Qkey,
    /// A message that nobody acknowledges found no receive WQE.
    NoReceive,
    /// A message that nobody acknowledges doesn't fit the receive WQE.
    TooLong,
    /// It is out of place, or of a wrong length or operation, and can't be told so.
    Invalid,
    /// It names memory that it may not access, and can't be told so.
    Access,
    /// It answers nothing that is in flight.
    Unasked,
}

/// Where completions, events and counts go.
pub trait Completions {
    /// Pushes a completion to the send CQ.
    fn complete_send(&mut self, wc: SendWc);
    /// Pushes a completion to the receive CQ.
    fn complete_recv(&mut self, wc: RecvWc);
    /// Queues an asynchronous event.
    fn raise(&mut self, event: Event);
    /// Counts.
    fn count(&mut self, what: Count);
}

/// All of the surroundings of one QP.
pub trait Host: SendQueue + RecvQueue + Memory + Completions {}

impl<T: SendQueue + RecvQueue + Memory + Completions> Host for T {}
