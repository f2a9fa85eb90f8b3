// SPDX-License-Identifier: GPL-2.0

//! Schedules runs of a QP's engine: in softirq, in a thread of `rrxe_deferred`, or by the poller of
//! its doorbell page.

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
        // The timer's function does not run the engine. The holder of the turn lock (`qp/turn.rs`)
        // cancels the timer and waits for this function, so this function must not take the lock.
        Qp::defer(this);
        HrTimerRestart::NoRestart
    }
}

/// Wakes a QP that waited because its tx limit (the bound on its packets in flight) was exhausted.
///
/// It holds the QP's number and no reference, because packets may outlive the QP.
pub(crate) struct Waker {
    pub(super) net: Arc<NetContext>,
    pub(super) qpn: Qpn,
    pub(super) index: u32,
}

impl Wake for Waker {
    fn wake(&self) {
        self.net.qps(self.qpn).with(self.index, Qp::schedule);
    }
}

impl Qp {
    /// Defers further work of a QP. Any context up to softirq.
    ///
    /// A process's QP is deferred to the poller of its doorbell page, so that the CPU time counts
    /// for that process, or to a thread, so that other threads get their share of the CPU. The QP
    /// of a kernel consumer runs in softirq.
    pub(super) fn defer(this: ArcBorrow<'_, Self>) {
        if this.kernel_queue.is_some() {
            Self::schedule(this);
        } else if !this.defer_to_poller() {
            Self::defer_to_thread(Arc::from(this));
        }
    }

    /// Has a thread run the engine, once the limits on the threads of the QP's payer allow one
    /// (`limits/thread_permit.rs`). Any context up to softirq.
    pub(super) fn defer_to_thread(this: Arc<Self>) {
        Waiter::Qp(this).begin();
    }

    /// Queues the work item of a QP that has the permission to occupy a thread. Any context.
    pub(crate) fn enqueue_deferred(this: Arc<Self>) {
        let workqueues = this.workqueues.clone();
        // The work item is never queued already: the QP keeps its permission until the item has
        // run.
        let _ = workqueues.deferred.enqueue::<_, 2>(this);
    }

    /// Defers further work to the poller of the process's doorbell page. Returns `false` if no
    /// poller polls the page. Any context.
    fn defer_to_poller(&self) -> bool {
        self.doorbell.as_ref().is_some_and(Doorbell::defer)
    }

    /// Queues a run of the engine in softirq, on this CPU. Any context.
    pub(crate) fn schedule(this: ArcBorrow<'_, Self>) {
        // An item that is queued already has not run yet, so it sees all work.
        let _ = this.workqueues.softirq.enqueue::<_, 0>(Arc::from(this));
    }

    /// Queues a run of the engine in softirq on `cpu`. Any context with interrupts enabled.
    ///
    /// A work item that is queued while it runs is executed again on the CPU that it runs on
    /// (`__queue_work()`, kernel/workqueue.c). There it would ask for `cpu` again, for as long as
    /// packets of the QP are in flight. So this uses two items alternately: at most one of them is
    /// the item that runs now.
    pub(super) fn schedule_on(this: ArcBorrow<'_, Self>, cpu: CpuId) {
        let queue = &this.workqueues.softirq;
        // If the item is queued on another CPU already, that run calls this again or no longer
        // needs to.
        if this.hops.fetch_add(1, ordering::Relaxed) % 2 == 0 {
            let _ = queue.enqueue_on::<_, 3>(cpu, Arc::from(this));
        } else {
            let _ = queue.enqueue_on::<_, 0>(cpu, Arc::from(this));
        }
    }
}
