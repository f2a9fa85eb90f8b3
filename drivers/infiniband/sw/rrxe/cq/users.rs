// SPDX-License-Identifier: GPL-2.0

//! The QPs that complete to a CQ, which puts them in error when it loses a completion.
//!
//! A process may have as many as QPs are allowed, so a work item visits them one by one in a thread. The context that
//! delivers the event may be softirq.

use kernel::{
    impl_has_work,
    prelude::*,
    sync::{Arc, ArcBorrow},
    workqueue::WorkItem,
};
use rdma::sync::cond_resched;
use roce::ids::Qpn;

use super::Cq;
use crate::{members::Seat, qp::Qp};

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
        this.condemn_users();
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

    /// Has the QPs that complete here put in error, in a thread. Any context.
    pub(super) fn request_end_of_users(this: ArcBorrow<'_, Self>) {
        // A CQ overflows once, so the item is not in the queue yet.
        let _ = this.device.workers.rests.enqueue::<_, 1>(Arc::from(this));
    }

    /// Puts them in error. A QP that is made meanwhile looks itself whether the CQ has overflowed.
    fn condemn_users(&self) {
        for (owner, table) in TABLES {
            let qps = self.device.link.context().qps(table);
            let mut next = 0;
            while let Some(place) = self.users.next(owner, next) {
                qps.with(place, |qp| {
                    // Another may have the number since.
                    if qp.completes_to(self) {
                        Qp::condemn(qp);
                    }
                });
                next = place.saturating_add(1);
                cond_resched();
            }
        }
    }
}
