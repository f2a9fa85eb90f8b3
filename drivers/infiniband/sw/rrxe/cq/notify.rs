// SPDX-License-Identifier: GPL-2.0

//! When the consumer of a CQ is notified.

use core::mem::take;

use kernel::{
    impl_has_hr_timer,
    sync::{Arc, ArcBorrow},
    time::{
        hrtimer::{
            HrTimerCallback, HrTimerCallbackContext, HrTimerPointer, HrTimerRestart,
            RelativeSoftMode,
        },
        Delta, Instant, Monotonic,
    },
};
use rdma::{
    cq::{Moderation, NotifyWhen},
    ring::Ring,
};

use super::{Cq, State};

/// How far apart consumers that only listen are woken, in nanoseconds: as network cards pace their
/// interrupts.
const PACE: i64 = 100_000;

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Cq {
        mode: RelativeSoftMode<Monotonic>, field: self.timer
    }
}

impl HrTimerCallback for Cq {
    type Pointer<'a> = Arc<Cq>;

    fn run(this: ArcBorrow<'_, Cq>, _: HrTimerCallbackContext<'_, Cq>) -> HrTimerRestart {
        let due = this.state.lock().take_due();
        this.deliver(due);
        HrTimerRestart::NoRestart
    }
}

/// What is to be told to the consumer.
struct Due {
    completion: bool,
    overflow: bool,
}

impl State {
    /// Nanoseconds until a notification that is due may be delivered; `None` for at once.
    fn time_to_wait(&self, paced: bool) -> Option<i64> {
        if self.urgent || self.overflow_due {
            return None;
        }
        let (interval, since) = match self.moderation {
            Some(moderation) => {
                if self.gathered >= moderation.count {
                    return None;
                }
                let micros = i64::from(moderation.period);
                (micros.saturating_mul(1000), self.since?)
            }
            None if paced => (PACE, self.notified?),
            None => return None,
        };
        let passed = since.elapsed().as_nanos();
        interval.checked_sub(passed).filter(|wait| *wait > 0)
    }

    /// Counts a completion of a CQ that is moderated. Returns whether a notification that was held back
    /// may go now.
    pub(super) fn gather(&mut self, moderation: Moderation) -> bool {
        if self.gathered == 0 {
            self.since = Some(Instant::now());
        }
        self.gathered = self.gathered.saturating_add(1);
        self.completion_due && self.gathered >= moderation.count
    }

    /// Takes what is due.
    fn take_due(&mut self) -> Due {
        if self.completion_due {
            self.notified = Some(Instant::now());
            self.gathered = 0;
        }
        Due {
            completion: take(&mut self.completion_due),
            overflow: take(&mut self.overflow_due),
        }
    }

    /// What brings about the next notification. Behind the completion that was pushed, if the process
    /// arms the ring itself: it arms, then looks for completions.
    pub(super) fn armed(&self) -> Option<NotifyWhen> {
        let ring = self.ring.as_ref().filter(|_| self.has_arm);
        self.armed.max(ring.and_then(Ring::arm_behind_push))
    }

    /// A notification is due: the next one has to be asked for.
    pub(super) fn disarm(&mut self) {
        self.armed = None;
        if let Some(ring) = self.ring.as_ref().filter(|_| self.has_arm) {
            ring.set_arm(None);
        }
    }
}

impl Cq {
    /// Delivers what pushes made due, or lets the timer do so if the consumer wants it moderated. Any
    /// context, outside all locks.
    pub(crate) fn notify(this: &Arc<Self>) {
        Self::notify_in_time(this, false);
    }

    /// As [`Self::notify`], for a consumer that only listens: unless the completion is urgent, not
    /// sooner than [`PACE`] after the last time. It takes what came meanwhile along, instead of being
    /// woken for every message of a stream.
    ///
    /// The kernel's consumers pace themselves.
    pub(crate) fn notify_paced(this: &Arc<Self>) {
        Self::notify_in_time(this, !this.is_kernels());
    }

    fn notify_in_time(this: &Arc<Self>, paced: bool) {
        let (wait, pacer) = {
            let mut state = this.state.lock();
            if !(state.completion_due || state.overflow_due) {
                return;
            }
            match state.time_to_wait(paced) {
                Some(wait) => (wait, state.pacer.take()),
                None => {
                    let due = state.take_due();
                    // It would tell too early of what comes next.
                    let pacer = state.moderation.and_then(|_| state.pacer.take());
                    drop(state);
                    drop(pacer);
                    return this.deliver(due);
                }
            }
        };
        // Before the timer is started again, for this cancels it.
        drop(pacer);
        let pacer = this.clone().start(Delta::from_nanos(wait));
        let kept = this.state.lock().pacer.put(pacer);
        match kept {
            Ok(None) => {}
            Ok(other) => {
                // Another CPU started the timer at the same time. This cancels the timer of both.
                drop(other);
                let due = this.state.lock().take_due();
                this.deliver(due);
            }
            // The CQ was destroyed meanwhile.
            Err(late) => drop(late),
        }
    }

    /// Outside all locks.
    fn deliver(&self, due: Due) {
        if due.completion {
            self.upcall.complete();
        }
        if due.overflow {
            self.upcall.overflowed();
            self.device.link.context().condemn_users(self);
        }
    }

    /// Moderates notifications from now on: an error is told of at once, other completions when there are
    /// `count` or `period` has passed since the first. Neither may be zero: then each is told of at once.
    /// Process context.
    pub(crate) fn moderate(this: &Arc<Self>, moderation: Moderation) {
        let each = moderation.count == 0 || moderation.period == 0;
        {
            let mut state = this.state.lock();
            state.moderation = Some(match each {
                true => Moderation {
                    count: 0,
                    period: 0,
                },
                false => moderation,
            });
            state.gathered = 0;
        }
        // What was held back by other measure.
        Self::notify(this);
    }

    /// Asks for one notification. Returns whether there are completions that nobody has fetched.
    /// Any context.
    ///
    /// Asking for any completion overrides having asked for solicited ones only, not the other way
    /// round.
    pub(crate) fn req_notify(&self, when: NotifyWhen) -> bool {
        let mut state = self.state.lock();
        state.armed = state.armed.max(Some(when));
        let ring = state.ring.as_ref();
        ring.is_some_and(|ring| ring.distance(ring.consumer(), state.pushed as u32) != 0)
    }
}
