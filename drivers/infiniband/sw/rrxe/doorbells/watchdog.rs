// SPDX-License-Identifier: GPL-2.0

//! The watchdog of a doorbell page: an hrtimer that ends polling if the page's poller gets no CPU
//! while doorbells ring.
//!
//! The process makes the doorbell call from then on, and a thread of `rrxe_deferred` serves the
//! doorbells rung so far. The timer does not serve them: in softirq the work would be accounted to
//! no process. The pollers do not serve them either: the page would have to wait behind all polled
//! pages of other processes, of which there may be any number, and it would first have to skip
//! slices for its deficit (`fairness.rs`). A user occupies few threads of `rrxe_deferred` at a time
//! ([`ThreadPermit`]).
//!
//! The timers' own CPU time is accounted to no process. So while no doorbell of a page rings and
//! its poller does not read the page, the period of its watchdog grows with the time for which
//! nothing was posted. A doorbell that rings then may wait for a poller without CPU time until the
//! period ends: for [`MAX_PERIOD`] at most, unless the shortest period is longer.

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

/// Longest period of a watchdog, in nanoseconds, unless
/// [`Workqueues::watchdog_period`](crate::device::workqueues::Workqueues::watchdog_period) is
/// longer.
const MAX_PERIOD: i64 = 20_000_000;

/// Returns the period after which the watchdog looks again at a page where no doorbell rings and
/// nothing was posted for `idle` nanoseconds. The period equals `idle` within the limits `least`
/// and [`MAX_PERIOD`], so the idle time doubles between two looks.
fn period(least: Delta, idle: i64) -> Delta {
    Delta::from_nanos(idle.min(MAX_PERIOD).max(least.as_nanos()))
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
        let more = this.serve_last(&mut this.deficit.begin(this.now()));
        this.deferred_permit.end();
        if more || this.deferred_permit.is_needed_again() {
            this.defer_last();
        }
    }
}

impl Doorbells {
    /// Checks whether the poller makes passes (reads the page), and ends polling if it makes none
    /// while doorbells ring. Returns the time until the next check, or `None` once polling has
    /// ended. Softirq.
    fn watchdog(self: &Arc<Self>) -> Option<Delta> {
        let soon = self.workqueues.watchdog_period;
        let passes = self.passes.load(Relaxed);
        let period = || {
            let idle = self.now().saturating_sub(self.active.load(Relaxed));
            Some(period(soon, idle))
        };
        {
            let mut polling = self.polling.lock();
            match polling.phase {
                Phase::Idle | Phase::Closed => return None,
                // The thread that is about to start polling may get no CPU meanwhile.
                Phase::Starting => return period(),
                Phase::Polled => {}
            }
            if polling.seen_passes != passes {
                polling.seen_passes = passes;
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

    /// Has a thread of `rrxe_deferred` serve the last doorbells, once the accounts of the page's
    /// payer have a free thread. Any context up to softirq.
    fn defer_last(self: &Arc<Self>) {
        Waiter::Page(self.clone()).begin();
    }

    /// Queues the item that serves the last doorbells of a page that has got its thread permit. Any
    /// context.
    pub(crate) fn enqueue_last(this: Arc<Self>) {
        let workqueues = this.workqueues.clone();
        // The item isn't queued yet: the page holds its thread permit until the item has run.
        let _ = workqueues.deferred.enqueue::<_, 1>(this);
    }

    /// Returns the page's permission to occupy one thread of `rrxe_deferred`.
    pub(crate) fn permit(&self) -> &ThreadPermit {
        &self.deferred_permit
    }
}

#[kunit_tests(rrxe_watchdog)]
mod tests {
    use super::*;

    #[test]
    fn the_period_grows_while_no_doorbell_rings() {
        let least = Delta::from_micros(200);
        assert_eq!(period(least, 0), least);
        // Counts the checks during the first second.
        let (mut idle, mut looks) = (least.as_nanos(), 0);
        while idle < 1_000_000_000 {
            let next = period(least, idle);
            assert!(next >= least && next.as_nanos() <= idle.min(MAX_PERIOD).max(least.as_nanos()));
            idle += next.as_nanos();
            looks += 1;
        }
        assert!(looks < 60);
        assert_eq!(period(Delta::from_secs(1), 5), Delta::from_secs(1));
    }
}
