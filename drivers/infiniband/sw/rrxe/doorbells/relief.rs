// SPDX-License-Identifier: GPL-2.0

//! The relief of a watcher that gets no CPU while doorbells ring.
//!
//! The process calls from then on, and a thread of `rrxe_rest` serves the doorbells rung so far. The timer does not serve
//! them: a softirq would do so in nobody's time. The pollers do not: the page would wait behind all pages that others
//! have watched, of which there may be any number, and pay its debt first. A user has few threads of `rrxe_rest`
//! ([`ThreadShare`]).

use kernel::{
    sync::{atomic::ordering::Relaxed, Arc, ArcBorrow},
    time::hrtimer::{HrTimerCallback, HrTimerCallbackContext, HrTimerRestart},
    workqueue::WorkItem,
};

use super::{Doorbells, Phase};
use crate::{
    accounts::Threads,
    thread_share::{ThreadShare, Waiter},
};

impl HrTimerCallback for Doorbells {
    type Pointer<'a> = Arc<Doorbells>;

    fn run(
        this: ArcBorrow<'_, Doorbells>,
        mut timer: HrTimerCallbackContext<'_, Doorbells>,
    ) -> HrTimerRestart {
        let guard = this.workers.guard;
        if !Arc::from(this).guard() {
            return HrTimerRestart::NoRestart;
        }
        timer.forward_now(guard);
        HrTimerRestart::Restart
    }
}

impl WorkItem<1> for Doorbells {
    type Pointer = Arc<Doorbells>;

    fn run(this: Arc<Doorbells>) {
        this.rest_share.run();
        let more = this.serve_last(&mut this.share.begin(this.now()));
        this.rest_share.end();
        if more || this.rest_share.is_needed_again() {
            this.leave_last();
        }
    }
}

impl Doorbells {
    /// Looks whether the watcher runs. Returns whether to look again. Softirq.
    fn guard(self: &Arc<Self>) -> bool {
        let passes = self.passes.load(Relaxed);
        {
            let mut watch = self.watch.lock();
            match watch.phase {
                Phase::Unwatched | Phase::Closed => return false,
                Phase::Starting => return true,
                Phase::Watched => {}
            }
            if watch.seen != passes {
                watch.seen = passes;
                return true;
            }
        }
        if !self.page.is_rung() {
            return true;
        }
        if self.end_watch(|interest| interest.disappointed(self.now())) {
            self.leave_last();
        }
        false
    }

    /// Has a thread serve the last doorbells, once the page's payer has one for it. Any context up to softirq.
    fn leave_last(self: &Arc<Self>) {
        Waiter::Page(self.clone()).begin(Threads::Rests);
    }

    /// Has a thread serve the last doorbells of a page that was given one. Any context.
    pub(crate) fn enqueue_last(this: Arc<Self>) {
        let workers = this.workers.clone();
        // It isn't queued: the page has its thread until the item has run.
        let _ = workers.rests.enqueue::<_, 1>(this);
    }

    /// Its share in the threads of `rrxe_rest`.
    pub(crate) fn share(&self) -> &ThreadShare {
        &self.rest_share
    }
}
