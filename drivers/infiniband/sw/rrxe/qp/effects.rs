// SPDX-License-Identifier: GPL-2.0

//! What a run of a QP's engine leaves to do after the turn: notifications, events, other QPs to run.

use kernel::{cpu::CpuId, sync::Arc};
use rdma::support::sync::bottom_halves_off;
use roce::host::Event;

use crate::{
    qp::Qp,
    verbs::{cq::Cq, srq::Srq},
};

/// What is left to do when the turn is over.
#[derive(Default)]
pub(crate) struct RunEffects {
    /// The send CQ's consumer wants to be woken.
    pub(crate) notify_send: bool,
    /// The receive CQ's consumer wants to be woken.
    pub(crate) notify_recv: bool,
    /// The shared receive queue has events to raise.
    pub(crate) notify_srq: bool,
    /// A queue of the XRC domain has, or its CQ's consumer wants to be woken.
    pub(crate) named: Option<Arc<Srq>>,
    /// A completion was refused: the QP must enter the error state.
    pub(crate) fatal: bool,
    /// Asynchronous events, one bit for each [`Event`].
    pub(crate) events: Events,
    /// A QP of this host that got packets.
    pub(crate) peer: Option<Arc<Qp>>,
    /// The QP stands still until memory is faulted in.
    pub(crate) is_parked: bool,
    /// What is left to do, and where.
    pub(crate) continuation: Continuation,
}

/// What a turn left over.
#[derive(Default)]
pub(crate) enum Continuation {
    /// Nothing.
    #[default]
    None,
    /// The engine stopped for its budget.
    Anywhere,
    /// This CPU must go on, for what is to be sent would overtake what it has sent.
    On(CpuId),
}

impl RunEffects {
    /// There is nothing to tell ib_core, as after most turns.
    pub(crate) fn is_quiet(&self) -> bool {
        let notify = self.notify_send || self.notify_recv || self.notify_srq;
        !notify && self.named.is_none() && self.events.is_empty()
    }
}

/// A set of asynchronous events; each is raised at most once a turn.
#[derive(Clone, Copy, Default)]
pub(crate) struct Events(u8);

impl Events {
    const ALL: [Event; 6] = [
        Event::CommEst,
        Event::SqDrained,
        Event::QpReqErr,
        Event::QpAccessErr,
        Event::QpFatal,
        Event::LastWqeReached,
    ];

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

    pub(crate) fn insert(&mut self, event: Event) {
        self.0 |= Self::bit(event);
    }

    /// None is in the set.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The events of the set, in the order in which they make sense to a consumer.
    pub(crate) fn iter(self) -> impl Iterator<Item = Event> {
        Self::ALL
            .into_iter()
            .filter(move |event| self.0 & Self::bit(*event) != 0)
    }
}

impl Qp {
    /// Tells ib_core what a turn brought about. No lock is held.
    ///
    /// The kernel's consumers count on being called as by an interrupt, not in process context
    /// where one could call them again.
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
        if let Some(srq) = &effects.named {
            srq.notify();
            if let Some(cq) = srq.cq() {
                Cq::notify(cq);
            }
        }
        for event in effects.events.iter() {
            self.upcall
                .event(event, || self.payer()?.claim_async_events().ok());
        }
    }

    /// Wakes whoever waits for receives: at once if the process answers what it receives.
    fn notify_recv(&self) {
        let Some(cq) = &self.recv_cq else {
            return;
        };
        if self.pd.answers() {
            Cq::notify(cq);
        } else {
            Cq::notify_paced(cq);
        }
    }
}
