// SPDX-License-Identifier: GPL-2.0

//! A QP that stands still until memory is there.

use kernel::{
    impl_has_work,
    sync::{Arc, ArcBorrow},
    workqueue::WorkItem,
};

use super::Qp;

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
        // It isn't queued: the QP stands still until it has run.
        let _ = this.workers.faults.enqueue::<_, 1>(Arc::from(this));
    }

    /// Has the memory faulted in that the QP waits for, and lets it go on. Process context; sleeps.
    fn fault_in(this: ArcBorrow<'_, Self>) {
        let wanted = {
            let turn = this.turn.wait();
            turn.as_ref().and_then(|core| core.stall.wanted())
        };
        let Some(absent) = wanted else {
            // What others wanted meanwhile.
            return Self::advance(this, &mut None);
        };
        let served = this.device.mrs.fault_in(&absent).is_ok();
        if let Some(core) = Option::as_mut(&mut this.turn.wait()) {
            core.stall.end(served);
        }
        Self::advance(this, &mut None);
    }
}
