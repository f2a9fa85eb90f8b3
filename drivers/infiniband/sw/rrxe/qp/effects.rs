// SPDX-License-Identifier: GPL-2.0

//! Effects of a run of a QP's engine that are left to do after the turn lock (`qp/turn.rs`) is
//! dropped: notifications, asynchronous events, further runs.

use kernel::{cpu::CpuId, sync::Arc};
use rdma::support::sync::bottom_halves_off;
use roce::{early::Direction, host::Event};

use crate::{
    qp::Qp,
    verbs::{cq::Cq, srq::Srq},
};

/// Effects of one run. The caller of the run applies them after it has dropped the turn lock.
/// [`Qp::conclude`] applies those for ib_core.
#[derive(Default)]
pub(crate) struct RunEffects {
    /// The send CQ's consumer is to be notified.
    pub(crate) notify_send: bool,
    /// The receive CQ's consumer is to be notified.
    pub(crate) notify_recv: bool,
    /// The shared receive queue has asynchronous events to raise.
    pub(crate) notify_srq: bool,
    /// Shared receive queue of the XRC domain that has asynchronous events to raise, or whose CQ's
    /// consumer is to be notified.
    pub(crate) xrc_srq: Option<Arc<Srq>>,
    /// A CQ lost a completion, so the QP must enter the error state.
    pub(crate) fatal: bool,
    /// The packet that the engine has handled is to be kept: an earlier one is missing.
    pub(crate) keeps: Option<Direction>,
    /// The requester went back to its oldest unacknowledged PSN after a loss.
    pub(crate) lost: bool,
    /// Asynchronous events to raise.
    pub(crate) events: Events,
    /// QP of this host (local peer) that got packets and is to run next.
    pub(crate) peer: Option<Arc<Qp>>,
    /// The QP is parked: its run ended because memory is absent. A page fault is to be requested.
    pub(crate) is_parked: bool,
    /// Whether and where the QP runs again.
    pub(crate) continuation: Continuation,
}

/// Whether and where a QP runs again after a run.
#[derive(Default)]
pub(crate) enum Continuation {
    /// The QP has no work left.
    #[default]
    None,
    /// The run ended before its work was done. Any CPU may continue.
    Anywhere,
    /// The QP must continue on this CPU. Packets that another CPU sent could overtake those that
    /// this CPU has sent.
    On(CpuId),
}

impl RunEffects {
    /// Returns whether there is nothing to report to ib_core, as after most runs.
    pub(crate) fn is_quiet(&self) -> bool {
        let notify = self.notify_send || self.notify_recv || self.notify_srq;
        !notify && self.xrc_srq.is_none() && self.events.is_empty()
    }
}

/// Set of asynchronous events, one bit for each [`Event`]. Each event is raised at most once in a
/// run.
#[derive(Clone, Copy, Default)]
pub(crate) struct Events(u8);

impl Events {
    /// All events, in the order in which they are raised.
    const ALL: [Event; 6] = [
        Event::CommEst,
        Event::SqDrained,
        Event::QpReqErr,
        Event::QpAccessErr,
        Event::QpFatal,
        Event::LastWqeReached,
    ];

    /// Returns the bit of an event.
    fn bit(event: Event) -> u8 {
        1 << match event {
            Event::CommEst => 0,
            Event::SqDrained => 1,
            Event::QpReqErr => 2,
            Event::QpAccessErr => 3,
            Event::QpFatal => 4,
            Event::LastWqeReached => 5,
        }
    }

    /// Adds an event to the set.
    pub(crate) fn insert(&mut self, event: Event) {
        self.0 |= Self::bit(event);
    }

    /// Returns whether the set is empty.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the events of the set, in the order in which they are raised.
    pub(crate) fn iter(self) -> impl Iterator<Item = Event> {
        Self::ALL
            .into_iter()
            .filter(move |event| self.0 & Self::bit(*event) != 0)
    }
}

impl Qp {
    /// Reports the effects of a run to ib_core: notifies CQs, raises asynchronous events. Called
    /// without the turn lock.
    ///
    /// Handlers of kernel consumers run with bottom halves disabled, as after an interrupt. In
    /// plain process context a handler could be interrupted by a softirq that calls the same
    /// handler.
    #[inline(never)]
    pub(super) fn conclude(&self, effects: &RunEffects) {
        let _as_interrupt = self.kernel_queue.as_ref().map(|_| bottom_halves_off());
        if let Some(cq) = self.send_cq.as_ref().filter(|_| effects.notify_send) {
            Cq::notify(cq);
        }
        if effects.notify_recv {
            self.notify_recv();
        }
        if let Some(srq) = self.srq.as_ref().filter(|_| effects.notify_srq) {
            srq.notify();
        }
        if let Some(srq) = &effects.xrc_srq {
            srq.notify();
            if let Some(cq) = srq.cq() {
                Cq::notify(cq);
            }
        }
        for event in effects.events.iter() {
            self.upcall
                .event(event, || self.payer()?.claim_unread_async_events().ok());
        }
    }

    /// Notifies the receive CQ's consumer. The notification is immediate if the process sends in
    /// response to receives, else it may be delayed ([`Cq::notify_paced`]).
    fn notify_recv(&self) {
        let Some(cq) = &self.recv_cq else {
            return;
        };
        if self.pd.take_answers() {
            Cq::notify(cq);
        } else {
            Cq::notify_paced(cq);
        }
    }
}
