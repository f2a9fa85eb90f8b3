// SPDX-License-Identifier: GPL-2.0

//! A queue pair: its state, its attributes, and the two sides that do the work.
//!
//! [`Qp`] owns the state and decides which packets and calls reach which side; the
//! [`Requester`] owns the send queue's progress, the [`Responder`] the receive queue's. A side
//! never changes the state: it reports [`Outcome::Fatal`] and [`Qp`] acts on it.
//!
//! `Qp` raises `CommEst` and `LastWqeReached` itself and counts packets that it drops.

mod allowance;
pub mod attr;
mod modify;
mod pause;
mod state;
#[cfg(test)]
mod tests;

use core::ops::DerefMut;

use crate::host::{AccessFault, Count, Event, Host, QpDropReason, ScatterFault};
use crate::ids::Pkey;
use crate::requester::{Progress, Requester};
use crate::responder::Responder;
use crate::time::Instant;
use crate::transmit::{Source, Transmit};
use crate::wc::WcStatus;
use crate::wire::packet::{Body, Packet, Service};

pub use crate::requester::SendWqe;
pub use crate::responder::Replay;
use allowance::Allowance;
pub(crate) use allowance::Steps;
use pause::Pause;
use state::{Drain, State};

pub use attr::{Attrs, Config, CurrentAttrs, ModifyError, QpKind, QpState, RemoteRights, Settings};

/// Storage of fixed size that the host hands to a QP: a vector, in practice.
///
/// Its length never changes while the QP has it.
pub trait Slots<T>: DerefMut<Target = [T]> {}

impl<T, S: DerefMut<Target = [T]>> Slots<T> for S {}

/// What both sides may read of their QP.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Fixed at creation.
    pub config: Config,
    /// Set by `modify_qp`.
    pub settings: Settings,
}

/// What a side's work means for the QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The QP goes on.
    Continue,
    /// A request of a connection was carried out, and the QP goes on.
    Executed,
    /// The QP leaves its state: to ERR, or to SQE after a send error of a UC, UD or GSI QP.
    Fatal,
}

/// Why the host could not resolve a [`Source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitFault {
    /// The SGEs of a send WQE: the status with which it completes, usually `LocProtErr`.
    Local(WcStatus),
    /// The responder's memory under a READ response. `Retry` counts as a lost packet.
    Remote(AccessFault),
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp<W: Slots<SendWqe>, R: Slots<Replay>> {
    context: Context,
    state: State,
    requester: Requester<W>,
    responder: Responder<R>,
    /// The side that sends first next time both have something.
    turn: Side,
    /// What may still be done in this turn without sending a packet.
    allowance: Allowance,
    /// The last poll stopped because the allowance was spent.
    backlog: bool,
    /// The host dropped a packet.
    pause: Pause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Requester,
    Responder,
}

impl<W: Slots<SendWqe>, R: Slots<Replay>> Qp<W, R> {
    /// A QP in RESET. `window` bounds how many send WQEs are taken at a time and must not be
    /// empty; `replays` bounds `max_dest_rd_atomic` and may be empty until that is set.
    pub fn new(config: Config, window: W, replays: R) -> Self {
        Self {
            context: Context {
                config,
                settings: Settings::default(),
            },
            state: State::Reset,
            requester: Requester::new(window),
            responder: Responder::new(replays),
            turn: Side::Responder,
            allowance: Allowance::default(),
            backlog: false,
            pause: Pause::default(),
        }
    }

    /// Makes room for more of the answers that peers may ask for again, in any state: `replays` is
    /// taken into use if it has more places, and what isn't used any more is returned. Call this
    /// before a [`Self::modify`] that raises `max_dest_rd_atomic`.
    pub fn enlarge_replays(&mut self, replays: R) -> R {
        self.responder.enlarge(replays)
    }

    /// The current state.
    pub fn state(&self) -> QpState {
        self.state.name()
    }

    /// Whether it takes requests.
    pub fn receives(&self) -> bool {
        self.state.receives()
    }

    /// The current attributes, for `query_qp`.
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
    /// A transition to RESET gives every taken slot back without a completion. One to ERR lets the
    /// following [`Self::poll_transmit`] calls flush what is posted.
    ///
    /// # Errors
    ///
    /// [`ModifyError`]; nothing was changed.
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

    /// Takes in a packet whose payload, if any, lies with the host until this returns.
    pub fn handle_packet<H: Host>(&mut self, now: Instant, packet: &Packet, host: &mut H) {
        // Whoever sends at the pace of the network has no use for notifications of congestion.
        if packet.body == Body::Cnp {
            return;
        }
        if let Err(reason) = self.check(packet) {
            host.count(Count::Dropped(reason));
            return;
        }
        self.responder.hear();
        let (side, outcome) = match packet.body {
            Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_) => {
                let outcome = self
                    .requester
                    .handle_response(now, packet, &self.context, host);
                (Side::Requester, outcome)
            }
            _ => {
                let outcome = self.responder.handle_request(packet, &self.context, host);
                if outcome == Outcome::Executed {
                    self.establish(host);
                }
                (Side::Responder, outcome)
            }
        };
        self.conclude(side, outcome, host);
    }

    /// Takes in a frame of `length` bytes that came to a raw packet QP. `scatter` copies it to the receive
    /// WQE that the host holds; with [`ScatterFault::Retry`] the frame counts as lost.
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
        self.conclude(Side::Responder, outcome, host);
    }

    /// Does what is due at `now`; harmless when called early.
    pub fn handle_timeout<H: Host>(&mut self, now: Instant, host: &mut H) {
        if matches!(self.state, State::Rts | State::Sqd(_)) {
            let outcome = self.requester.handle_timeout(now, &self.context, host);
            self.conclude(Side::Requester, outcome, host);
        }
    }

    /// Begins a turn: a host that polls no further although it got a packet calls this before it polls again.
    /// A poll that returns `None` ends a turn, too.
    #[inline]
    pub fn begin_turn(&mut self) {
        self.allowance = Allowance::default();
    }

    /// The next packet to send; takes posted WQEs as it goes.
    ///
    /// Responses and requests alternate when both are there. In ERR (and SQE) this flushes what is
    /// posted. In all polls of a turn together, 64 work requests of each queue at most are started, finished or
    /// flushed without a packet: when `None` came for that reason only, [`Self::poll_timeout`] is due at once.
    pub fn poll_transmit<H: Host>(&mut self, now: Instant, host: &mut H) -> Option<Transmit> {
        let transmit = self.poll_next(now, host);
        if transmit.is_none() {
            self.begin_turn();
        }
        transmit
    }

    fn poll_next<H: Host>(&mut self, now: Instant, host: &mut H) -> Option<Transmit> {
        self.backlog = false;
        let may_send = self.pause.is_over(now);
        if self.state.sends() && may_send {
            let transmit = self.poll_sides(now, host);
            if transmit.is_some() {
                return transmit;
            }
        }
        self.flush_posted(host);
        if matches!(
            self.state,
            State::Reset | State::Init | State::Rts | State::Sqd(_)
        ) {
            return None;
        }
        if !may_send {
            return None;
        }
        // In ERR: answers that were due before the NAK that broke the QP, and that NAK.
        self.responder.poll_transmit(&self.context, host)
    }

    /// The state completes posted work requests in error.
    pub fn flushes(&self) -> bool {
        matches!(self.state, State::Sqe | State::Err)
    }

    /// Completes some of the work requests that a state of error flushes, as [`Self::poll_transmit`] does, but sends
    /// nothing: for hosts whose packets can't leave. It is part of a turn as a poll is. [`Self::poll_timeout`] tells
    /// whether there are more.
    pub fn flush_posted<H: Host>(&mut self, host: &mut H) {
        match self.state {
            State::Sqe => self.backlog = self.requester.flush(host, &mut self.allowance.sends),
            State::Err => self.flush(host),
            State::Reset | State::Init | State::Rtr { .. } | State::Rts | State::Sqd(_) => {}
        }
    }

    /// Whether [`Self::poll_transmit`] has nothing to send until something comes in or is posted. It
    /// may say no when it has not either, and costs less.
    pub fn rests(&self) -> bool {
        matches!(self.state, State::Rts)
            && !self.backlog
            && self.pause.end().is_none()
            && self.requester.rests(&self.context)
            && self.responder.rests()
    }

    /// Whether its requests are acknowledged.
    pub fn is_reliable(&self) -> bool {
        self.context.config.kind.is_reliable()
    }

    /// Whether something is lost if the packet that is sent next overtakes one that was sent before. It may say yes when
    /// nothing is.
    ///
    /// A reliable QP loses nothing when all of its requests are acknowledged and it has answered no READ or atomic: an
    /// acknowledgement may come after a later one, which covers it, and before or after any request.
    pub fn minds_order(&self) -> bool {
        !self.is_reliable() || !self.requester.is_drained() || self.responder.remembers_answers()
    }

    /// The earliest instant at which [`Self::handle_timeout`] and [`Self::poll_transmit`] want to
    /// be called; one in the past when they left work undone for the sake of their bounds.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.backlog {
            return Some(Instant(0));
        }
        [self.deadline(), self.pause.end()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The earliest instant at which [`Self::handle_timeout`] wants to be called. A host whose
    /// packets can't leave does not poll, so the rest of [`Self::poll_timeout`] stays due, unless
    /// the QP [flushes](Self::flushes).
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Rts | State::Sqd(_) => self.requester.poll_timeout(),
            _ => None,
        }
    }

    /// Whether `transmit`, the last packet that [`Self::poll_transmit`] returned, is still to leave. A host that keeps it for a
    /// while asks before it reads the payload: an acknowledgement of an earlier copy, taken in since, may have completed the
    /// WQE, and its owner may have changed the memory; or the owner no longer lets the peer read.
    pub fn may_send(&self, transmit: &Transmit) -> bool {
        match transmit.source {
            Source::Send { slot, .. } => self.requester.may_send(slot),
            Source::Remote { .. } => self.context.settings.access.read,
            Source::None => true,
        }
    }

    /// The host could not resolve the source of `transmit`, the last packet that
    /// [`Self::poll_transmit`] returned.
    ///
    /// A send WQE completes with the fault's status, once those before it have completed, and the
    /// QP enters ERR (UC, UD, GSI: SQE). A READ response turns into a NAK, and the QP enters ERR.
    pub fn transmit_failed<H: Host>(
        &mut self,
        now: Instant,
        transmit: &Transmit,
        fault: TransmitFault,
        host: &mut H,
    ) {
        let (side, outcome) = match (transmit.source, fault) {
            (Source::Send { slot, .. }, TransmitFault::Local(status)) if self.state.sends() => {
                let psn = transmit.packet.bth.psn;
                self.requester
                    .transmit_failed(now, slot, psn, status, &self.context);
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
        self.conclude(side, outcome, host);
    }

    /// The host knows that `transmit`, the last packet that [`Self::poll_transmit`] returned, did not leave
    /// it: for want of memory, of room in a queue, or of a route. Packets may have been taken in since.
    ///
    /// A reliable QP sends it again after a pause, which costs no retry and doubles with each drop in a
    /// row. The acknowledgement timer runs meanwhile, so that a host that drops everything ends in
    /// `RetryExcErr`. Of other QPs the packet is lost.
    pub fn transmit_dropped(&mut self, now: Instant, transmit: &Transmit) {
        if !self.context.config.kind.is_reliable() {
            return;
        }
        match transmit.packet.body {
            Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_) => {
                self.responder.take_back();
            }
            // The poll may have broken the QP, which forgot its requests.
            _ if self.state.sends() => self.requester.take_back(transmit.packet.bth.psn),
            _ => return,
        }
        self.pause.begin(now);
    }

    /// Whether the state and the kind of the QP admit `packet` (IBTA 1.x §9.6.1).
    fn check(&self, packet: &Packet) -> Result<(), QpDropReason> {
        let service = match self.context.config.kind {
            QpKind::Rc => matches!(packet.service, Service::Rc),
            QpKind::Uc => matches!(packet.service, Service::Uc),
            QpKind::Ud | QpKind::Gsi => matches!(packet.service, Service::Ud(_)),
            // Requests name a queue, responses don't.
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

    /// The first request that is carried out in RTR establishes the connection. One that is dropped may be anybody's.
    fn establish<H: Host>(&mut self, host: &mut H) {
        if matches!(self.state, State::Rtr { established: false }) {
            self.state = State::Rtr { established: true };
            host.raise(Event::CommEst);
        }
    }

    fn poll_sides<H: Host>(&mut self, now: Instant, host: &mut H) -> Option<Transmit> {
        let polled = self.turn == Side::Responder;
        if polled {
            if let Some(transmit) = self.responder.poll_transmit(&self.context, host) {
                self.turn = Side::Requester;
                return Some(transmit);
            }
        }
        self.turn = Side::Responder;
        if !self.context.config.kind.has_requester() {
            return self.responder.poll_transmit(&self.context, host);
        }
        let draining = matches!(self.state, State::Sqd(_));
        match self.requester.poll_transmit(
            now,
            draining,
            &self.context,
            &mut self.allowance.sends,
            host,
        ) {
            Progress::Send(transmit) => return Some(transmit),
            Progress::Idle => {}
            Progress::Busy => self.backlog = true,
            Progress::Fatal => self.conclude(Side::Requester, Outcome::Fatal, host),
        }
        self.check_drained(host);
        if polled {
            return None;
        }
        self.responder.poll_transmit(&self.context, host)
    }

    /// Acts on what a side reports.
    fn conclude<H: Host>(&mut self, side: Side, outcome: Outcome, host: &mut H) {
        if outcome != Outcome::Fatal {
            return self.check_drained(host);
        }
        if side == Side::Requester && !self.context.config.kind.is_reliable() {
            // A send error of an unreliable QP leaves its receive queue alone (§10.3.1.6).
            self.state = State::Sqe;
            self.requester.fail();
            self.backlog = true;
        } else {
            self.enter_err(host);
        }
    }

    fn enter_err<H: Host>(&mut self, host: &mut H) {
        if self.state.name() == QpState::Err {
            return;
        }
        self.state = State::Err;
        self.pause = Pause::default();
        self.requester.fail();
        self.responder.fail(&self.context, host);
        self.backlog = true;
        if self.context.config.has_srq {
            host.raise(Event::LastWqeReached);
        }
    }

    /// SQD: the send queue has drained once all that was started is finished (§10.3.1.5).
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
