// SPDX-License-Identifier: GPL-2.0

//! Administration of a QP: lengths of its queues, binding of counters, tracepoints, and the flush
//! before its device is removed.

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

/// Lengths of a QP's queues, for `rdma resource show qp`.
pub(crate) struct QpLoad {
    /// Number of send WQEs that are posted and not yet retired.
    pub(crate) sends: u32,
    /// Number of receive WQEs that are posted to the QP's own receive queue and not yet taken.
    pub(crate) receives: u32,
    /// Number of received packets or frames that no run of the engine (`qp/run.rs`) has taken in
    /// yet.
    pub(crate) inbox: u32,
    /// Number of packets in flight: sent, and still in this host.
    pub(crate) in_flight: u32,
}

impl Qp {
    /// Returns whether the QP belongs to a process and not to a kernel consumer.
    pub(crate) fn is_of_process(&self) -> bool {
        self.kernel_queue.is_none()
    }

    /// Puts the QP in the error state, unless it is in RESET. Flushes some of the WQEs that were
    /// posted before the first call. Returns whether such WQEs are left. Process context.
    ///
    /// WQEs that are posted later are not taken, so a process that keeps posting does not prolong
    /// the flush. A call takes the time of a few runs.
    pub(crate) fn fail_and_flush(this: &Arc<Self>) -> bool {
        match Self::with_core(this, Core::close) {
            Ok(true) => {
                let error = QpModify {
                    attrs: Attrs {
                        state: Some(QpState::Err),
                        ..Attrs::default()
                    },
                    ..QpModify::default()
                };
                // The change fails in RESET, where nothing completes.
                let _ = Self::modify(this, &error);
            }
            Ok(false) => Self::advance(this.as_arc_borrow()),
            Err(_) => return false,
        }
        Self::with_core(this, |core| core.is_due(this.now())).unwrap_or(false)
    }

    /// Returns the lengths of the queues.
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

    /// Binds the QP to the counters `set` (`rdma statistic qp bind`). Process context.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the QP is bound to a set, `EINVAL` if it is destroyed.
    pub(crate) fn bind_to_set(this: &Arc<Self>, set: Arc<Counters>) -> Result {
        let ports = &this.device.counters;
        Self::with_core(this, |core| match Arc::ptr_eq(&core.counters, ports) {
            true => {
                core.counters = set;
                Ok(())
            }
            false => Err(EBUSY),
        })?
    }

    /// Unbinds the QP from its set: it counts in its port's counters from now on. Process context.
    pub(crate) fn unbind_from_set(this: &Arc<Self>) {
        let ports = this.device.counters.clone();
        // A destroyed QP counts nothing.
        let _ = Self::with_core(this, |core| core.counters = ports);
    }

    /// Emits the tracepoint for a dropped packet, which `counter` has counted.
    #[cold]
    pub(crate) fn trace_drop(&self, psn: Psn, counter: Counter) {
        let device = self.device.link.device();
        trace::drop_by_qp(device, self.qpn.get(), psn.get(), stats::name(counter));
    }

    /// Stores `state`, the state of the QP after a run or a `modify_qp`, where posters read it.
    /// Emits a tracepoint if the state has changed.
    #[inline(always)]
    pub(crate) fn cache_state(&self, state: QpState) {
        if trace::qp_state_enabled() {
            self.trace_state(state);
        }
        self.cached_state.note(state);
    }

    /// Emits the tracepoint for a change of the state.
    #[cold]
    fn trace_state(&self, state: QpState) {
        let (from, to) = (self.cached_state.number(), state as u32);
        if from != to {
            trace::qp_state(self.device.link.device(), self.qpn.get(), from, to);
        }
    }
}
