// SPDX-License-Identifier: GPL-2.0

//! A QP that stands still until memory is there.

use kernel::{
    error::code::EBUSY,
    impl_has_work,
    sync::{Arc, ArcBorrow},
    workqueue::WorkItem,
};
use rdma::module::InUse;

use super::Qp;
use crate::{accounts::Threads, thread_share::Waiter};

impl_has_work! { impl HasWork<Self, 1> for Qp { self.fault } }

impl WorkItem<1> for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        Qp::fault_in(this.as_arc_borrow());
    }
}

impl Qp {
    /// Has it faulted in, of a QP whose turn ended so. Any context.
    pub(super) fn request_fault(this: ArcBorrow<'_, Self>) {
        Waiter::Qp(Arc::from(this)).begin(Threads::Faults);
    }

    /// Has a thread serve the fault of a QP that was given one. Any context.
    pub(crate) fn enqueue_fault(qp: Arc<Self>) {
        let workers = qp.workers.clone();
        // It isn't queued: the QP stands still until it has run.
        let _ = workers.faults.enqueue::<_, 1>(qp);
    }

    /// Has the memory faulted in that the QP waits for, and lets it go on. Process context; sleeps.
    fn fault_in(this: ArcBorrow<'_, Self>) {
        // Runs the engine if others wished for it: a QP in error flushes during the fault.
        let wanted = Self::in_turn(&Arc::from(this), |core| core.stall.wanted());
        let Some(absent) = wanted.ok().flatten() else {
            this.fault_share.end();
            // What others wanted meanwhile.
            return Self::advance(this, &mut None);
        };
        let result = InUse::begin().and_then(|_in_use| this.device.mrs.fault_in(&absent));
        // EBUSY: the process's mappings changed for a second, as often as HMM looked at them
        // (`hmm_range_fault_unlocked_timeout()` of mm/hmm.c). The access finds the memory absent again, and waits again.
        let served = result.is_ok() || result == Err(EBUSY);
        // Before the QP goes on, which may come to absent memory again.
        this.fault_share.end();
        if let Some(core) = Option::as_mut(&mut this.turn.wait()) {
            core.stall.end(served);
        }
        Self::advance(this, &mut None);
    }
}
