// SPDX-License-Identifier: GPL-2.0

//! When the consumer of a CQ is notified.
//!
//! A completion that finds the CQ armed notifies. So does arming, soon, of a CQ with completions that the
//! consumer has not polled and that the last notification did not tell of: programs count on it that sleep once
//! the CQ is armed. A program that arms and then polls has polled them by the time that [`Cq::look`] runs, and is
//! not woken for them. `Documentation/uabi.rst` has the argument why none is missed.

use core::mem::take;

use kernel::{
    impl_has_hr_timer, impl_has_work,
    prelude::*,
    sync::{Arc, ArcBorrow},
    time::{
        hrtimer::{
            ArcHrTimerHandle, HrTimerCallback, HrTimerCallbackContext, HrTimerPointer,
            HrTimerRestart, RelativeSoftMode,
        },
        Delta, Instant, Monotonic,
    },
    workqueue::WorkItem,
};
use rdma::{
    abi::ring::Ring,
    verbs::cq::{CqEvents, Moderation, News, NotifyWhen},
};

use super::{Cq, State};
use crate::limits::accounts::PayerClaim;

/// How far apart consumers that only listen are woken, in nanoseconds: as network cards pace their
/// interrupts.
const PACE: i64 = 100_000;

/// How long a process that has armed a CQ may take to poll it, in nanoseconds, before it is notified of what is there.
const GRACE: i64 = 20_000;

/// Notifications of a CQ that a process may leave unread, if its accounts have room; else one. It is told no more until
/// it has read all of them: each tells it of all completions so far.
const MAX_EVENTS: u32 = 16;

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Cq {
        mode: RelativeSoftMode<Monotonic>, field: self.timer
    }
}

impl HrTimerCallback for Cq {
    type Pointer<'a> = Arc<Cq>;

    fn run(this: ArcBorrow<'_, Cq>, _: HrTimerCallbackContext<'_, Cq>) -> HrTimerRestart {
        Self::look(this);
        HrTimerRestart::NoRestart
    }
}

impl_has_work! { impl HasWork<Self> for Cq { self.work } }

impl WorkItem for Cq {
    type Pointer = Arc<Cq>;

    fn run(this: Arc<Cq>) {
        Self::look(this.as_arc_borrow());
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

    /// A completion was pushed. Returns whether [`Cq::notify`] is to be called.
    ///
    /// A notification that is due tells of it, too, and at once if one of its completions is urgent.
    pub(super) fn announce(&mut self, urgent: bool) -> bool {
        let full = match self.moderation {
            Some(moderation) => self.gather(moderation),
            None => false,
        };
        let wanted = match self.armed() {
            Some(NotifyWhen::Next) => true,
            Some(NotifyWhen::Solicited) => urgent,
            None => false,
        };
        if wanted {
            self.disarm();
            self.completion_due = true;
        }
        let hastens = urgent && self.completion_due;
        self.urgent |= hastens;
        wanted || hastens || full
    }

    /// Counts a completion of a CQ that is moderated. Returns whether a notification that was held back
    /// may go now.
    fn gather(&mut self, moderation: Moderation) -> bool {
        if self.gathered == 0 {
            self.since = Some(Instant::now());
        }
        self.gathered = self.gathered.saturating_add(1);
        self.completion_due && self.gathered >= moderation.count
    }

    /// Takes what is due. `has_unread` tells whether the process has a notification to read still; `claim` takes the
    /// right to more than one such notification.
    fn take_due(
        &mut self,
        has_unread: impl FnOnce() -> bool,
        claim: impl FnOnce() -> Option<PayerClaim>,
    ) -> Due {
        self.urgent = false;
        let mut completion = take(&mut self.completion_due);
        if completion {
            self.notified = Some(Instant::now());
            self.gathered = 0;
            self.told = self.pushed;
            self.clear_news();
            completion = self.adds_event(has_unread(), claim);
        }
        Due {
            completion,
            overflow: take(&mut self.overflow_due),
        }
    }

    /// Counts one more notification. Returns whether the process is told: one that has not read many
    /// finds the completions when it reads the next of those.
    fn adds_event(&mut self, has_unread: bool, claim: impl FnOnce() -> Option<PayerClaim>) -> bool {
        if !has_unread {
            self.events = 0;
            self.many_events = None;
        } else if self.many_events.is_none() {
            self.many_events = claim();
        }
        let most = match self.many_events {
            Some(_) => MAX_EVENTS,
            None => 1,
        };
        let adds = self.events < most;
        if adds {
            self.events = self.events.saturating_add(1);
        }
        adds
    }

    fn clear_news(&mut self) {
        if self.news == News::None {
            return;
        }
        self.news = News::None;
        if let Some(ring) = &self.ring {
            ring.set_news(News::None);
        }
    }

    /// How many completions the consumer has not polled, as it claims.
    fn unpolled(&self) -> u32 {
        let distance = |ring: &Ring| ring.distance(ring.consumer(), self.pushed as u32);
        self.ring.as_ref().map_or(0, distance)
    }

    /// There are completions of this kind that the consumer has not polled and no notification has told of.
    fn has_untold(&self, kind: NotifyWhen) -> bool {
        let polled = self.pushed.saturating_sub(self.unpolled().into());
        let known = self.told.max(polled);
        match kind {
            NotifyWhen::Next => self.pushed > known,
            NotifyWhen::Solicited => self.urgent_end > known,
        }
    }

    /// A consumer that is armed is to be notified of completions that are there already.
    fn owes_notification(&self) -> bool {
        self.armed().is_some_and(|kind| self.has_untold(kind))
    }

    /// Takes the handle of the timer, which the caller drops outside the lock.
    fn take_pacer(&mut self) -> Option<ArcHrTimerHandle<Cq>> {
        self.looks = false;
        self.pacer.take()
    }

    /// What brings about the next notification. Behind the completion that was pushed, if the process
    /// arms the ring itself: it arms, then looks for completions.
    pub(super) fn armed(&self) -> Option<NotifyWhen> {
        let ring = self.ring.as_ref().filter(|_| self.arming.by_word);
        self.armed.max(ring.and_then(Ring::arm_behind_push))
    }

    /// A notification is due: the next one has to be asked for.
    pub(super) fn disarm(&mut self) {
        self.armed = None;
        if let Some(ring) = self.ring.as_ref().filter(|_| self.arming.by_word) {
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
                Some(wait) => (wait, state.take_pacer()),
                None => {
                    let due = state.take_due(|| this.has_unread_event(), || this.claim_events());
                    // It would tell too early of what comes next.
                    let pacer = state.moderation.and_then(|_| state.take_pacer());
                    let held = pacer.is_some();
                    drop(state);
                    drop(pacer);
                    Self::deliver(this.as_arc_borrow(), due);
                    if held {
                        // All handles are of one timer: if another CPU has started it since, it was cancelled.
                        Self::look(this.as_arc_borrow());
                    }
                    return;
                }
            }
        };
        Self::start_timer(this, wait, pacer);
    }

    /// Starts the timer, to run in `wait` nanoseconds, in place of that of `before`. Any context, outside all locks.
    fn start_timer(this: &Arc<Self>, wait: i64, before: Option<ArcHrTimerHandle<Cq>>) {
        // Before the timer is started again, for this cancels it.
        drop(before);
        let pacer = this.clone().start(Delta::from_nanos(wait));
        let kept = this.state.lock().pacer.put(pacer);
        match kept {
            Ok(None) => {}
            Ok(other) => {
                // Another CPU started the timer at the same time. This cancels the timer of both.
                drop(other);
                Self::look(this.as_arc_borrow());
            }
            // The CQ was destroyed meanwhile.
            Err(late) => drop(late),
        }
    }

    /// Delivers what is due, and notifies a consumer that was armed of what it has not polled since. Any context,
    /// outside all locks.
    fn look(this: ArcBorrow<'_, Self>) {
        let due = {
            let mut state = this.state.lock();
            state.looks = false;
            if state.owes_notification() {
                state.disarm();
                state.completion_due = true;
            }
            state.take_due(|| this.has_unread_event(), || this.claim_events())
        };
        Self::deliver(this, due);
    }

    /// The process has not read all notifications.
    fn has_unread_event(&self) -> bool {
        self.events.as_ref().is_some_and(CqEvents::is_unread)
    }

    /// The right to more than one unread notification, if the accounts of the CQ's process have it left. Any context.
    fn claim_events(&self) -> Option<PayerClaim> {
        self.permit().payer()?.claim_events().ok()
    }

    /// Outside all locks.
    fn deliver(this: ArcBorrow<'_, Self>, due: Due) {
        if due.completion {
            this.upcall.complete();
        }
        if due.overflow {
            let claim = || this.permit().payer()?.claim_async_events().ok();
            this.upcall.overflowed(claim);
            Self::request_end_of_users(this);
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

    /// Asks for one notification. Returns whether there are completions that nobody has fetched; a caller that
    /// `asks` for this polls them. For others this notifies soon of those that no notification has told of.
    /// Any context.
    ///
    /// Asking for any completion overrides having asked for solicited ones only, not the other way
    /// round.
    pub(crate) fn req_notify(this: &Arc<Self>, when: NotifyWhen, asks: bool) -> bool {
        let (unpolled, wait, pacer) = {
            let mut state = this.state.lock();
            state.armed = state.armed.max(Some(when));
            let unpolled = state.unpolled() != 0;
            // A notification that is due tells of all that is there.
            if asks || state.completion_due || state.looks || !state.owes_notification() {
                return unpolled;
            }
            state.urgent |= state.has_untold(NotifyWhen::Solicited);
            let wait = state.time_to_wait(false).unwrap_or(0).max(GRACE);
            let pacer = match this.is_kernels() {
                true => None,
                false => state.take_pacer(),
            };
            state.looks = true;
            (unpolled, wait, pacer)
        };
        if this.is_kernels() {
            // Not by the timer: its handle must not be dropped here, for a consumer may ask in its handler, which the
            // timer may have called.
            let _ = this.device.workqueues.softirq.enqueue::<_, 0>(this.clone());
        } else {
            Self::start_timer(this, wait, pacer);
        }
        unpolled
    }
}

#[kunit_tests(rrxe_cq_notify)]
mod tests {
    use super::*;
    use crate::{
        limits::accounts::{Accounts, Payer},
        qp::timer_slot::TimerSlot,
    };
    use rdma::verbs::ucontext::Arming;

    /// A queue with so many completions, of which the process has polled some.
    fn state(pushed: u64, polled: u32) -> Result<State> {
        let ring = Ring::unmapped(64, 7)?;
        ring.publish_consumer(polled);
        let mut state = State::new(ring, Arming::default(), false);
        state.pushed = pushed;
        Ok(state)
    }

    fn notify(state: &mut State) -> bool {
        state.completion_due = true;
        state.take_due(|| false, || None).completion
    }

    /// Pushed, polled, told and the end of the urgent ones, and whether any or solicited ones are untold.
    #[test]
    fn tells_what_no_notification_told_of() -> Result {
        for (pushed, polled, told, urgent, any, solicited) in [
            (0, 0, 0, 0, false, false),
            (3, 3, 0, 3, false, false),
            (3, 2, 0, 2, true, false),
            (3, 2, 0, 3, true, true),
            (3, 0, 3, 3, false, false),
            (3, 0, 2, 2, true, false),
            (3, 0, 1, 2, true, true),
            // Told of long ago, and indices that have wrapped.
            (20, 2, 1, 19, true, true),
            (20, 2, 19, 19, true, false),
            (20, 4, 0, 20, false, false),
        ] {
            let mut state = state(pushed, polled)?;
            (state.told, state.urgent_end) = (told, urgent);
            assert_eq!(state.has_untold(NotifyWhen::Next), any);
            assert_eq!(state.has_untold(NotifyWhen::Solicited), solicited);
        }
        Ok(())
    }

    #[test]
    fn owes_nothing_to_who_did_not_ask() -> Result {
        let mut state = state(3, 0)?;
        assert!(!state.owes_notification());
        state.armed = Some(NotifyWhen::Solicited);
        assert!(!state.owes_notification());
        state.armed = Some(NotifyWhen::Next);
        assert!(state.owes_notification());
        assert!(notify(&mut state));
        assert_eq!(state.told, 3);
        assert!(!state.owes_notification());
        Ok(())
    }

    #[test]
    fn stays_urgent_until_it_is_told() -> Result {
        // A solicited completion, then others while the consumer arms again.
        let mut state = state(0, 0)?;
        state.armed = Some(NotifyWhen::Solicited);
        assert!(!state.announce(false));
        assert!(state.announce(true));
        state.armed = Some(NotifyWhen::Next);
        assert!(state.announce(false));
        assert!(state.urgent);
        assert!(state.time_to_wait(true).is_none());
        assert!(state.take_due(|| false, || None).completion);
        assert!(!state.urgent);
        // The other way round: one that is due already becomes urgent.
        state.armed = Some(NotifyWhen::Next);
        assert!(state.announce(false));
        assert!(!state.urgent);
        assert!(!state.announce(false));
        assert!(state.announce(true));
        assert!(state.urgent);
        assert!(state.take_due(|| false, || None).completion);
        // Nobody asked.
        assert!(!state.announce(true));
        assert!(!state.urgent);
        Ok(())
    }

    /// A turn pushes a completion, the CQ is destroyed, and the turn delivers the notification: `Cq::notify` finds
    /// nothing due, and a timer that it had started before is not kept.
    #[test]
    fn nothing_is_due_once_it_is_destroyed() -> Result {
        let mut state = state(3, 0)?;
        (state.completion_due, state.overflow_due) = (true, true);
        let (ring, pacer, _) = state.close();
        assert!(ring.is_some() && pacer.is_none());
        assert!(!state.completion_due && !state.overflow_due);
        assert!(!state.announce(true));
        assert!(matches!(state.pacer, TimerSlot::Closed));
        Ok(())
    }

    #[test]
    fn adds_no_event_to_many_that_are_unread() -> Result {
        let payer = Payer::current(&Accounts::new(1)?)?;
        let mut state = state(0, 0)?;
        for _ in 0..2 {
            assert!(state.adds_event(false, || None));
            for _ in 1..MAX_EVENTS {
                assert!(state.adds_event(true, || payer.claim_events().ok()));
            }
            for _ in 0..1000 {
                assert!(!state.adds_event(true, || None));
            }
        }
        Ok(())
    }

    /// Of CQs beyond the limit of their payer each has one unread event, until another CQ's are read.
    #[test]
    fn adds_one_event_when_the_payer_has_no_room() -> Result {
        let payer = Payer::current(&Accounts::new(1)?)?;
        let claim = || payer.claim_events().ok();
        let mut claims = KVVec::new();
        while let Ok(claim) = payer.claim_events() {
            claims.push(claim, GFP_KERNEL)?;
        }
        drop(claims.pop());
        let (mut first, mut second) = (state(0, 0)?, state(0, 0)?);
        assert!(first.adds_event(false, claim));
        assert!(second.adds_event(false, claim));
        assert!(first.adds_event(true, claim));
        assert!(!second.adds_event(true, claim));
        assert!(first.adds_event(true, claim));
        // The process has read those of the first.
        assert!(first.adds_event(false, claim));
        assert!(second.adds_event(true, claim));
        assert!(!first.adds_event(true, claim));
        Ok(())
    }
}
