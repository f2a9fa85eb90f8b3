// SPDX-License-Identifier: GPL-2.0

//! The responder: carries out the requests of a peer and answers them.
//!
//! [`check`] verifies order and lengths of a request packet. [`execute`] verifies rights, memory
//! and receive queue, carries the request out and records an answer. [`reply`] builds the response
//! packets. [`replay`] keeps the answers to READs, atomics, ATOMIC WRITEs and FLUSHes, since a peer
//! that misses one sends the request again, which [`duplicate`] then serves. [`train`] carries out
//! several packets as one. [`gap`] reports missing packets. [`ud`] is the whole responder of UD and
//! GSI QPs, [`raw`] that of raw packet QPs.
//!
//! First the pending answers of [`replay`] leave, in PSN order, then the one acknowledgment or NAK.
//! Payload isn't kept: a READ response names the memory to read.

mod check;
mod duplicate;
mod execute;
mod gap;
mod raw;
mod replay;
mod reply;
mod train;
mod ud;

#[cfg(test)]
mod tests;

use crate::host::{AccessFault, Count, Event, Fetch, Host, QpDropReason, QueueFault, ScatterFault};
use crate::ids::{Qpn, Srqn};
use crate::psn::Psn;
use crate::qp::{Context, Outcome, QpKind, Slots, Steps};
use crate::time::Instant;
use crate::wc::{RecvExtra, RecvWc, WcOpcode, WcStatus};
use crate::wire::packet::{Body, NakCode, Packet, SendPart, Service, WritePart};
use crate::wr::RecvWr;

pub use replay::Replay;
pub use ud::check_management;

use check::Message;
use gap::{Gap, Order};
use replay::{Number, Pending, Ring, Sent};

/// The responder of one QP.
///
/// # Invariants
///
/// A pending record of `ring` has an earlier PSN than `answer`, unless `answer` is for a duplicate.
#[derive(Debug)]
pub struct Responder<R: Slots<Replay>> {
    /// PSN of the next request packet.
    expected: Psn,
    /// Position of `expected`: number of PSNs that reliable requests took since the QP's creation.
    position: u64,
    /// Number of completed messages, modulo 2²⁴ (IBTA 1.x §9.7.7).
    msn: u32,
    /// The message of which more packets must arrive.
    message: Message,
    /// The receive WQE of the current message, or of the next one.
    held: Option<Held>,
    gap: Gap,
    answer: Answer,
    /// The records of READs, atomics, ATOMIC WRITEs and FLUSHes, with their pending answers.
    ring: Ring<R>,
    /// Data to undo the last poll with, if the host drops the packet.
    undo: Undo,
    /// Number of READ responses sent since a packet last arrived from the peer.
    unheard: u32,
    /// The peer repeats a READ whose responses are lost, as its last READ request says.
    peer_repeats_reads: bool,
}

/// A receive WQE that was taken from its queue.
#[derive(Clone, Copy, Debug)]
struct Held {
    wr: RecvWr,
    /// Status with which a malformed WQE must end.
    fault: Option<WcStatus>,
    /// The shared receive queue of an XRC domain that the WQE was taken from.
    srqn: Option<Srqn>,
}

/// The acknowledgment or NAK to send after all answers of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// No acknowledgment is due.
    Nothing,
    /// Acknowledges all packets up to this PSN.
    Ack(Psn),
    /// NAK "PSN sequence error": the expected packet is missing.
    Missing {
        /// PSN of the newest packet that arrived behind the gap.
        newest: Psn,
        /// PSN of an acknowledgment to send before the NAK, because the peer may ignore the NAK: if
        /// the packet behind the gap was forged, the NAK has a PSN that the peer hasn't sent. `due`
        /// is never the PSN of a READ or an atomic, whose response acknowledges the request.
        due: Option<Psn>,
    },
    /// RNR NAK: no receive WQE was in the QP's queue, or in the shared queue with this number.
    NotReady(Option<Srqn>),
    /// NAK of the packet with this PSN, which broke the QP.
    Refused(Psn, NakCode),
}

/// The state to restore if the host drops the last response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    /// There is nothing to restore.
    Nothing,
    /// The acknowledgment or NAK that was due.
    Answer(Answer),
    /// The state of a remembered answer, restored only if the poll was the last to change it.
    Replay {
        number: Number,
        before: (Pending, Sent),
        after: (Pending, Sent),
    },
}

/// The reason why a request packet wasn't carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The packet is dropped for this reason.
    Dropped(QpDropReason),
    /// There is no receive WQE.
    NotReady,
    /// Memory that the packet needs isn't resident. The packet counts as lost.
    Absent,
    /// The request is invalid; the NAK has this code.
    Request(NakCode),
    /// The XRC request names a shared receive queue that its XRC domain doesn't have.
    NoSuchQueue,
    /// The shared receive queue is in error.
    BrokenQueue,
    /// The message is longer than the receive WQE.
    TooLong,
    /// The receive WQE is invalid: it ends with this status, and the NAK has this code.
    Receive(WcStatus, NakCode),
}

impl From<AccessFault> for Refusal {
    fn from(fault: AccessFault) -> Self {
        match fault {
            AccessFault::NoQueue => Self::NoSuchQueue,
            _ => nak_code(fault).map_or(Self::Absent, Self::Request),
        }
    }
}

impl From<ScatterFault> for Refusal {
    fn from(fault: ScatterFault) -> Self {
        match fault {
            ScatterFault::Failed(status) => Self::Receive(status, NakCode::RemoteOperational),
            ScatterFault::Retry => Self::Absent,
        }
    }
}

impl Refusal {
    /// Returns the reason to count for a packet dropped without a NAK. Returns `None` for a packet
    /// that may come again, and for an invalid receive WQE.
    fn reason(self) -> Option<QpDropReason> {
        match self {
            Self::Dropped(reason) => Some(reason),
            Self::NotReady | Self::NoSuchQueue | Self::BrokenQueue => Some(QpDropReason::NoReceive),
            Self::Absent | Self::Receive(..) => None,
            Self::Request(NakCode::RemoteAccess) => Some(QpDropReason::Access),
            Self::Request(_) => Some(QpDropReason::Invalid),
            Self::TooLong => Some(QpDropReason::TooLong),
        }
    }
}

impl From<QueueFault> for Refusal {
    fn from(fault: QueueFault) -> Self {
        match fault {
            QueueFault::Unknown => Self::NoSuchQueue,
            QueueFault::Broken => Self::BrokenQueue,
        }
    }
}

/// Returns the code of the NAK for a fault; `None` if the packet counts as lost.
fn nak_code(fault: AccessFault) -> Option<NakCode> {
    match fault {
        AccessFault::Denied => Some(NakCode::RemoteAccess),
        AccessFault::Invalid | AccessFault::NoQueue => Some(NakCode::InvalidRequest),
        AccessFault::Failed => Some(NakCode::RemoteOperational),
        AccessFault::Retry => None,
    }
}

impl<R: Slots<Replay>> Responder<R> {
    /// Creates a responder in RESET, which can remember as many answers as `replays` is long.
    pub(crate) fn new(replays: R) -> Self {
        Self {
            expected: Psn::default(),
            msn: 0,
            message: Message::None,
            held: None,
            gap: Gap::default(),
            answer: Answer::Nothing,
            ring: Ring::new(replays),
            position: 0,
            undo: Undo::Nothing,
            unheard: 0,
            peer_repeats_reads: false,
        }
    }

    /// Returns whether the peer repeats a READ whose responses are lost.
    pub(crate) fn peer_repeats_reads(&self) -> bool {
        self.peer_repeats_reads
    }

    /// Returns the largest possible `max_dest_rd_atomic`.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Uses `replays` for the remembered answers if it is longer. Returns the unused storage.
    pub(crate) fn enlarge(&mut self, replays: R) -> R {
        self.ring.enlarge(replays)
    }

    /// Enters RTR from INIT: the first packet must carry `rq_psn`.
    pub(crate) fn start(&mut self, rq_psn: Psn) {
        self.expected = rq_psn;
    }

    /// Returns the PSN that the next request packet should carry.
    pub(crate) fn rq_psn(&self) -> Psn {
        self.expected
    }

    /// Processes a request packet whose service fits the QP. After `Fatal`, the held receive WQE
    /// has completed in error, or an event was raised. The NAK waits for [`Self::poll_transmit`].
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        packet: &Packet,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match context.config.kind {
            QpKind::Rc | QpKind::XrcTgt => self.handle_reliable(packet, now, context, host),
            QpKind::XrcIni | QpKind::RawPacket => Outcome::Continue,
            QpKind::Uc => self.handle_unreliable(packet, context, host),
            QpKind::Ud | QpKind::Gsi => self.handle_datagram(packet, context, host),
        }
    }

    /// Enters ERR: a held receive WQE completes as flushed.
    ///
    /// If the responder broke the QP, at most [`reply::MOST_AFTER_ERROR`] of the READ responses
    /// that are due and then the NAK are still sent. Otherwise nothing is sent any more.
    pub(crate) fn fail<H: Host>(&mut self, context: &Context, host: &mut H) {
        if matches!(self.answer, Answer::Refused(..)) {
            let limit = reply::MOST_UNHEARD.saturating_sub(reply::MOST_AFTER_ERROR);
            self.unheard = self.unheard.max(limit);
            self.undo = Undo::Nothing;
        } else {
            self.cancel_all();
        }
        self.message = Message::None;
        self.forget_gap(host);
        self.abandon_held(WcStatus::WrFlushErr, context, host);
    }

    /// Cancels all responses that are due.
    pub(crate) fn cancel_all(&mut self) {
        self.answer = Answer::Nothing;
        self.ring.clear();
        self.undo = Undo::Nothing;
    }

    /// Cancels the answers to READs, atomics, ATOMIC WRITEs and FLUSHes that are due.
    pub(crate) fn cancel_responses(&mut self) {
        self.ring.cancel();
        self.undo = Undo::Nothing;
    }

    /// Flushes posted receives in ERR, one per step. Returns whether the steps ran out first.
    pub(crate) fn flush_recv<H: Host>(
        &mut self,
        context: &Context,
        host: &mut H,
        steps: &mut Steps,
    ) -> bool {
        while steps.take() {
            let Ok(Fetch::Wr(wr) | Fetch::Malformed(wr, _)) = host.take_recv() else {
                return false;
            };
            abandon(wr, WcStatus::WrFlushErr, context, host);
        }
        true
    }

    /// Enters RESET: clears all state but `position`, and `peer_repeats_reads`, which the next READ
    /// sets. A held receive WQE gets no completion.
    pub(crate) fn reset<H: Host>(&mut self, host: &mut H) {
        if let Some(held) = self.held.take() {
            host.release_recv(held.wr.slot);
        }
        self.ring.clear();
        self.expected = Psn::default();
        self.msn = 0;
        self.message = Message::None;
        self.forget_gap(host);
        self.answer = Answer::Nothing;
        self.undo = Undo::Nothing;
        self.unheard = 0;
    }

    /// Notes that a packet arrived from the peer, so the peer is alive.
    #[inline]
    pub(crate) fn note_peer_alive(&mut self) {
        self.unheard = 0;
    }

    /// Returns the position of `psn`, which lies before the expected PSN; `None` if it is negative.
    fn position_of(&self, psn: Psn) -> Option<u64> {
        self.position
            .checked_sub(u64::from(self.expected.ahead_of(psn)))
    }

    /// Processes a request packet of a reliable connection (§9.7.4).
    fn handle_reliable<H: Host>(
        &mut self,
        packet: &Packet,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match packet.bth.psn.since(self.expected) {
            0 => match self.execute(packet, 1, context, host) {
                Ok(psns) => {
                    self.advance(psns);
                    self.acknowledge(packet, packet.bth.psn, host);
                    self.continue_gap(packet, packet.bth.psn, now, context, host);
                    Outcome::Executed
                }
                Err(refusal) => self.refuse(refusal, packet, context, host),
            },
            1.. => {
                self.handle_early(packet, now, host);
                Outcome::Continue
            }
            _ => {
                self.answer_duplicate(packet, context, host);
                Outcome::Continue
            }
        }
    }

    /// Expects the packet that follows the next `psns` PSNs.
    fn advance(&mut self, psns: u32) {
        self.expected = self.expected.plus(psns);
        self.position = self.position.wrapping_add(u64::from(psns));
    }

    /// Answers the expected packet of a reliable connection, which wasn't carried out.
    fn refuse<H: Host>(
        &mut self,
        refusal: Refusal,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match refusal {
            Refusal::Absent => Outcome::Continue,
            Refusal::Dropped(reason) => {
                host.count(Count::Dropped(reason));
                Outcome::Continue
            }
            Refusal::NotReady => {
                self.gap.order = Order::NotReady;
                self.answer = Answer::NotReady(named_queue(packet));
                Outcome::Continue
            }
            Refusal::Request(code) => {
                self.answer = Answer::Refused(self.expected, code);
                self.report(code, context, host);
                Outcome::Fatal
            }
            Refusal::BrokenQueue => {
                self.answer = Answer::Refused(self.expected, NakCode::RemoteOperational);
                host.raise(Event::QpFatal);
                Outcome::Fatal
            }
            Refusal::NoSuchQueue => {
                self.answer = Answer::Refused(self.expected, NakCode::InvalidRequest);
                host.raise(Event::QpAccessErr);
                Outcome::Fatal
            }
            Refusal::TooLong => {
                self.answer = Answer::Refused(self.expected, NakCode::InvalidRequest);
                self.abandon_held(WcStatus::LocLenErr, context, host);
                Outcome::Fatal
            }
            Refusal::Receive(status, code) => {
                self.answer = Answer::Refused(self.expected, code);
                self.abandon_held(status, context, host);
                Outcome::Fatal
            }
        }
    }

    /// Reports an error of a request to the owner: by the held receive WQE or an event (§9.9.3).
    fn report<H: Host>(&mut self, code: NakCode, context: &Context, host: &mut H) {
        let status = match code {
            NakCode::RemoteAccess => WcStatus::LocAccessErr,
            NakCode::RemoteOperational => WcStatus::LocQpOpErr,
            _ => WcStatus::RemInvReqErr,
        };
        if self.held.is_some() {
            self.abandon_held(status, context, host);
        } else {
            host.raise(event(code));
        }
    }

    /// Processes a packet of an unreliable connection. A packet that can't be carried out is
    /// dropped with the rest of its message (§9.8.2). A message that is too long leaves its
    /// receive WQE to the next message (§9.9.3, class D). A packet whose memory isn't resident
    /// changes nothing: the host passes it again, or else the next packet finds a gap.
    fn handle_unreliable<H: Host>(
        &mut self,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        let (expected, message) = (self.expected, self.message);
        if packet.bth.psn != self.expected {
            host.count(Count::OutOfSeqRequest);
            self.message = Message::None;
        }
        if starts_message(&packet.body) {
            self.message = Message::None;
        }
        self.expected = packet.bth.psn.next();
        let Err(refusal) = self.execute(packet, 1, context, host) else {
            return Outcome::Executed;
        };
        if refusal == Refusal::Absent {
            self.expected = expected;
            self.message = message;
        } else {
            self.message = Message::None;
        }
        self.abandon_packet(refusal, context, host)
    }

    /// Drops a packet of an unreliable service. An invalid receive WQE or a shared receive queue in
    /// error breaks the QP. A fault of the packet doesn't: a forger can send such a packet without
    /// knowing a PSN.
    fn abandon_packet<H: Host>(
        &mut self,
        refusal: Refusal,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match refusal {
            Refusal::Receive(status, _) => {
                self.abandon_held(status, context, host);
                Outcome::Fatal
            }
            Refusal::BrokenQueue => {
                host.raise(Event::QpFatal);
                Outcome::Fatal
            }
            _ => {
                if let Some(reason) = refusal.reason() {
                    host.count(Count::Dropped(reason));
                }
                Outcome::Continue
            }
        }
    }

    /// Returns the receive WQE to fill: the held one, or the next of the QP's queue or of `srqn`.
    ///
    /// # Errors
    ///
    /// Returns the [`Refusal`] of the packet if there is no valid WQE.
    fn hold<H: Host>(&mut self, srqn: Option<Srqn>, host: &mut H) -> Result<RecvWr, Refusal> {
        if self.held.is_none() {
            let fetched = match srqn {
                None => host.take_recv()?,
                Some(srqn) => host.take_xrc_recv(srqn)?,
            };
            let held = |wr, fault| Some(Held { wr, fault, srqn });
            self.held = match fetched {
                Fetch::Empty => None,
                Fetch::Wr(wr) => held(wr, None),
                Fetch::Malformed(wr, status) => held(wr, Some(status)),
            };
        }
        match self.held {
            None => Err(Refusal::NotReady),
            // A message can't continue in another queue.
            Some(held) if held.srqn != srqn => Err(NakCode::InvalidRequest.into()),
            // The queue is destroyed: its CQ would get no completion of the message.
            Some(_) if srqn.is_some() && !host.has_named_queue() => Err(Refusal::BrokenQueue),
            Some(Held {
                wr, fault: None, ..
            }) => Ok(wr),
            Some(Held {
                fault: Some(status),
                ..
            }) => Err(Refusal::Receive(status, NakCode::RemoteOperational)),
        }
    }

    /// Completes the held receive WQE, if any, with the error `status`.
    fn abandon_held<H: Host>(&mut self, status: WcStatus, context: &Context, host: &mut H) {
        if let Some(held) = self.held.take() {
            abandon(held.wr, status, context, host);
        }
    }

    /// Completes the held receive WQE with a received message.
    fn complete_held<H: Host>(&mut self, received: Received, host: &mut H) {
        if let Some(Held { wr, .. }) = self.held.take() {
            host.release_recv(wr.slot);
            host.complete_recv(RecvWc {
                wr_id: wr.wr_id,
                status: WcStatus::Success,
                opcode: received.opcode,
                byte_len: received.byte_len,
                extra: received.extra,
                src_qp: received.src_qp,
                solicited: received.solicited,
                grh: received.grh,
            });
            host.count(Count::RdmaRecvs);
        }
    }

    /// Counts a completed message.
    fn end_message(&mut self) {
        self.message = Message::None;
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }
}

/// A message that completes a receive WQE.
#[derive(Clone, Copy, Debug)]
struct Received {
    opcode: WcOpcode,
    byte_len: u32,
    extra: RecvExtra,
    src_qp: Qpn,
    solicited: bool,
    grh: bool,
}

/// Completes, with the error `status`, a receive WQE that received no message.
fn abandon<H: Host>(wr: RecvWr, status: WcStatus, context: &Context, host: &mut H) {
    host.release_recv(wr.slot);
    host.complete_recv(RecvWc {
        wr_id: wr.wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        extra: RecvExtra::None,
        src_qp: context.settings.dest_qpn,
        solicited: false,
        grh: false,
    });
}

/// Returns the event for the owner if a request without a receive WQE breaks the QP.
fn event(code: NakCode) -> Event {
    match code {
        NakCode::RemoteAccess => Event::QpAccessErr,
        NakCode::RemoteOperational => Event::QpFatal,
        _ => Event::QpReqErr,
    }
}

/// Returns whether the ring keeps the answer. Such an answer also acknowledges earlier requests.
fn is_recorded(body: &Body) -> bool {
    !matches!(body, Body::Send(_) | Body::Write(_))
}

/// Returns the shared receive queue that an XRC request names; `None` for other services.
fn named_queue(packet: &Packet) -> Option<Srqn> {
    match packet.service {
        Service::Xrc(srqn) => srqn,
        Service::Rc | Service::Uc | Service::Ud(_) => None,
    }
}

/// Returns whether the packet is the first of a message.
fn starts_message(body: &Body) -> bool {
    !matches!(
        body,
        Body::Send(SendPart::Middle | SendPart::Last(_))
            | Body::Write(WritePart::Middle | WritePart::Last(_))
    )
}
