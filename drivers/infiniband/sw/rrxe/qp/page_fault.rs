// SPDX-License-Identifier: GPL-2.0

//! Page faults of a parked QP, which waits for absent memory (`qp/parked.rs`).
//!
//! A work item of `rrxe_faults` queues the page fault as a job for a thread of the process whose
//! memory is absent. The items of all users run in the order of their arrival, and their CPU time
//! counts for no user. So no item runs an engine. Instead, [`Qp::defer`] has the QP run where the
//! CPU time counts for its payer (`limits/accounts.rs`). The thread of the process runs the engine
//! itself after it has served the page fault.

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
        if let Err(again) = Qp::begin_fault(&this) {
            Qp::cancel_fault(&this, again);
        }
    }
}

impl Job for Qp {
    /// Serves the page fault in a thread of the process, then runs the engine. Returns `false`,
    /// because the job is done.
    fn run(self: Arc<Self>) -> bool {
        // `with_core` also runs the engine if other callers left run requests: a QP in an error
        // state flushes during the page fault.
        let wanted = Self::with_core(&self, |core| core.parked.wanted());
        let result = match wanted.ok().flatten() {
            Some(absent) => self.device.mrs.fault_in(&absent),
            None => Ok(()),
        };
        // ERESTARTNOINTR: the thread takes a signal between two jobs. EBUSY: the process's mappings
        // changed during each walk of HMM, until a timeout of a second
        // (`hmm_range_fault_unlocked_timeout()`, mm/hmm.c). In both cases the access finds the
        // memory absent again, and the QP is parked again.
        let again = matches!(result, Ok(()) | Err(EBUSY | ERESTARTNOINTR));
        // Bottom halves are disabled, so that the thread is not preempted between the end of the
        // page fault and the run. A preempted thread would keep the QP parked, whose owner may be
        // another process.
        let _off = bottom_halves_off();
        self.end_fault(again);
        Self::advance(self.as_arc_borrow());
        false
    }

    /// Ends the page fault without serving it. Called by a thread of the process when the process
    /// ends, or by a work item. The access is tried again, because its key may belong to other
    /// memory by now. If the key still belongs to memory of a process that has ended, the next page
    /// fault cannot begin, and the access fails.
    fn cancel(self: Arc<Self>) {
        Self::cancel_fault(&self, true);
    }
}

impl Qp {
    /// Requests the page fault of a QP whose run ended because memory is absent. Any context.
    pub(super) fn request_fault(this: ArcBorrow<'_, Self>) {
        // The work item is never queued already: the QP is parked until its page fault has ended.
        let _ = this.workqueues.faults.enqueue::<_, 1>(Arc::from(this));
    }

    /// Queues the page fault as a job for a thread of the process that owns the memory. Process
    /// context.
    ///
    /// # Errors
    ///
    /// The page fault ends at once. The value is `true` if the access is to be tried again, `false`
    /// if it must fail.
    fn begin_fault(this: &Arc<Self>) -> Result<(), bool> {
        let wanted = Self::with_core_deferring(this, |core| core.parked.wanted());
        let absent = wanted.flatten().ok_or(true)?;
        let found = this.device.mrs.absent(&absent).ok_or(true)?;
        let (memory, _) = found.place().ok_or(true)?;
        let pending = memory.begin(this.clone()).map_err(|_| false)?;
        let mut pending = Some(pending);
        Self::with_core_deferring(this, |core| core.parked.set_pending(pending.take()));
        // `pending` still holds the job if the QP was destroyed meanwhile.
        Self::withdraw_fault(pending);
        Ok(())
    }

    /// Withdraws a page fault from the queue of its process. The process may not run for a long
    /// time, and the job holds a reference to the QP. Process context.
    pub(super) fn withdraw_fault(pending: Option<Pending>) {
        if let Some(pending) = pending {
            pending.withdraw();
        }
    }

    /// Calls `body` with the turn lock (`qp/turn.rs`) held, for a caller that does not pay for the
    /// QP. Returns `None` if the QP is destroyed. Process context.
    ///
    /// In contrast to [`Self::with_core`], run requests that other callers left meanwhile are
    /// deferred, so that the QP's payer pays for their runs.
    fn with_core_deferring<R>(this: &Arc<Self>, body: impl FnOnce(&mut Core) -> R) -> Option<R> {
        // Bottom halves stay off until the QP is deferred: a thread that was preempted before would
        // delay the run requests of others.
        let _off = bottom_halves_off();
        let mut turn = this.turn.wait();
        let result = Option::as_mut(&mut turn).map(|core| body(core));
        drop(turn);
        if this.turn.is_wanted() {
            Self::defer(this.as_arc_borrow());
        }
        result
    }

    /// Ends a page fault that no thread of the process has served, and defers the QP. Process
    /// context.
    fn cancel_fault(this: &Arc<Self>, again: bool) {
        let _off = bottom_halves_off();
        this.end_fault(again);
        Self::defer(this.as_arc_borrow());
    }

    /// Ends the page fault. `again` is `false` if it failed. The caller ensures that the QP runs.
    /// Process context.
    fn end_fault(&self, again: bool) {
        if let Some(core) = Option::as_mut(&mut self.turn.wait()) {
            core.parked.end(again);
        }
    }
}
