// SPDX-License-Identifier: GPL-2.0

//! The responder: carries out the requests of a peer and answers them.
//!
//! A request packet passes [`check`] (order and lengths), [`execute`] (rights, memory, receive
//! queue) and leaves an answer behind, which [`reply`] turns into packets when it is asked to. The
//! answers to READs, atomics, ATOMIC WRITEs and FLUSHes are kept in [`replay`], since a peer that
//! misses one asks again; [`duplicate`] serves those. [`ud`] is the whole responder of UD
//! and GSI, [`raw`] that of raw packet QPs.
//!
//! Answers leave in the order of their PSNs: first what [`replay`] holds pending, then the one
//! acknowledgement or NAK. Payload is never kept: a READ response names the memory it comes from.

mod check;
mod duplicate;
mod execute;
mod raw;
mod replay;
mod reply;
mod ud;

#[cfg(test)]
mod tests;

use crate::host::{AccessFault, Count, Event, Fetch, Host, QpDropReason, QueueFault, ScatterFault};
use crate::ids::{Qpn, Srqn};
use crate::psn::Psn;
use crate::qp::{Context, Outcome, QpKind, Slots, Steps};
use crate::wc::{RecvExtra, RecvWc, WcOpcode, WcStatus};
use crate::wire::packet::{Body, NakCode, Packet, SendPart, Service, WritePart};
use crate::wr::RecvWr;

pub use replay::Replay;
pub use ud::check_management;

use check::Message;
use replay::{Number, Pending, Ring, Sent};

/// The responder of one QP.
///
/// # Invariants
///
/// Every pending record of `ring` has a PSN before that of `answer`, unless `answer` acknowledges
/// a duplicate.
#[derive(Debug)]
pub struct Responder<R: Slots<Replay>> {
    /// The PSN of the next request packet.
    expected: Psn,
    /// Its position: how many PSNs requests have taken up.
    position: u64,
    /// Completed messages, modulo 2²⁴ (IBTA 1.x §9.7.7).
    msn: u32,
    /// The message of which more packets must come.
    message: Message,
    /// The receive WQE that the message, or the next one, fills.
    held: Option<Held>,
    order: Order,
    answer: Answer,
    ring: Ring<R>,
    /// What takes the last response back.
    undo: Undo,
    /// READ responses since a packet of the peer came last.
    unheard: u32,
}

/// A receive WQE taken from its queue.
#[derive(Clone, Copy, Debug)]
struct Held {
    wr: RecvWr,
    /// The status with which it must end, if it is malformed.
    fault: Option<WcStatus>,
    /// The shared queue of an XRC domain from which it was taken.
    srqn: Option<Srqn>,
}

/// Whether a NAK has asked the peer to go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// A packet ahead of its turn is answered with a NAK.
    Kept,
    /// It was: until the expected packet comes, others ahead are dropped without a word.
    Awaited,
}

/// The acknowledgement to send once all of the ring's answers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// None.
    Nothing,
    /// Acknowledges everything up to this PSN.
    Ack(Psn),
    /// The expected packet is missing.
    Missing {
        /// The PSN of the newest packet that was dropped for that.
        newest: Psn,
        /// The acknowledgement of this PSN goes first: a stranger's packet may have been dropped, and then the peer takes no NAK
        /// for a packet that it hasn't sent. Never of a READ or an atomic, which their responses acknowledge.
        due: Option<Psn>,
    },
    /// The expected packet found no receive WQE, in the shared queue that it named.
    NotReady(Option<Srqn>),
    /// The QP is broken: this PSN could not be carried out.
    Refused(Psn, NakCode),
}

/// What was due before the last response was polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    /// Unknown.
    Nothing,
    /// This acknowledgement.
    Answer(Answer),
    /// This of a remembered answer, unless it is no longer as the poll left it.
    Replay {
        number: Number,
        before: (Pending, Sent),
        after: (Pending, Sent),
    },
}

/// Why a request packet wasn't carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It counts as lost.
    Lost(QpDropReason),
    /// There is no receive WQE.
    NotReady,
    /// Memory that it needs isn't resident: it may come again, as if it was lost.
    Absent,
    /// It is at fault.
    Request(NakCode),
    /// It names a shared receive queue that its XRC domain doesn't have.
    NoSuchQueue,
    /// The shared receive queue is in error.
    BrokenQueue,
    /// The message is longer than the receive WQE.
    TooLong,
    /// The receive WQE is at fault.
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
    /// Why the packet is dropped where nobody can be told; `None` of one that may come again, and of
    /// one that found a receive WQE at fault.
    fn reason(self) -> Option<QpDropReason> {
        match self {
            Self::Lost(reason) => Some(reason),
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

/// What a peer is told of a fault, if anything.
fn nak_code(fault: AccessFault) -> Option<NakCode> {
    match fault {
        AccessFault::Denied => Some(NakCode::RemoteAccess),
        AccessFault::Invalid | AccessFault::NoQueue => Some(NakCode::InvalidRequest),
        AccessFault::Failed => Some(NakCode::RemoteOperational),
        AccessFault::Retry => None,
    }
}

impl<R: Slots<Replay>> Responder<R> {
    /// A responder in RESET; `replays` bounds how many answers it can remember.
    pub(crate) fn new(replays: R) -> Self {
        Self {
            expected: Psn::default(),
            msn: 0,
            message: Message::None,
            held: None,
            order: Order::Kept,
            answer: Answer::Nothing,
            ring: Ring::new(replays),
            position: 0,
            undo: Undo::Nothing,
            unheard: 0,
        }
    }

    /// The largest `max_dest_rd_atomic` that can be had.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Remembers more answers, in `replays`, and returns the storage that isn't used any more.
    pub(crate) fn enlarge(&mut self, replays: R) -> R {
        self.ring.enlarge(replays)
    }

    /// INIT to RTR: the first packet shall carry `rq_psn`.
    pub(crate) fn start(&mut self, rq_psn: Psn) {
        self.expected = rq_psn;
    }

    /// The PSN that the next request packet should carry.
    pub(crate) fn rq_psn(&self) -> Psn {
        self.expected
    }

    /// Takes in a request packet whose service fits the QP.
    ///
    /// After `Fatal` the held receive WQE has completed in error or, where there is none, an event
    /// was raised; the NAK waits for [`Self::poll_transmit`].
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match context.config.kind {
            QpKind::Rc | QpKind::XrcTgt => self.handle_reliable(packet, context, host),
            QpKind::XrcIni | QpKind::RawPacket => Outcome::Continue,
            QpKind::Uc => self.handle_unreliable(packet, context, host),
            QpKind::Ud | QpKind::Gsi => self.handle_datagram(packet, context, host),
        }
    }

    /// The QP enters ERR: a held receive completes as flushed.
    ///
    /// If the responder itself broke, its NAK is still sent, after [`reply::MOST_AFTER_ERROR`] at most of the READ responses
    /// that are due before it; otherwise nothing is.
    pub(crate) fn fail<H: Host>(&mut self, context: &Context, host: &mut H) {
        if matches!(self.answer, Answer::Refused(..)) {
            let limit = reply::MOST_UNHEARD.saturating_sub(reply::MOST_AFTER_ERROR);
            self.unheard = self.unheard.max(limit);
            self.undo = Undo::Nothing;
        } else {
            self.silence();
        }
        self.message = Message::None;
        self.abandon_held(WcStatus::WrFlushErr, context, host);
    }

    /// Sends none of what is due.
    pub(crate) fn silence(&mut self) {
        self.answer = Answer::Nothing;
        self.ring.clear();
        self.undo = Undo::Nothing;
    }

    /// Sends none of the READ responses that are due.
    pub(crate) fn cancel_responses(&mut self) {
        self.ring.cancel();
        self.undo = Undo::Nothing;
    }

    /// In ERR: flushes posted receives, one a step; true if it stopped because the steps were spent.
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

    /// To RESET: forgets everything; a held receive WQE is given back without a completion.
    pub(crate) fn reset<H: Host>(&mut self, host: &mut H) {
        if let Some(held) = self.held.take() {
            host.release_recv(held.wr.slot);
        }
        self.ring.clear();
        self.expected = Psn::default();
        self.msn = 0;
        self.message = Message::None;
        self.order = Order::Kept;
        self.answer = Answer::Nothing;
        self.undo = Undo::Nothing;
        self.unheard = 0;
    }

    /// A packet of the peer came: it lives.
    #[inline]
    pub(crate) fn hear(&mut self) {
        self.unheard = 0;
    }

    /// The position of a PSN behind the expected one.
    fn position_of(&self, psn: Psn) -> Option<u64> {
        self.position
            .checked_sub(u64::from(self.expected.ahead_of(psn)))
    }

    /// A packet of a reliable connection (§9.7.4).
    fn handle_reliable<H: Host>(
        &mut self,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match packet.bth.psn.since(self.expected) {
            0 => match self.execute(packet, context, host) {
                Ok(psns) => {
                    self.expected = self.expected.plus(psns);
                    self.position = self.position.wrapping_add(u64::from(psns));
                    self.acknowledge(packet, host);
                    Outcome::Executed
                }
                Err(refusal) => self.refuse(refusal, packet, context, host),
            },
            1.. => {
                self.report_missing(packet.bth.psn, host);
                Outcome::Continue
            }
            _ => {
                self.answer_duplicate(packet, context, host);
                Outcome::Continue
            }
        }
    }

    /// A packet was carried out in its turn: it may want an acknowledgement.
    fn acknowledge<H: Host>(&mut self, packet: &Packet, host: &mut H) {
        let answered = is_recorded(&packet.body);
        let wants_ack = packet.bth.ack_req && !answered;
        self.answer = match self.answer {
            // Of the packets that were dropped, some are missing behind this one.
            Answer::Missing { newest, due } if !newest.before(self.expected) => {
                let due = match (answered, wants_ack) {
                    (true, _) => None,
                    (false, true) => Some(packet.bth.psn),
                    (false, false) => due,
                };
                self.answer = Answer::Missing { newest, due };
                return;
            }
            Answer::Ack(_) if !answered => {
                host.count(Count::AckDeferred);
                Answer::Ack(packet.bth.psn)
            }
            // The NAK would have acknowledged what came before it.
            Answer::NotReady(_) | Answer::Missing { .. } if !answered => {
                Answer::Ack(packet.bth.psn)
            }
            _ if wants_ack => Answer::Ack(packet.bth.psn),
            _ => Answer::Nothing,
        };
        self.order = Order::Kept;
    }

    /// The packet `psn` came ahead of its turn and is dropped: one NAK asks the peer to go back
    /// (§9.7.5.2.8). It is not sent if all that was dropped comes again before.
    fn report_missing<H: Host>(&mut self, psn: Psn, host: &mut H) {
        host.count(Count::OutOfSeqRequest);
        let is_first = self.order == Order::Kept;
        self.order = Order::Awaited;
        self.answer = match self.answer {
            Answer::Missing { newest, due } => Answer::Missing {
                newest: if newest.before(psn) { psn } else { newest },
                due,
            },
            Answer::Nothing if is_first => Answer::Missing {
                newest: psn,
                due: None,
            },
            Answer::Ack(due) if is_first => Answer::Missing {
                newest: psn,
                due: Some(due),
            },
            answer => answer,
        };
    }

    /// The expected packet of a reliable connection wasn't carried out.
    fn refuse<H: Host>(
        &mut self,
        refusal: Refusal,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match refusal {
            Refusal::Absent => Outcome::Continue,
            Refusal::Lost(reason) => {
                host.count(Count::Dropped(reason));
                Outcome::Continue
            }
            Refusal::NotReady => {
                self.order = Order::Awaited;
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

    /// Tells the owner that a request broke the QP: by the receive WQE in use, or by an event
    /// (§9.9.3).
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

    /// A packet of an unreliable connection: what can't be carried out is dropped, together with
    /// the rest of its message (§9.8.2). A message that is too long leaves its receive WQE to the next
    /// message (§9.9.3, class D). A packet whose memory is absent has not come yet: if it isn't the
    /// next to come again, what follows finds a gap.
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
        let Err(refusal) = self.execute(packet, context, host) else {
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

    /// A packet whose sender isn't told wasn't carried out: it is dropped, unless the fault is on this
    /// side, which breaks the QP. No packet of the network may do that: its sender may be a forger, who
    /// needs no PSN.
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

    /// The receive WQE to fill: the held one, or the next; of the queue `srqn` if the request names
    /// one.
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
            // A message can't go on in another queue.
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

    /// The held receive WQE, if any, ends with `status`.
    fn abandon_held<H: Host>(&mut self, status: WcStatus, context: &Context, host: &mut H) {
        if let Some(held) = self.held.take() {
            abandon(held.wr, status, context, host);
        }
    }

    /// The held receive WQE has received a message.
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

    /// A message is complete.
    fn end_message(&mut self) {
        self.message = Message::None;
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }
}

/// A message that fills a receive WQE.
#[derive(Clone, Copy, Debug)]
struct Received {
    opcode: WcOpcode,
    byte_len: u32,
    extra: RecvExtra,
    src_qp: Qpn,
    solicited: bool,
    grh: bool,
}

/// Ends a receive WQE that receives nothing.
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

/// What the owner of a QP hears when a request without a receive WQE breaks it.
fn event(code: NakCode) -> Event {
    match code {
        NakCode::RemoteAccess => Event::QpAccessErr,
        NakCode::RemoteOperational => Event::QpFatal,
        _ => Event::QpReqErr,
    }
}

/// The answer to this request is kept in the ring, and acknowledges what came before.
fn is_recorded(body: &Body) -> bool {
    !matches!(body, Body::Send(_) | Body::Write(_))
}

/// The shared receive queue that a request names, if its service has it name one.
fn named_queue(packet: &Packet) -> Option<Srqn> {
    match packet.service {
        Service::Xrc(srqn) => srqn,
        Service::Rc | Service::Uc | Service::Ud(_) => None,
    }
}

/// The packet is the first of a message.
fn starts_message(body: &Body) -> bool {
    !matches!(
        body,
        Body::Send(SendPart::Middle | SendPart::Last(_))
            | Body::Write(WritePart::Middle | WritePart::Last(_))
    )
}
