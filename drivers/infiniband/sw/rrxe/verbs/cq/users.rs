// SPDX-License-Identifier: GPL-2.0

//! The QPs that complete to a CQ. They are set to the error state when the CQ overflows.
//!
//! A process may have as many QPs as the limits allow, and the context that delivers the overflow
//! event may be softirq. So a work item visits the QPs in a thread of `rrxe_deferred`. The
//! processes of all users share these threads. Therefore the item visits a few QPs at a time, and
//! occupies one of the threads that the accounts of the CQ's process have left
//! ([`crate::limits::thread_permit`]).

use kernel::{
    impl_has_work,
    prelude::*,
    sync::{atomic::ordering::Relaxed, Arc, ArcBorrow},
    workqueue::WorkItem,
};
use rdma::support::sync::cond_resched;
use roce::ids::Qpn;

use super::Cq;
use crate::{
    limits::thread_permit::{ThreadPermit, Waiter},
    qp::Qp,
    verbs::members::MemberEntry,
};

/// Number of QPs that the work item visits before it gives the thread to other items.
const AT_ONCE: u32 = 256;

/// Tables of QPs: the table's owner number in [`Cq::users`], and a QP number that selects the
/// table. GSI QPs have a table of their own.
const TABLES: [(u32, Qpn); 2] = [(0, Qpn::new(0)), (1, Qpn::GSI)];

/// Returns the owner number of a QP's table in [`Cq::users`].
fn owner(qpn: Qpn) -> u32 {
    u32::from(qpn == Qpn::GSI)
}

impl_has_work! { impl HasWork<Self, 1> for Cq { self.end } }

impl WorkItem<1> for Cq {
    type Pointer = Arc<Cq>;

    fn run(this: Arc<Cq>) {
        this.end_permit.run();
        let mut more = this.fail_some();
        while more && this.is_kernels() {
            // A CQ of the kernel has no payer, so its permit would not refuse another run of the
            // item after the CQ's destruction. Therefore the item visits all QPs at once.
            more = this.fail_some();
        }
        this.end_permit.end();
        if more {
            Waiter::Cq(this).begin();
        }
    }
}

impl Cq {
    /// Records that the QP of number `qpn`, at this index of its table, completes to this CQ.
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add_qp(&self, qpn: Qpn, index: u32) -> Result {
        // The QP may be listed already, because both of its queues may complete to this CQ.
        drop(self.users.enter(MemberEntry::new()?, owner(qpn), index));
        Ok(())
    }

    /// Undoes [`Self::add_qp`]. Process context.
    pub(crate) fn remove_qp(&self, qpn: Qpn, index: u32) {
        drop(self.users.leave(owner(qpn), index));
    }

    /// Starts the work item that sets the QPs of this CQ to the error state. Called once, because a
    /// CQ overflows once. Any context up to softirq.
    pub(super) fn request_end_of_users(this: ArcBorrow<'_, Self>) {
        Waiter::Cq(Arc::from(this)).begin();
    }

    /// Queues the work item, for a CQ that was given a thread. Any context.
    pub(crate) fn enqueue_end(this: Arc<Self>) {
        let device = this.device.clone();
        // The item is not queued yet: the CQ has its thread until the item has run.
        let _ = device.workqueues.deferred.enqueue::<_, 1>(this);
    }

    /// Returns the permit for threads of `rrxe_deferred`.
    pub(crate) fn permit(&self) -> &ThreadPermit {
        &self.end_permit
    }

    /// Sets up to [`AT_ONCE`] of the QPs to the error state. Returns whether there are more. A QP
    /// that is created meanwhile does its own check whether the CQ has overflowed.
    fn fail_some(&self) -> bool {
        // Written only by the work item, which runs on one CPU at a time.
        let from = self.end_position.load(Relaxed);
        let table = (from >> 32) as usize;
        let Some((owner, number)) = TABLES.get(table) else {
            return false;
        };
        let qps = self.device.link.context().qps(*number);
        let next = self.users.visit(*owner, from as u32, AT_ONCE, |index| {
            qps.with(index, |qp| {
                // Another QP may have got this index meanwhile.
                if qp.completes_to(self) {
                    Qp::set_error(qp);
                }
            });
            cond_resched();
        });
        let (table, next) = match next {
            Some(next) => (table, next),
            None => (table.wrapping_add(1), 0),
        };
        let position = (table as u64) << 32 | u64::from(next);
        self.end_position.store(position, Relaxed);
        table < TABLES.len()
    }
}
