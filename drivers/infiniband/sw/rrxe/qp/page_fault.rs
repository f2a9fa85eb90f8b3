// SPDX-License-Identifier: GPL-2.0

//! A QP that stands still until memory is there.
//!
//! An item of `rrxe_faults` hands the fault to a thread of the process whose memory is absent. The items of all users run in
//! the order of their arrival, and their CPU time counts for nobody. So no item runs an engine: the QP's payer does
//! ([`Qp::leave`]). A thread of the process runs the engine itself when it has served the fault.

use kernel::{
    error::code::{EBUSY, ERESTARTNOINTR},
    impl_has_work,
    prelude::*,
    sync::{Arc, ArcBorrow},
    workqueue::WorkItem,
};
use rdma::{
    memory::odp::{Job, Pending},
    support::sync::bottom_halves_off,
};

use super::Qp;
use crate::qp::engine::Core;

impl_has_work! { impl HasWork<Self, 1> for Qp { self.fault } }

impl WorkItem<1> for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        if let Err(served) = Qp::begin_fault(&this) {
            Qp::give_up_fault(&this, served);
        }
    }
}

impl Job for Qp {
    fn run(self: Arc<Self>) -> bool {
        // Runs the engine if others wished for it: a QP in error flushes during the fault.
        let wanted = Self::in_turn(&self, |core| core.parked.wanted());
        let result = match wanted.ok().flatten() {
            Some(absent) => self.device.mrs.fault_in(&absent),
            None => Ok(()),
        };
        // ERESTARTNOINTR: the thread takes a signal between two jobs. EBUSY: the process's mappings changed as often as HMM
        // looked at them, for a second at most (`hmm_range_fault_unlocked_timeout()` of mm/hmm.c). The access finds the
        // memory absent again, and waits again.
        let again = matches!(result, Ok(()) | Err(EBUSY | ERESTARTNOINTR));
        // A thread that was preempted in between would keep the QP, whose owner may be another process, standing still.
        let _off = bottom_halves_off();
        self.note_fault_end(again);
        Self::advance(self.as_arc_borrow());
        false
    }

    /// In a thread of the process that ends, or in a work item. The access is tried again, since its key may have become one of
    /// other memory meanwhile. If it still is that of a process that has ended, the next fault can't begin.
    fn cancel(self: Arc<Self>) {
        Self::give_up_fault(&self, true);
    }
}

impl Qp {
    /// Has it faulted in, of a QP whose turn ended so. Any context.
    pub(super) fn request_fault(this: ArcBorrow<'_, Self>) {
        // It isn't queued: the QP stands still until its fault has ended.
        let _ = this.workqueues.faults.enqueue::<_, 1>(Arc::from(this));
    }

    /// Has the process whose memory it is fault in what the QP waits for. Process context.
    ///
    /// # Errors
    ///
    /// How the fault ends at once: `true` if the access is to be tried again.
    fn begin_fault(this: &Arc<Self>) -> Result<(), bool> {
        let wanted = Self::look(this, |core| core.parked.wanted());
        let absent = wanted.flatten().ok_or(true)?;
        let found = this.device.mrs.absent(&absent).ok_or(true)?;
        let (memory, _) = found.place().ok_or(true)?;
        let pending = memory.begin(this.clone()).map_err(|_| false)?;
        let mut pending = Some(pending);
        Self::look(this, |core| core.parked.note_pending(pending.take()));
        // Destroyed meanwhile.
        Self::withdraw_fault(pending);
        Ok(())
    }

    /// Takes a fault out of the queue of its process, which may not go on for long. The queue would keep the QP. Process context.
    pub(super) fn withdraw_fault(pending: Option<Pending>) {
        if let Some(pending) = pending {
            pending.withdraw();
        }
    }

    /// As [`Self::in_turn`], for a caller who does not pay for the QP: what others wished for meanwhile is left to who does.
    /// `None` once destroyed. Process context.
    fn look<R>(this: &Arc<Self>, body: impl FnOnce(&mut Core) -> R) -> Option<R> {
        // As in `advance`.
        let _off = bottom_halves_off();
        let mut turn = this.turn.wait();
        let result = Option::as_mut(&mut turn).map(|core| body(core));
        drop(turn);
        if this.turn.is_wanted() {
            Self::leave(this.as_arc_borrow());
        }
        result
    }

    /// The fault ends though no thread of the process has served it: whoever pays for the QP has it go on. Process context.
    fn give_up_fault(this: &Arc<Self>, served: bool) {
        let _off = bottom_halves_off();
        this.note_fault_end(served);
        Self::leave(this.as_arc_borrow());
    }

    /// The fault was served, or can't be: the QP goes on with its next turn, to which the caller sees. Process context.
    fn note_fault_end(&self, served: bool) {
        if let Some(core) = Option::as_mut(&mut self.turn.wait()) {
            core.parked.end(served);
        }
    }
}
