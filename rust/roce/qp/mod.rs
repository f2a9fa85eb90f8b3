// SPDX-License-Identifier: GPL-2.0

//! A queue pair: its state, its attributes, and its two sides, the requester and the responder.
//!
//! [`Qp`] owns the state and passes packets and calls to the two sides. The [`Requester`] owns the
//! progress of the send queue, the [`Responder`] that of the receive queue. A side never changes
//! the state: it returns [`Outcome::Fatal`], and [`Qp`] then enters an error state.
//!
//! [`Qp`] itself raises `CommEst`, `SqDrained` and `LastWqeReached`, and counts the packets that it
//! drops before they reach a side.

mod allowance;
pub mod attr;
mod modify;
mod pause;
mod poll;
mod query;
mod state;
#[cfg(test)]
mod tests;

use core::ops::DerefMut;

use crate::host::{AccessFault, Count, Event, Host, QpDropReason, ScatterFault};
use crate::ids::Pkey;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::time::Instant;
use crate::train::Train;
use crate::transmit::{Source, TrainLimits, Transmit};
use crate::wc::WcStatus;
use crate::wire::packet::{Body, Packet, Service};

pub use crate::requester::SendWqe;
pub use crate::responder::Replay;
use allowance::Allowance;
pub(crate) use allowance::Steps;
use pause::Pause;
use state::{Drain, State};

pub use attr::{Attrs, Config, CurrentAttrs, ModifyError, QpKind, QpState, RemoteRights, Settings};

/// Storage of fixed size that the host passes to a QP, in practice a vector.
///
/// Its length must not change while the QP owns it.
pub trait Slots<T>: DerefMut<Target = [T]> {}

impl<T, S: DerefMut<Target = [T]>> Slots<T> for S {}

/// The part of a QP that both sides read.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Attributes that are fixed when the QP is created.
    pub config: Config,
    /// Attributes that `modify_qp` sets.
    pub settings: Settings,
}

impl Context {
    /// Returns whether the requester tells its peer that it sends only missing packets again
    /// ([`Reserved::fills_gaps`](crate::wire::packet::Reserved)).
    #[inline]
    pub(crate) fn offers_to_fill_gaps(&self) -> bool {
        let Config {
            kind, fills_gaps, ..
        } = self.config;
        fills_gaps && kind.is_reliable() && self.settings.retries_losses()
    }
}

/// Returns the earlier of two instants.
#[inline]
pub(crate) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Consequence of a side's work for the QP's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The QP keeps its state.
    Continue,
    /// The QP has carried out a request of a connection, and keeps its state.
    Executed,
    /// The QP enters an error state: SQE after a send error of an unreliable QP, ERR otherwise.
    Fatal,
}

/// The reason why the host could not read the payload at a [`Source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitFault {
    /// The SGEs of a send WQE can't be read. The WQE completes with this status, usually
    /// `LocProtErr`.
    Local(WcStatus),
    /// The responder's memory can't be read for a READ response. With [`AccessFault::Retry`] the
    /// packet counts as lost.
    Remote(AccessFault),
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp<W: Slots<SendWqe>, R: Slots<Replay>> {
    context: Context,
    state: State,
    pub(crate) requester: Requester<W>,
    responder: Responder<R>,
    /// The side that the next poll asks first.
    next_side: Side,
    /// Number of steps without a packet that are left in this run.
    allowance: Allowance,
    /// Work is left that need not wait: the last poll or flush stopped because the allowance was
    /// spent, or the QP has just entered an error state.
    backlog: bool,
    /// The time without transmissions after the host dropped a packet.
    pause: Pause,
}

/// One of the two sides of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Requester,
    Responder,
}

impl<W: Slots<SendWqe>, R: Slots<Replay>> Qp<W, R> {
    /// Creates a QP in RESET.
    ///
    /// The length of `window` is the maximum number of send WQEs that the QP has taken and not yet
    /// given back. It must not be 0. The length of `replays` limits `max_dest_rd_atomic`. `replays`
    /// may be empty until `max_dest_rd_atomic` is set.
    pub fn new(config: Config, window: W, replays: R) -> Self {
        Self {
            context: Context {
                config,
                settings: Settings::default(),
            },
            state: State::Reset,
            requester: Requester::new(window),
            responder: Responder::new(replays),
            next_side: Side::Responder,
            allowance: Allowance::default(),
            backlog: false,
            pause: Pause::default(),
        }
    }

    /// Enlarges the storage for remembered answers to READs, atomics, ATOMIC WRITEs and FLUSHes.
    /// Allowed in any state.
    ///
    /// If `replays` is longer than the storage in use, the QP uses it from now on. Returns the
    /// storage that the QP doesn't use: the old one, or `replays`. Call this before a
    /// [`Self::modify`] that raises `max_dest_rd_atomic`.
    pub fn enlarge_replays(&mut self, replays: R) -> R {
        self.responder.enlarge(replays)
    }

    /// Returns the current state.
    pub fn state(&self) -> QpState {
        self.state.name()
    }

    /// Returns whether the QP carries out requests in its current state.
    pub fn receives(&self) -> bool {
        self.state.receives()
    }

    /// Returns the current attributes, for `query_qp`.
    pub fn attrs(&self) -> CurrentAttrs {
        CurrentAttrs {
            state: self.state.name(),
            sq_draining: matches!(self.state, State::Sqd(Drain::Draining { .. })),
            sq_psn: self.requester.sq_psn(),
            rq_psn: self.responder.rq_psn(),
            settings: self.context.settings,
        }
    }

    /// Carries out `modify_qp`: checks everything first, then changes all or nothing.
    ///
    /// A transition to RESET gives every taken slot back without a completion. After a transition
    /// to ERR, calls of [`Self::poll_transmit`] flush the posted work requests.
    ///
    /// # Errors
    ///
    /// Returns any [`ModifyError`]. Nothing was changed then.
    pub fn modify<H: Host>(
        &mut self,
        now: Instant,
        attrs: &Attrs,
        host: &mut H,
    ) -> Result<(), ModifyError> {
        let to = self.check_modify(attrs)?;
        self.apply_modify(now, attrs, to, host);
        Ok(())
    }

    /// Processes a received packet. The host keeps its payload, if any, until this returns.
    pub fn handle_packet<H: Host>(&mut self, now: Instant, packet: &Packet, host: &mut H) {
        // A congestion notification has no effect: the engine has no rate to lower.
        if packet.body == Body::Cnp {
            return;
        }
        if let Err(reason) = self.check(packet) {
            host.count(Count::Dropped(reason));
            return;
        }
        self.responder.note_peer_alive();
        let (side, outcome) = match packet.body {
            Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_) => {
                let outcome = self
                    .requester
                    .handle_response(now, packet, &self.context, host);
                (Side::Requester, outcome)
            }
            _ => {
                let outcome = self
                    .responder
                    .handle_request(packet, now, &self.context, host);
                if outcome == Outcome::Executed {
                    self.establish(host);
                }
                (Side::Responder, outcome)
            }
        };
        self.apply_outcome(side, outcome, host);
    }

    /// Processes a train as one, with the effects of [`Self::handle_packet`] for each of its
    /// packets. Only [`Count::AckDeferred`] may be counted less often. The host keeps the payload
    /// of the whole train until this returns.
    ///
    /// Returns `false` if the QP can't process the train as one. The host then passes the packets
    /// ([`Train::packet`]) to [`Self::handle_packet`]. Before that, bytes may have been written to
    /// the memory into which the packets' payload goes, and a receive WQE may have been taken for
    /// the message of the train.
    pub fn handle_train<H: Host>(&mut self, now: Instant, train: &Train, host: &mut H) -> bool {
        let context = &self.context;
        if self.check(&train.packet).is_err() || train.mtu != context.settings.path_mtu {
            return false;
        }
        let side = match train.packet.body {
            Body::ReadResponse(_) if self.requester.handle_train(train, now, context, host) => {
                Side::Requester
            }
            _ if self.responder.handle_train(train, now, context, host) => {
                self.establish(host);
                Side::Responder
            }
            _ => return false,
        };
        self.responder.note_peer_alive();
        self.apply_outcome(side, Outcome::Continue, host);
        true
    }

    /// Processes a frame of `length` bytes that a raw packet QP received.
    ///
    /// `scatter` copies the frame to the receive WQE that the host holds. If it returns
    /// [`ScatterFault::Retry`], the engine keeps the receive WQE and counts no drop, so the
    /// host may pass the frame again.
    pub fn handle_frame<H: Host>(
        &mut self,
        length: u32,
        host: &mut H,
        scatter: impl FnOnce(&mut H) -> Result<(), ScatterFault>,
    ) {
        if self.context.config.kind != QpKind::RawPacket {
            return host.count(Count::Dropped(QpDropReason::Service));
        }
        if !self.state.receives() {
            return host.count(Count::Dropped(QpDropReason::State));
        }
        let outcome = self
            .responder
            .handle_frame(length, &self.context, host, scatter);
        self.apply_outcome(Side::Responder, outcome, host);
    }

    /// Processes the timers that have expired at `now`. A call before a timer expires has no
    /// effect.
    pub fn handle_timeout<H: Host>(&mut self, now: Instant, host: &mut H) {
        self.responder.expire_early(now, host);
        if matches!(self.state, State::Rts | State::Sqd(_)) {
            let outcome = self.requester.handle_timeout(now, &self.context, host);
            self.apply_outcome(Side::Requester, outcome, host);
        }
    }

    /// Begins a run, a series of polls.
    ///
    /// A poll that returns `None` ends a run. A host that stopped polling after a packet calls this
    /// before it polls again.
    #[inline]
    pub fn begin_run(&mut self) {
        self.allowance = Allowance::default();
    }

    /// Returns the next packet to send, and takes posted WQEs on the way.
    ///
    /// If both responses and requests are due, they alternate. In ERR and SQE this flushes the
    /// posted work requests. All polls of a run together start, finish or flush at most 64 work
    /// requests of each queue without a packet. If that limit is the only reason for a `None`,
    /// [`Self::poll_timeout`] is due at once.
    pub fn poll_transmit<H: Host>(&mut self, now: Instant, host: &mut H) -> Option<Transmit> {
        self.poll_train(now, TrainLimits::SINGLE, host)
    }

    /// Works as [`Self::poll_transmit`], but returns a train of up to as many packets as `limits`
    /// says. If both responses and requests are due, they alternate by trains. In ERR no train is
    /// longer than 1.
    pub fn poll_train<H: Host>(
        &mut self,
        now: Instant,
        limits: TrainLimits,
        host: &mut H,
    ) -> Option<Transmit> {
        let mut next = None;
        self.poll_into(&mut next, now, limits, host);
        next
    }

    /// Works as [`Self::poll_train`], but stores the result in `next`, so that it isn't moved.
    pub fn poll_into<H: Host>(
        &mut self,
        next: &mut Option<Transmit>,
        now: Instant,
        limits: TrainLimits,
        host: &mut H,
    ) {
        *next = None;
        self.poll_next(next, now, limits, host);
        if next.is_none() {
            self.begin_run();
        }
    }

    /// Returns whether the state completes posted work requests in error.
    pub fn flushes(&self) -> bool {
        matches!(self.state, State::Sqe | State::Err)
    }

    /// Completes some of the work requests that an error state flushes, as [`Self::poll_transmit`]
    /// does, but sends nothing.
    ///
    /// This is for hosts whose packets can't leave. It takes steps of the current run, as a poll
    /// does. [`Self::poll_timeout`] is due at once if work requests are left.
    pub fn flush_posted<H: Host>(&mut self, host: &mut H) {
        match self.state {
            State::Sqe => self.backlog = self.requester.flush(host, &mut self.allowance.sends),
            State::Err => self.flush(host),
            State::Reset | State::Init | State::Rtr { .. } | State::Rts | State::Sqd(_) => {}
        }
    }

    /// Returns whether [`Self::poll_transmit`] has nothing to send until a packet arrives, a timer
    /// expires or a work request is posted, provided that the host's send queue is empty. The check
    /// costs less than a poll. It may return `false` although nothing is to be sent.
    pub fn rests(&self) -> bool {
        matches!(self.state, State::Rts)
            && !self.backlog
            && self.pause.end().is_none()
            && self.requester.rests(&self.context)
            && self.responder.rests()
    }

    /// Returns the earliest instant at which [`Self::handle_timeout`] and [`Self::poll_transmit`]
    /// must be called. The instant is in the past if they stopped at their limits with work left.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.backlog {
            return Some(Instant(0));
        }
        earliest(self.deadline(), self.pause.end())
    }

    /// Returns the earliest instant at which [`Self::handle_timeout`] must be called.
    ///
    /// A host whose packets can't leave waits for this instant. Such a host doesn't poll, so the
    /// other instants of [`Self::poll_timeout`] would stay in the past, and the host would run the
    /// QP again and again. For a QP that [flushes](Self::flushes), the host still waits for
    /// [`Self::poll_timeout`], and calls [`Self::flush_posted`].
    pub fn deadline(&self) -> Option<Instant> {
        let requester = match self.state {
            State::Rts | State::Sqd(_) => self.requester.poll_timeout(),
            _ => None,
        };
        earliest(requester, self.responder.early_deadline())
    }

    /// Returns whether the host may still send `transmit`, the last packet that
    /// [`Self::poll_transmit`] returned.
    ///
    /// A host that holds the packet back for a while asks before it reads the payload. Meanwhile an
    /// acknowledgment of an earlier copy may have completed the WQE, and the consumer may have
    /// reused the memory. Or `modify_qp` may have withdrawn the peer's right to READ.
    pub fn may_send(&self, transmit: &Transmit) -> bool {
        match transmit.source {
            Source::Send { slot, .. } => self.requester.may_send(slot),
            Source::Remote { .. } => self.context.settings.access.read,
            Source::None => true,
        }
    }

    /// Withdraws `transmit`, the train that the last call of the QP polled: the next poll returns
    /// its packets again. This is for a host that can't send them as one.
    pub fn withdraw(&mut self, transmit: &Transmit) {
        match transmit.packet.body {
            Body::ReadResponse(_) => self.responder.withdraw(transmit.count),
            _ => self.requester.withdraw(transmit.past()),
        }
    }

    /// Tells the engine that the host could not read the payload of `transmit`, the last packet
    /// that [`Self::poll_transmit`] returned. A host withdraws a longer train instead.
    ///
    /// A send WQE completes with the status of the fault, after those before it have completed, and
    /// the QP enters ERR (unreliable QPs: SQE). A READ response is replaced by a NAK, and the QP
    /// enters ERR unless the response belongs to an answer that was sent before. With
    /// [`AccessFault::Retry`] the READ response counts as lost instead.
    pub fn transmit_failed<H: Host>(
        &mut self,
        now: Instant,
        transmit: &Transmit,
        fault: TransmitFault,
        host: &mut H,
    ) {
        let (side, outcome) = match (transmit.source, fault) {
            (Source::Send { slot, .. }, TransmitFault::Local(status)) if self.state.sends() => {
                self.requester
                    .transmit_failed(now, slot, transmit.past(), status, &self.context);
                (Side::Requester, Outcome::Continue)
            }
            (Source::Remote { .. }, TransmitFault::Remote(fault)) if self.state.receives() => {
                let outcome = self.responder.transmit_failed(transmit, fault, host);
                (Side::Responder, outcome)
            }
            // In ERR the NAK of the request that broke the QP is due already.
            (Source::Remote { .. }, TransmitFault::Remote(_)) => {
                return self.responder.cancel_responses();
            }
            _ => return,
        };
        self.apply_outcome(side, outcome, host);
    }

    /// Tells the engine that `transmit`, the last packet that [`Self::poll_transmit`] returned,
    /// didn't leave the host, for lack of memory, of queue space or of a route. The engine may have
    /// processed packets since the poll.
    ///
    /// A reliable QP sends the packet again after a pause. The pause costs no retry, and doubles
    /// with each drop in a row, up to 102 ms. The acknowledgment timer runs meanwhile, so a QP
    /// whose packets are all dropped ends with `RetryExcErr`. The packet of an unreliable QP is
    /// lost. In ERR a READ response is lost, and no further one is sent: the owner soon considers
    /// the peer's access ended, so the memory must not be read after a pause.
    pub fn transmit_dropped(&mut self, now: Instant, transmit: &Transmit) {
        if !self.context.config.kind.is_reliable() {
            return;
        }
        match transmit.packet.body {
            Body::ReadResponse(_) if self.flushes() => self.responder.cancel_responses(),
            Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_) => {
                self.responder.take_back();
            }
            // The poll may have put the QP into an error state, in which it has forgotten its
            // requests.
            _ if self.state.sends() => {
                let psn = transmit.packet.bth.psn;
                self.requester.take_back(psn, transmit.count);
            }
            _ => return,
        }
        self.pause.begin(now);
    }

    /// Checks that the kind and the state of the QP admit `packet`, and checks its P_Key (IBTA 1.x
    /// §9.6.1).
    fn check(&self, packet: &Packet) -> Result<(), QpDropReason> {
        let service = match self.context.config.kind {
            QpKind::Rc => matches!(packet.service, Service::Rc),
            QpKind::Uc => matches!(packet.service, Service::Uc),
            QpKind::Ud | QpKind::Gsi => matches!(packet.service, Service::Ud(_)),
            // XRC requests name a shared receive queue, XRC responses don't.
            QpKind::XrcIni => matches!(packet.service, Service::Xrc(None)),
            QpKind::XrcTgt => matches!(packet.service, Service::Xrc(Some(_))),
            QpKind::RawPacket => false,
        };
        let state = match packet.body {
            Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_) => self.state.sends(),
            _ => self.state.receives(),
        };
        match (service, state, packet.bth.pkey.matches(Pkey::DEFAULT)) {
            (true, true, true) => Ok(()),
            (false, ..) => Err(QpDropReason::Service),
            (true, false, _) => Err(QpDropReason::State),
            (true, true, false) => Err(QpDropReason::Pkey),
        }
    }

    /// Raises `CommEst` for the first request that is carried out in RTR. A dropped packet doesn't
    /// count, since a third party may have sent it.
    fn establish<H: Host>(&mut self, host: &mut H) {
        if matches!(self.state, State::Rtr { established: false }) {
            self.state = State::Rtr { established: true };
            host.raise(Event::CommEst);
        }
    }

    /// Changes the state as the side's outcome requires.
    fn apply_outcome<H: Host>(&mut self, side: Side, outcome: Outcome, host: &mut H) {
        if outcome != Outcome::Fatal {
            return self.check_drained(host);
        }
        if side == Side::Requester && !self.context.config.kind.is_reliable() {
            // A send error of an unreliable QP doesn't affect its receive queue (§10.3.1.6).
            self.state = State::Sqe;
            self.requester.fail(host);
            self.backlog = true;
        } else {
            self.enter_err(host);
        }
    }

    /// Enters ERR, unless the QP is in it. Raises `LastWqeReached` if it has a shared receive
    /// queue.
    fn enter_err<H: Host>(&mut self, host: &mut H) {
        if self.state.name() == QpState::Err {
            return;
        }
        self.state = State::Err;
        self.pause = Pause::default();
        self.requester.fail(host);
        self.responder.fail(&self.context, host);
        self.backlog = true;
        if self.context.config.has_srq {
            host.raise(Event::LastWqeReached);
        }
    }

    /// In SQD: ends draining once all started work requests are finished (§10.3.1.5).
    fn check_drained<H: Host>(&mut self, host: &mut H) {
        if let State::Sqd(Drain::Draining { notify }) = self.state {
            if self.requester.is_drained() {
                self.state = State::Sqd(Drain::Drained);
                if notify {
                    host.raise(Event::SqDrained);
                }
            }
        }
    }

    /// Flushes posted work requests in ERR, as far as steps are left.
    fn flush<H: Host>(&mut self, host: &mut H) {
        let Config { kind, has_srq, .. } = self.context.config;
        self.backlog =
            kind.has_requester() && self.requester.flush(host, &mut self.allowance.sends);
        if kind.has_receives() && !has_srq {
            let steps = &mut self.allowance.recvs;
            self.backlog |= self.responder.flush_recv(&self.context, host, steps);
        }
    }
}
