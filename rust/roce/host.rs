// SPDX-License-Identifier: GPL-2.0

//! The traits by which the engine reaches its host: queues, memory, completions.
//!
//! The engine makes all calls while its caller has exclusive access to it. No method may sleep, and
//! none may call back into the engine. "The payload" is that of the packet that the engine handles
//! at the moment. The host keeps it, and the engine names only its destination.

use crate::early::{Direction, Kept};
use crate::ids::{Rkey, Srqn};
use crate::psn::Psn;
use crate::wc::{RecvWc, SendWc, WcStatus};
use crate::wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendSlot, SendWr};

/// Result of taking the next work request from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch<T> {
    /// The queue is empty.
    Empty,
    /// The next work request.
    Wr(T),
    /// The next work request can't be executed. It completes with this status, and the QP enters an
    /// error state.
    Malformed(T, WcStatus),
}

/// The reason why a shared receive queue gives no WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFault {
    /// The QP's XRC domain has no queue with the number that the XRC request names. The engine
    /// sends the NAK "invalid request".
    Unknown,
    /// The queue is in error, and the QP that needs it enters the error state too. On a reliable
    /// service the engine sends the NAK "remote operational error".
    Broken,
}

/// The reason why a peer may not access memory. An unreliable service drops the packet instead of
/// sending the NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFault {
    /// The key is unknown or of another protection domain, the range exceeds the region, or the
    /// permission is missing. The engine sends the NAK "remote access error".
    Denied,
    /// The request is misaligned or otherwise malformed. The engine sends the NAK "invalid
    /// request".
    Invalid,
    /// The QP's XRC domain doesn't have the shared receive queue that the XRC request names. The
    /// engine sends the NAK "invalid request".
    NoQueue,
    /// The access failed although it was granted. The engine sends the NAK "remote operational
    /// error".
    Failed,
    /// The memory isn't resident, and the host is about to serve the page fault. The packet counts
    /// as lost.
    Retry,
}

/// The reason why the payload could not be stored in the QP's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterFault {
    /// The work request ends with this status.
    Failed(WcStatus),
    /// The memory isn't resident, and the host is about to serve the page fault. The packet counts
    /// as lost.
    Retry,
}

impl From<WcStatus> for ScatterFault {
    fn from(status: WcStatus) -> Self {
        Self::Failed(status)
    }
}

/// Kind of a peer's access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE or ATOMIC WRITE.
    Write,
    /// Atomic operation.
    Atomic,
    /// FLUSH.
    Flush(FlushKind),
}

/// Kind of a local work request's access to its SGEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// The work request reads its SGEs (gather).
    Read,
    /// The work request writes to its SGEs (scatter).
    Write,
}

/// The send queue of the QP.
pub trait SendQueue {
    /// Takes the next posted WQE, validates it and keeps a copy of its SGEs under its slot.
    fn take_send(&mut self) -> Fetch<SendWr>;

    /// Returns the slot of the oldest taken WQE to its consumer. The engine calls this once for
    /// each taken slot, in order.
    fn retire_send(&mut self, slot: SendSlot);

    /// Checks that `access` to all SGEs of `slot` is allowed. Inline payload passes always.
    ///
    /// # Errors
    ///
    /// Returns `LocProtErr` if a key, a range or a permission is wrong.
    fn check_send(&mut self, slot: SendSlot, access: LocalAccess) -> Result<(), WcStatus>;

    /// Copies the payload of a READ response into the SGEs of `slot`, from byte `offset` of the
    /// message.
    ///
    /// # Errors
    ///
    /// Returns [`ScatterFault::Failed`] with `LocProtErr` or `LocLenErr`, or
    /// [`ScatterFault::Retry`].
    fn scatter_send(&mut self, slot: SendSlot, offset: u32) -> Result<(), ScatterFault>;

    /// Stores the original value that an atomic returned, in host byte order, in the SGEs of
    /// `slot`.
    ///
    /// # Errors
    ///
    /// Returns [`ScatterFault::Failed`] with `LocProtErr` or `LocLenErr`, or
    /// [`ScatterFault::Retry`].
    fn scatter_atomic(&mut self, slot: SendSlot, original: u64) -> Result<(), ScatterFault>;

    /// Carries out an operation that sends no packet.
    ///
    /// # Errors
    ///
    /// Returns the status of the completion, such as `MwBindErr` or `LocQpOpErr`.
    fn execute_local(&mut self, slot: SendSlot, op: LocalOp) -> Result<(), WcStatus>;
}

/// The receive queue of the QP, or its shared receive queue. For an XRC target, all shared receive
/// queues of its XRC domain.
pub trait RecvQueue {
    /// Takes the next receive WQE; it can't be put back. The host keeps its SGEs until
    /// `release_recv`.
    ///
    /// # Errors
    ///
    /// Returns [`QueueFault::Broken`] if a shared receive queue is in error.
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault>;

    /// Takes the next receive WQE of the shared receive queue that an XRC request names. The host
    /// keeps the SGEs and remembers the queue: the completion goes to that queue's CQ.
    ///
    /// # Errors
    ///
    /// Returns any [`QueueFault`].
    fn take_xrc_recv(&mut self, _srqn: Srqn) -> Result<Fetch<RecvWr>, QueueFault> {
        Err(QueueFault::Unknown)
    }

    /// Returns whether the shared receive queue that `take_xrc_recv` used last still exists.
    fn has_named_queue(&self) -> bool {
        true
    }

    /// Ends the use of the SGEs of `slot`.
    fn release_recv(&mut self, slot: RecvSlot);

    /// Copies the payload into the SGEs of `slot`, from byte `offset`.
    ///
    /// The payload of a datagram starts after [`crate::wire::grh::GRH_LEN`] bytes, which the host
    /// fills with the global route header. For a datagram the engine makes this call even if the
    /// payload is empty.
    ///
    /// # Errors
    ///
    /// Returns [`ScatterFault::Failed`] with `LocProtErr` or `LocLenErr`, or
    /// [`ScatterFault::Retry`].
    fn scatter_recv(&mut self, slot: RecvSlot, offset: u32) -> Result<(), ScatterFault>;
}

/// The memory that peers can access through this QP's protection domain.
///
/// For an XRC target, the protection domain is that of the shared receive queue that the current
/// packet names (IBTA annex A14). If the XRC domain lacks that queue, each access fails with
/// [`AccessFault::NoQueue`].
pub trait Memory {
    /// Checks a whole range before its first byte is accessed. The engine doesn't call this for a
    /// length of zero.
    ///
    /// # Errors
    ///
    /// Returns any [`AccessFault`].
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessFault>;

    /// Copies the payload to `va`. Checks key, range and permission: they may have been revoked
    /// after [`Self::check_remote`], which the engine doesn't call for every message.
    ///
    /// # Errors
    ///
    /// Returns any [`AccessFault`].
    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault>;

    /// Carries out an atomic on 8 aligned bytes and returns the original value, in host byte order.
    ///
    /// # Errors
    ///
    /// Returns any [`AccessFault`].
    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault>;

    /// Stores the 8 payload bytes of an ATOMIC WRITE to `va` in one piece.
    ///
    /// # Errors
    ///
    /// Returns any [`AccessFault`].
    fn atomic_write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault>;

    /// Makes a range or a whole region durable or visible, as `kind` says.
    ///
    /// # Errors
    ///
    /// Returns any [`AccessFault`].
    fn flush_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        kind: FlushKind,
    ) -> Result<(), AccessFault>;

    /// Invalidates the key that a SEND with invalidate names.
    ///
    /// # Errors
    ///
    /// Returns [`AccessFault::Denied`] if the key can't be invalidated, or
    /// [`AccessFault::NoQueue`].
    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault>;
}

/// The packets of a reliable connection that arrived before a missing one ([`crate::early`]).
///
/// A host that keeps none uses the default methods. The peer then sends all packets after a missing
/// one again.
pub trait EarlyPackets {
    /// Keeps the packet that the engine handles at the moment, until the engine expects its `psn`.
    /// Then the host passes it to the engine again, before any other packet of this `direction`.
    /// The engine expects `expected` now. The host may drop a kept packet at any time.
    ///
    /// The host may store the packet when the engine has handled it. The engine does not call
    /// [`Self::drop_early`] between this call and that moment.
    fn keep_early(&mut self, _direction: Direction, _expected: Psn, _psn: Psn) -> Kept {
        Kept::Refused
    }

    /// Returns the PSN of the first kept packet from `start` on. The engine expects `expected` now.
    fn first_early(&mut self, _direction: Direction, _expected: Psn, _start: Psn) -> Option<Psn> {
        None
    }

    /// Returns a random number that a peer can't guess.
    fn random(&mut self) -> u32 {
        0
    }

    /// Drops all kept packets of this direction.
    fn drop_early(&mut self, _direction: Direction) {}
}

/// An asynchronous event of the QP. The host delivers it after it has dropped all locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `IB_EVENT_COMM_EST`: the QP carried out a request in RTR.
    CommEst,
    /// `IB_EVENT_SQ_DRAINED`: the send queue has drained in SQD.
    SqDrained,
    /// `IB_EVENT_QP_FATAL`: an error of this host broke the QP.
    QpFatal,
    /// `IB_EVENT_QP_REQ_ERR`: a malformed request broke the QP.
    QpReqErr,
    /// `IB_EVENT_QP_ACCESS_ERR`: a request without access rights broke the QP.
    QpAccessErr,
    /// `IB_EVENT_QP_LAST_WQE_REACHED`: the QP takes no more from its shared receive queue.
    LastWqeReached,
}

/// A counter of the engine. The host keeps the values (`rdma statistic`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Received requests that were carried out before.
    DuplicateRequest,
    /// Received requests ahead of the expected PSN (reliable services), or with any other PSN than
    /// the expected one (UC).
    OutOfSeqRequest,
    /// Request packets ahead of the expected PSN that the host keeps.
    EarlyRequest,
    /// READ responses and atomic acknowledgments ahead of the expected PSN that the host keeps.
    EarlyResponse,
    /// Received RNR NAKs, except those that arrive during the wait that an earlier one requested.
    RcvdRnrErr,
    /// Sent RNR NAKs.
    SendRnrErr,
    /// Received NAKs of the code "PSN sequence error", also those for a gap behind early packets.
    RcvdSeqErr,
    /// Acknowledgments that were due, and that a later one replaced before they were sent.
    AckDeferred,
    /// Requests that failed because the transport retries were exceeded.
    RetryExceeded,
    /// Requests that failed because the RNR retries were exceeded.
    RnrRetryExceeded,
    /// Times that the requester began to send again from the oldest unacknowledged packet, because
    /// packets or responses were lost.
    CompleterRetry,
    /// Retransmission timeouts (RTO): the requester sent its oldest unacknowledged packet again.
    Rto,
    /// Packets that could not be sent.
    SendErr,
    /// Completed SENDs.
    RdmaSends,
    /// Received messages that completed a receive WQE.
    RdmaRecvs,
    /// Packets that the QP dropped for this reason.
    Dropped(QpDropReason),
}

/// The reason why a queue pair dropped a packet.
///
/// Duplicates, requests that lead to an RNR NAK and requests of a reliable service ahead of the
/// expected PSN have other counters. Requests that lead to any other NAK aren't counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpDropReason {
    /// The packet is of another transport service (IBTA 1.x §9.6.1.4).
    Service,
    /// The QP's state admits no such packet (§10.3.1).
    State,
    /// The packet's partition isn't the QP's (§9.6.1.1.3).
    Pkey,
    /// The packet's Q_Key isn't the QP's (§9.6.1.1.4).
    Qkey,
    /// A message of an unreliable service found no receive WQE.
    NoReceive,
    /// A message of an unreliable service doesn't fit the receive WQE.
    TooLong,
    /// The packet is out of order, or its length or operation is wrong, and the service has no
    /// NAKs.
    Invalid,
    /// The packet names memory that it may not access, and the service has no NAKs.
    Access,
    /// The response answers no request in flight.
    Unsolicited,
}

/// The sink of completions, events and counts.
pub trait Completions {
    /// Pushes a completion to the send CQ.
    fn complete_send(&mut self, wc: SendWc);
    /// Pushes a completion to the receive CQ.
    fn complete_recv(&mut self, wc: RecvWc);
    /// Queues an asynchronous event.
    fn raise(&mut self, event: Event);
    /// Increments the counter `what`.
    fn count(&mut self, what: Count);
}

/// All that the engine needs from the host of one QP.
pub trait Host: SendQueue + RecvQueue + Memory + EarlyPackets + Completions {}

impl<T: SendQueue + RecvQueue + Memory + EarlyPackets + Completions> Host for T {}
