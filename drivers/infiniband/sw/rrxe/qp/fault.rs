// SPDX-License-Identifier: GPL-2.0

//! A QP that stands still until memory is there.

use kernel::{
    error::code::EBUSY,
    impl_has_work,
    prelude::*,
    sync::{Arc, ArcBorrow},
    workqueue::WorkItem,
};
use rdma::odp::Job;

use super::Qp;

impl_has_work! { impl HasWork<Self, 1> for Qp { self.fault } }

impl WorkItem<1> for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        if let Err(served) = Qp::begin_fault(&this) {
            Qp::end_fault(&this, served);
        }
    }
}

impl Job for Qp {
    fn run(self: Arc<Self>) -> bool {
        // Runs the engine if others wished for it: a QP in error flushes during the fault.
        let wanted = Self::in_turn(&self, |core| core.stall.wanted());
        let result = match wanted.ok().flatten() {
            Some(absent) => self.device.mrs.fault_in(&absent),
            None => Ok(()),
        };
        // EBUSY: the process's mappings changed for a second, as often as HMM looked at them
        // (`hmm_range_fault_unlocked_timeout()` of mm/hmm.c). The access finds the memory absent again, and waits again.
        Self::end_fault(&self, result.is_ok() || result == Err(EBUSY));
        false
    }

    fn cancel(self: Arc<Self>) {
        Self::end_fault(&self, false);
    }
}

impl Qp {
    /// Has it faulted in, of a QP whose turn ended so. Any context.
    pub(super) fn request_fault(this: ArcBorrow<'_, Self>) {
        // It isn't queued: the QP stands still until its fault has ended.
        let _ = this.workers.faults.enqueue::<_, 1>(Arc::from(this));
    }

    /// Has the process whose memory it is fault in what the QP waits for. Process context.
    ///
    /// # Errors
    ///
    /// How the fault ends at once: `true` if the access is to be tried again.
    fn begin_fault(this: &Arc<Self>) -> Result<(), bool> {
        let wanted = Self::in_turn(this, |core| core.stall.wanted());
        let absent = wanted.ok().flatten().ok_or(true)?;
        let found = this.device.mrs.absent(&absent).ok_or(true)?;
        let (memory, _) = found.place().ok_or(true)?;
        memory.begin(this.clone()).map_err(|_| false)
    }

    /// The fault was served, or can't be: the QP goes on. Process context.
    fn end_fault(this: &Arc<Self>, served: bool) {
        if let Some(core) = Option::as_mut(&mut this.turn.wait()) {
            core.stall.end(served);
        }
        Self::advance(this.as_arc_borrow(), &mut None);
    }
}
