// SPDX-License-Identifier: GPL-2.0

//! What administrators want of a QP: what lies in it, where it counts, what it reports, and its end.

use kernel::{prelude::*, sync::Arc};
use rdma::{trace, verbs::qp::QpModify};
use roce::{
    psn::Psn,
    qp::{Attrs, QpState},
};

use super::Qp;
use crate::{
    device::stats::{self, Counter, Counters},
    qp::engine::Core,
};

/// What lies in a QP's queues, for administrators.
pub(crate) struct QpLoad {
    /// Send WQEs posted and not yet retired.
    pub(crate) sends: u32,
    /// Receive WQEs posted and not yet taken.
    pub(crate) receives: u32,
    /// Packets that wait for the turn.
    pub(crate) inbox: u32,
    /// Packets sent that have not left the host.
    pub(crate) in_flight: u32,
}

impl Qp {
    /// Whether a process posts to it, by its rings.
    pub(crate) fn is_of_process(&self) -> bool {
        self.kernel_queue.is_none()
    }

    /// Puts the QP in error, unless it is in RESET, and flushes some of the WQEs posted before the
    /// first of these calls. Returns whether such WQEs are left. Process context.
    ///
    /// WQEs posted later are not taken: a process that keeps posting does not lengthen the flush.
    /// A call takes the time of a few turns.
    pub(crate) fn fail_and_flush(this: &Arc<Self>) -> bool {
        match Self::in_turn(this, Core::close) {
            Ok(true) => {
                let error = QpModify {
                    attrs: Attrs {
                        state: Some(QpState::Err),
                        ..Attrs::default()
                    },
                    ..QpModify::default()
                };
                // In RESET nothing completes.
                let _ = Self::modify(this, &error);
            }
            Ok(false) => Self::advance(this.as_arc_borrow()),
            Err(_) => return false,
        }
        Self::in_turn(this, |core| core.is_due(this.now())).unwrap_or(false)
    }

    /// The lengths of its queues.
    pub(super) fn load(&self, core: &Core) -> QpLoad {
        QpLoad {
            sends: core.sq.posted(),
            receives: core.rq.posted(),
            inbox: match self.frames() {
                Some(frames) => frames.len(),
                None => self.inbox.len(),
            },
            in_flight: self.tx_limit.in_flight(),
        }
    }

    /// From now on the QP counts into `set`. Process context.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is bound to a set, `EINVAL` once destroyed.
    pub(crate) fn bind_to_set(this: &Arc<Self>, set: Arc<Counters>) -> Result {
        let ports = &this.device.counters;
        Self::in_turn(this, |core| match Arc::ptr_eq(&core.counters, ports) {
            true => {
                core.counters = set;
                Ok(())
            }
            false => Err(EBUSY),
        })?
    }

    /// From now on the QP counts into its port's counters. Process context.
    pub(crate) fn unbind_from_set(this: &Arc<Self>) {
        let ports = this.device.counters.clone();
        // One that is destroyed counts no more.
        let _ = Self::in_turn(this, |core| core.counters = ports);
    }

    /// Reports that a packet was dropped, and counted so.
    #[cold]
    pub(crate) fn trace_drop(&self, psn: Psn, counter: Counter) {
        let device = self.device.link.device();
        trace::drop_for_qp(device, self.qpn.get(), psn.get(), stats::name(counter));
    }

    /// Notes the state that a turn left, and reports a change.
    #[inline(always)]
    pub(crate) fn cache_state(&self, state: QpState) {
        if trace::qp_state_enabled() {
            self.trace_state(state);
        }
        self.cached_state.note(state);
    }

    #[cold]
    fn trace_state(&self, state: QpState) {
        let (from, to) = (self.cached_state.number(), state as u32);
        if from != to {
            trace::qp_state(self.device.link.device(), self.qpn.get(), from, to);
        }
    }
}
