// SPDX-License-Identifier: GPL-2.0

//! The relief of a watcher that gets no CPU while doorbells ring.
//!
//! The process calls from then on, and a thread of `rrxe_deferred` serves the doorbells rung so far. The timer does not serve
//! them: a softirq would do so in nobody's time. The pollers do not: the page would wait behind all pages that others
//! have watched, of which there may be any number, and pay its debt first. A user has few threads of `rrxe_deferred`
//! ([`ThreadPermit`]).
//!
//! The timers of pages count for nobody, so the guard looks ever more rarely at a page that does not ring and has no
//! watcher yet: when it rings, the guard sees that after at most as long as nothing was posted before, and
//! [`LONGEST`].

use kernel::{
    prelude::*,
    sync::{atomic::ordering::Relaxed, Arc, ArcBorrow},
    time::{
        hrtimer::{HrTimerCallback, HrTimerCallbackContext, HrTimerRestart},
        Delta,
    },
    workqueue::WorkItem,
};

use super::{Doorbells, Phase};
use crate::limits::thread_permit::{ThreadPermit, Waiter};

/// The longest period of a guard, in nanoseconds, unless [`Workqueues::watchdog`](crate::device::workqueues::Workqueues::guard) is longer.
const LONGEST: i64 = 20_000_000;

/// How long the guard waits before it looks again at a page that does not ring, where nothing was posted for `idle`
/// nanoseconds: so it looks at twice the time each time.
fn period(least: Delta, idle: i64) -> Delta {
    Delta::from_nanos(idle.min(LONGEST).max(least.as_nanos()))
}

impl HrTimerCallback for Doorbells {
    type Pointer<'a> = Arc<Doorbells>;

    fn run(
        this: ArcBorrow<'_, Doorbells>,
        mut timer: HrTimerCallbackContext<'_, Doorbells>,
    ) -> HrTimerRestart {
        let Some(period) = Arc::from(this).watchdog() else {
            return HrTimerRestart::NoRestart;
        };
        timer.forward_now(period);
        HrTimerRestart::Restart
    }
}

impl WorkItem<1> for Doorbells {
    type Pointer = Arc<Doorbells>;

    fn run(this: Arc<Doorbells>) {
        this.deferred_permit.run();
        let more = this.serve_last(&mut this.permit.begin(this.now()));
        this.deferred_permit.end();
        if more || this.deferred_permit.is_needed_again() {
            this.defer_last();
        }
    }
}

impl Doorbells {
    /// Looks whether the watcher runs. Returns after how long to look again, if at all. Softirq.
    fn watchdog(self: &Arc<Self>) -> Option<Delta> {
        let soon = self.workqueues.watchdog;
        let passes = self.passes.load(Relaxed);
        let period = || {
            let idle = self.now().saturating_sub(self.active.load(Relaxed));
            Some(period(soon, idle))
        };
        {
            let mut polling = self.polling.lock();
            match polling.phase {
                Phase::Unwatched | Phase::Closed => return None,
                // The thread that starts the watch may get no CPU meanwhile.
                Phase::Starting => return period(),
                Phase::Polled => {}
            }
            if polling.seen != passes {
                polling.seen = passes;
                return Some(soon);
            }
        }
        if !self.page.is_rung() {
            return period();
        }
        if self.end_polling(|policy| policy.back_off(self.now())) {
            self.defer_last();
        }
        None
    }

    /// Has a thread serve the last doorbells, once the page's payer has one for it. Any context up to softirq.
    fn defer_last(self: &Arc<Self>) {
        Waiter::Page(self.clone()).begin();
    }

    /// Has a thread serve the last doorbells of a page that was given one. Any context.
    pub(crate) fn enqueue_last(this: Arc<Self>) {
        let workqueues = this.workqueues.clone();
        // It isn't queued: the page has its thread until the item has run.
        let _ = workqueues.deferred.enqueue::<_, 1>(this);
    }

    /// Its share in the threads of `rrxe_deferred`.
    pub(crate) fn permit(&self) -> &ThreadPermit {
        &self.deferred_permit
    }
}

#[kunit_tests(rrxe_relief)]
mod tests {
    use super::*;

    #[test]
    fn looks_ever_more_rarely_at_a_page_that_does_not_ring() {
        let least = Delta::from_micros(200);
        assert_eq!(period(least, 0), least);
        // So often in the first second.
        let (mut idle, mut looks) = (least.as_nanos(), 0);
        while idle < 1_000_000_000 {
            let next = period(least, idle);
            assert!(next >= least && next.as_nanos() <= idle.min(LONGEST).max(least.as_nanos()));
            idle += next.as_nanos();
            looks += 1;
        }
        assert!(looks < 60);
        assert_eq!(period(Delta::from_secs(1), 5), Delta::from_secs(1));
    }
}
