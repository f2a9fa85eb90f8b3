// SPDX-License-Identifier: GPL-2.0

//! Where and when the engine of a QP runs: in softirq, in a thread, or by the poller of its doorbells.

use kernel::{
    cpu::CpuId,
    sync::{atomic::ordering, Arc, ArcBorrow},
    time::hrtimer::{HrTimerCallback, HrTimerCallbackContext, HrTimerRestart},
    workqueue::WorkItem,
};
use rdma::net::tx_limit::Wake;
use roce::ids::Qpn;

use crate::{doorbells::Doorbell, limits::thread_permit::Waiter, net::netns::NetContext, qp::Qp};

impl WorkItem for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        Qp::advance_in_softirq(this.as_arc_borrow());
    }
}

impl WorkItem<3> for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        Qp::advance_in_softirq(this.as_arc_borrow());
    }
}

impl WorkItem<2> for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        this.deferred_permit.run();
        Qp::advance(this.as_arc_borrow());
        this.deferred_permit.end();
        if this.deferred_permit.is_needed_again() {
            Qp::defer_to_thread(this);
        }
    }
}

impl HrTimerCallback for Qp {
    type Pointer<'a> = Arc<Qp>;

    fn run(this: ArcBorrow<'_, Qp>, _: HrTimerCallbackContext<'_, Qp>) -> HrTimerRestart {
        // Not here: the holder of the turn cancels the timer, and would wait for this very
        // function.
        Qp::leave(this);
        HrTimerRestart::NoRestart
    }
}

/// Wakes a QP that waited for its packets to leave. It names the QP only, for packets may outlive
/// it.
pub(crate) struct Waker {
    pub(super) net: Arc<NetContext>,
    pub(super) qpn: Qpn,
    pub(super) place: u32,
}

impl Wake for Waker {
    fn wake(&self) {
        self.net.qps(self.qpn).with(self.place, Qp::schedule);
    }
}

impl Qp {
    /// Leaves the work of a process's QP to the watcher of its doorbells, so that it counts for
    /// that process, or to a thread, so that others have their share of the CPU. Any context up to softirq.
    pub(super) fn leave(this: ArcBorrow<'_, Self>) {
        if this.kernel_queue.is_some() {
            Self::schedule(this);
        } else if !this.is_deferred_to_poller() {
            Self::defer_to_thread(Arc::from(this));
        }
    }

    /// Has a thread run the engine, once the QP's payer has one for it. Any context up to softirq.
    pub(super) fn defer_to_thread(this: Arc<Self>) {
        Waiter::Qp(this).begin();
    }

    /// Has a thread run the engine of a QP that was given one. Any context.
    pub(crate) fn enqueue_deferred(this: Arc<Self>) {
        let workqueues = this.workqueues.clone();
        // It isn't queued: the QP has its thread until the item has run.
        let _ = workqueues.deferred.enqueue::<_, 2>(this);
    }

    /// Leaves the rest of the work to the watcher of the process's doorbells, if there is one. Any
    /// context.
    fn is_deferred_to_poller(&self) -> bool {
        self.doorbell.as_ref().is_some_and(Doorbell::leave)
    }

    /// Lets the work queue run the engine. Any context.
    pub(crate) fn schedule(this: ArcBorrow<'_, Self>) {
        // Already queued is as good: it has not run yet.
        let _ = this.workqueues.softirq.enqueue::<_, 0>(Arc::from(this));
    }

    /// Lets the work queue run the engine on `cpu`. Any context with interrupts enabled.
    ///
    /// An item that is queued while it runs runs again on the CPU that it runs on (`__queue_work()`,
    /// kernel/workqueue.c), and would ask for `cpu` again, for as long as packets of the QP are in flight. So two items
    /// take turns: at most one of them is the item that runs.
    pub(super) fn schedule_on(this: ArcBorrow<'_, Self>, cpu: CpuId) {
        let turns = &this.workqueues.softirq;
        // Queued elsewhere it will come here again, or needn't.
        if this.hops.fetch_add(1, ordering::Relaxed) % 2 == 0 {
            let _ = turns.enqueue_on::<_, 3>(cpu, Arc::from(this));
        } else {
            let _ = turns.enqueue_on::<_, 0>(cpu, Arc::from(this));
        }
    }
}
