// SPDX-License-Identifier: GPL-2.0

//! The QPs that complete to a CQ, which puts them in error when it loses a completion.
//!
//! A process may have as many as QPs are allowed, so a work item visits them one by one in a thread. The context that
//! delivers the event may be softirq. The threads are those of `rrxe_deferred`, which all users share: the item visits few
//! QPs at a time, and has one of the threads that its process's accounts have there ([`crate::limits::thread_permit`]).

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
    verbs::members::Seat,
};

/// QPs that the work item visits before others have the thread.
const AT_ONCE: u32 = 256;

/// The owners in [`Cq::users`], and a QP number of each: GSI QPs have a table of their own.
const TABLES: [(u32, Qpn); 2] = [(0, Qpn::new(0)), (1, Qpn::GSI)];

/// The owner of a QP in [`Cq::users`].
fn owner(qpn: Qpn) -> u32 {
    u32::from(qpn == Qpn::GSI)
}

impl_has_work! { impl HasWork<Self, 1> for Cq { self.end } }

impl WorkItem<1> for Cq {
    type Pointer = Arc<Cq>;

    fn run(this: Arc<Cq>) {
        this.end_share.run();
        let mut more = this.condemn_some();
        while more && this.is_kernels() {
            // It counts for nobody, and its share refuses no run after its destruction.
            more = this.condemn_some();
        }
        this.end_share.end();
        if more {
            Waiter::Cq(this).begin();
        }
    }
}

impl Cq {
    /// The QP of number `qpn` in `place` of its table completes here. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn enter_user(&self, qpn: Qpn, place: u32) -> Result {
        // It may be there already: both queues of a QP may complete here.
        drop(self.users.enter(Seat::new()?, owner(qpn), place));
        Ok(())
    }

    /// That QP completes here no more. Process context.
    pub(crate) fn strike_user(&self, qpn: Qpn, place: u32) {
        drop(self.users.leave(owner(qpn), place));
    }

    /// Has the QPs that complete here put in error, in a thread. Any context up to softirq; a CQ overflows once.
    pub(super) fn request_end_of_users(this: ArcBorrow<'_, Self>) {
        Waiter::Cq(Arc::from(this)).begin();
    }

    /// Has a thread put them in error, for a CQ that was given one. Any context.
    pub(crate) fn enqueue_end(this: Arc<Self>) {
        let device = this.device.clone();
        // It isn't queued: the CQ has its thread until the item has run.
        let _ = device.workqueues.deferred.enqueue::<_, 1>(this);
    }

    /// Its share in the threads of `rrxe_deferred`.
    pub(crate) fn permit(&self) -> &ThreadPermit {
        &self.end_share
    }

    /// Puts some of them in error. Returns whether to go on. A QP that is made meanwhile looks itself whether the CQ has
    /// overflowed.
    fn condemn_some(&self) -> bool {
        // Written by the work item alone, which runs on one CPU at a time.
        let from = self.condemned.load(Relaxed);
        let table = (from >> 32) as usize;
        let Some((owner, number)) = TABLES.get(table) else {
            return false;
        };
        let qps = self.device.link.context().qps(*number);
        let next = self.users.visit(*owner, from as u32, AT_ONCE, |place| {
            qps.with(place, |qp| {
                // Another may have the number since.
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
        self.condemned.store(position, Relaxed);
        table < TABLES.len()
    }
}
