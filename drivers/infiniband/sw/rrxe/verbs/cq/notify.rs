// SPDX-License-Identifier: GPL-2.0

//! Notifications of a CQ's consumer.
//!
//! A completion that finds the CQ armed triggers a notification. So does arming, after a short
//! time, if the CQ has completions that the consumer has not polled and that the last notification
//! did not cover. Programs that sleep once the CQ is armed rely on it. A program that arms the CQ
//! and then polls has polled these completions before [`Cq::look`] runs, and is not woken for them.
//! `Documentation/uabi.rst` explains why no completion is missed.
//!
//! In this module, a completion is urgent if it is solicited or in error.

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
    verbs::cq::{CqEvents, Moderation, NotifyWhen, Unannounced},
};

use super::{Cq, State};
use crate::limits::accounts::PayerClaim;

/// Minimum time in nanoseconds between two notifications of a consumer that receives without
/// sending, as network cards moderate their interrupts.
const PACE: i64 = 100_000;

/// Time in nanoseconds that a process may take to poll a CQ after arming it, before it is notified
/// of the completions that were there already.
const GRACE: i64 = 20_000;

/// Maximum number of unread notifications of a CQ, if the accounts of the process have room;
/// otherwise one. The process is notified no more until it has read all of them. Each notification
/// covers all completions so far.
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

/// The notifications to deliver.
struct Due {
    /// Completion event (`comp_handler`).
    completion: bool,
    /// Asynchronous event `IB_EVENT_CQ_ERR`.
    overflow: bool,
}

impl State {
    /// Returns the nanoseconds until a due notification may be delivered, `None` if it may be
    /// delivered at once. `paced` applies [`PACE`].
    fn time_to_wait(&self, paced: bool) -> Option<i64> {
        if self.urgent || self.overflow_due {
            return None;
        }
        let (interval, since) = match self.moderation {
            Some(moderation) => {
                if self.moderated >= moderation.count {
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

    /// Updates the state after a push. Returns whether the caller must call [`Cq::notify`].
    ///
    /// A notification that is already due covers this completion, too. If the completion is urgent,
    /// the notification is delivered at once.
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

    /// Counts a completion of a moderated CQ. Returns whether a delayed notification may be
    /// delivered now.
    fn gather(&mut self, moderation: Moderation) -> bool {
        if self.moderated == 0 {
            self.since = Some(Instant::now());
        }
        self.moderated = self.moderated.saturating_add(1);
        self.completion_due && self.moderated >= moderation.count
    }

    /// Takes the due notifications. `has_unread` returns whether the process has an unread
    /// notification. `claim` claims the right to more than one unread notification.
    fn take_due(
        &mut self,
        has_unread: impl FnOnce() -> bool,
        claim: impl FnOnce() -> Option<PayerClaim>,
    ) -> Due {
        self.urgent = false;
        let mut completion = take(&mut self.completion_due);
        if completion {
            self.notified = Some(Instant::now());
            self.moderated = 0;
            self.covered = self.pushed;
            self.clear_news();
            completion = self.adds_event(has_unread(), claim);
        }
        Due {
            completion,
            overflow: take(&mut self.overflow_due),
        }
    }

    /// Counts one more notification. Returns whether it is delivered. A process with many unread
    /// notifications finds the completions when it reads the next one.
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

    /// Clears the news word of the ring, because a notification covers all completions.
    fn clear_news(&mut self) {
        if self.unannounced == Unannounced::None {
            return;
        }
        self.unannounced = Unannounced::None;
        if let Some(ring) = &self.ring {
            ring.set_unannounced(Unannounced::None);
        }
    }

    /// Returns the number of completions that the consumer has not polled, according to its index.
    fn unpolled(&self) -> u32 {
        let distance = |ring: &Ring| ring.distance(ring.consumer(), self.pushed as u32);
        self.ring.as_ref().map_or(0, distance)
    }

    /// Returns whether there are completions of this kind that the consumer has not polled and no
    /// notification has covered.
    fn has_uncovered(&self, kind: NotifyWhen) -> bool {
        let polled = self.pushed.saturating_sub(self.unpolled().into());
        let known = self.covered.max(polled);
        match kind {
            NotifyWhen::Next => self.pushed > known,
            NotifyWhen::Solicited => self.urgent_end > known,
        }
    }

    /// Returns whether the CQ is armed, and already has completions of the armed kind that the
    /// consumer has not polled and no notification has covered.
    fn owes_notification(&self) -> bool {
        self.armed().is_some_and(|kind| self.has_uncovered(kind))
    }

    /// Takes the handle of the timer. The caller drops it outside the lock, which cancels the
    /// timer.
    fn take_pacer(&mut self) -> Option<ArcHrTimerHandle<Cq>> {
        self.look_pending = false;
        self.pacer.take()
    }

    /// Returns the kind of completion that triggers the next notification. A process may arm the CQ
    /// by a word in the ring, and looks for completions after that. So this reads the word after
    /// the push of a completion, behind a full barrier.
    pub(super) fn armed(&self) -> Option<NotifyWhen> {
        let ring = self.ring.as_ref().filter(|_| self.arming.by_word);
        self.armed.max(ring.and_then(Ring::arm_after_push))
    }

    /// Disarms the CQ because a notification is due. The consumer has to arm it again.
    pub(super) fn disarm(&mut self) {
        self.armed = None;
        if let Some(ring) = self.ring.as_ref().filter(|_| self.arming.by_word) {
            ring.set_arm(None);
        }
    }
}

impl Cq {
    /// Delivers the due notifications, or starts the timer if the consumer wants them moderated.
    /// Any context up to softirq, outside all locks.
    pub(crate) fn notify(this: &Arc<Self>) {
        Self::notify_in_time(this, false);
    }

    /// Works as [`Self::notify`], for a process that receives without sending. Unless the
    /// completion is urgent, the notification is delivered no sooner than [`PACE`] after the last
    /// one. Then it covers the completions that came meanwhile, and the process isn't woken for
    /// each message of a stream.
    ///
    /// Kernel consumers pace themselves, and are notified at once.
    pub(crate) fn notify_paced(this: &Arc<Self>) {
        Self::notify_in_time(this, !this.is_kernels());
    }

    /// Delivers the due notifications when [`State::time_to_wait`] allows it.
    fn notify_in_time(this: &Arc<Self>, paced: bool) {
        let (wait, pacer) = {
            let mut state = this.state.lock();
            if !(state.completion_due || state.overflow_due) {
                return;
            }
            match state.time_to_wait(paced) {
                Some(wait) => (wait, state.take_pacer()),
                None => {
                    let due =
                        state.take_due(|| this.has_unread_event(), || this.claim_unread_events());
                    // The timer would deliver the next moderated notification too early.
                    let pacer = state.moderation.and_then(|_| state.take_pacer());
                    let held = pacer.is_some();
                    drop(state);
                    drop(pacer);
                    Self::deliver(this.as_arc_borrow(), due);
                    if held {
                        // All handles refer to one timer. If another CPU has started it since, the
                        // drop has cancelled it.
                        Self::look(this.as_arc_borrow());
                    }
                    return;
                }
            }
        };
        Self::start_timer(this, wait, pacer);
    }

    /// Starts the timer to expire in `wait` nanoseconds. `before` is the handle of the timer's
    /// previous start. Any context up to softirq, outside all locks.
    fn start_timer(this: &Arc<Self>, wait: i64, before: Option<ArcHrTimerHandle<Cq>>) {
        // Before the timer is started again, because this cancels it.
        drop(before);
        let pacer = this.clone().start(Delta::from_nanos(wait));
        let kept = this.state.lock().pacer.put(pacer);
        match kept {
            Ok(None) => {}
            Ok(other) => {
                // Another CPU started the timer at the same time. This cancels the timer for both.
                drop(other);
                Self::look(this.as_arc_borrow());
            }
            // The CQ was destroyed meanwhile.
            Err(late) => drop(late),
        }
    }

    /// Delivers the due notifications, including the one for which [`State::owes_notification`]
    /// returns true. Any context up to softirq, outside all locks.
    fn look(this: ArcBorrow<'_, Self>) {
        let due = {
            let mut state = this.state.lock();
            state.look_pending = false;
            if state.owes_notification() {
                state.disarm();
                state.completion_due = true;
            }
            state.take_due(|| this.has_unread_event(), || this.claim_unread_events())
        };
        Self::deliver(this, due);
    }

    /// Returns whether the process has an unread notification.
    fn has_unread_event(&self) -> bool {
        self.events.as_ref().is_some_and(CqEvents::is_unread)
    }

    /// Claims the right to more than one unread notification, if the accounts of the CQ's process
    /// have one left. Any context.
    fn claim_unread_events(&self) -> Option<PayerClaim> {
        self.permit().payer()?.claim_unread_events().ok()
    }

    /// Calls the consumer's handlers. Must be called outside all locks.
    fn deliver(this: ArcBorrow<'_, Self>, due: Due) {
        if due.completion {
            this.upcall.complete();
        }
        if due.overflow {
            let claim = || this.permit().payer()?.claim_unread_async_events().ok();
            this.upcall.overflowed(claim);
            Self::request_end_of_users(this);
        }
    }

    /// Sets the moderation of notifications (the operation `modify_cq`). Completions that are
    /// solicited or in error are notified at once. Other completions are notified when there are
    /// `count` of them, or `period` microseconds after the first one. If either is zero, each
    /// completion is notified at once. Process context.
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
            state.moderated = 0;
        }
        // Delivers a notification that the previous moderation delayed.
        Self::notify(this);
    }

    /// Arms the CQ for one notification (`ib_req_notify_cq()`). Returns whether there are
    /// completions that the consumer has not polled. A caller that sets `asks`
    /// (`IB_CQ_REPORT_MISSED_EVENTS`) polls them. For other callers, completions that no
    /// notification has covered are notified soon. Any context.
    ///
    /// A request for any completion overrides a request for solicited completions, but not the
    /// other way round.
    pub(crate) fn req_notify(this: &Arc<Self>, when: NotifyWhen, asks: bool) -> bool {
        let (unpolled, wait, pacer) = {
            let mut state = this.state.lock();
            state.armed = state.armed.max(Some(when));
            let unpolled = state.unpolled() != 0;
            // A notification that is already due covers all completions that are there.
            if asks || state.completion_due || state.look_pending || !state.owes_notification() {
                return unpolled;
            }
            state.urgent |= state.has_uncovered(NotifyWhen::Solicited);
            let wait = state.time_to_wait(false).unwrap_or(0).max(GRACE);
            let pacer = match this.is_kernels() {
                true => None,
                false => state.take_pacer(),
            };
            state.look_pending = true;
            (unpolled, wait, pacer)
        };
        if this.is_kernels() {
            // The timer is not used, because its handle must not be dropped here: a kernel consumer
            // may call this in its completion handler, which the timer itself may have called.
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
        verbs::cq::timer_slot::TimerSlot,
    };
    use rdma::abi::features::Arming;

    /// Creates the state of a CQ with `pushed` completions, of which the process's index claims
    /// that it has polled all before `polled`.
    fn state(pushed: u64, polled: u32) -> Result<State> {
        let ring = Ring::unmapped(64, 7)?;
        ring.publish_consumer(polled);
        let mut state = State::new(ring, Arming::default(), false);
        state.pushed = pushed;
        Ok(state)
    }

    /// Delivers a notification to a process without unread ones. Returns whether it was delivered.
    fn notify(state: &mut State) -> bool {
        state.completion_due = true;
        state.take_due(|| false, || None).completion
    }

    /// Each row: the values of `pushed`, `polled`, `covered` and `urgent_end`; whether any
    /// completions are not covered; whether solicited ones are not covered.
    #[test]
    fn finds_uncovered_completions() -> Result {
        for (pushed, polled, covered, urgent, any, solicited) in [
            (0, 0, 0, 0, false, false),
            (3, 3, 0, 3, false, false),
            (3, 2, 0, 2, true, false),
            (3, 2, 0, 3, true, true),
            (3, 0, 3, 3, false, false),
            (3, 0, 2, 2, true, false),
            (3, 0, 1, 2, true, true),
            // A last notification long ago, and indices that have wrapped.
            (20, 2, 1, 19, true, true),
            (20, 2, 19, 19, true, false),
            (20, 4, 0, 20, false, false),
        ] {
            let mut state = state(pushed, polled)?;
            (state.covered, state.urgent_end) = (covered, urgent);
            assert_eq!(state.has_uncovered(NotifyWhen::Next), any);
            assert_eq!(state.has_uncovered(NotifyWhen::Solicited), solicited);
        }
        Ok(())
    }

    #[test]
    fn owes_nothing_unless_armed() -> Result {
        let mut state = state(3, 0)?;
        assert!(!state.owes_notification());
        state.armed = Some(NotifyWhen::Solicited);
        assert!(!state.owes_notification());
        state.armed = Some(NotifyWhen::Next);
        assert!(state.owes_notification());
        assert!(notify(&mut state));
        assert_eq!(state.covered, 3);
        assert!(!state.owes_notification());
        Ok(())
    }

    #[test]
    fn shows_how_the_cq_is_armed() -> Result {
        let armings = [None, Some(NotifyWhen::Solicited), Some(NotifyWhen::Next)];
        for (called, text) in armings.into_iter().zip([c"no", c"solicited", c"next"]) {
            for by_word in [false, true] {
                let mut state = state(0, 0)?;
                state.arming.by_word = by_word;
                assert_eq!(state.load().armed, c"no");
                match (&state.ring, by_word) {
                    (Some(ring), true) => ring.set_arm(called),
                    _ => state.armed = called,
                }
                assert_eq!(state.load().armed, text);
            }
        }
        Ok(())
    }

    #[test]
    fn stays_urgent_until_notified() -> Result {
        // A solicited completion, then others after the consumer has armed again.
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
        // A notification that is already due becomes urgent.
        state.armed = Some(NotifyWhen::Next);
        assert!(state.announce(false));
        assert!(!state.urgent);
        assert!(!state.announce(false));
        assert!(state.announce(true));
        assert!(state.urgent);
        assert!(state.take_due(|| false, || None).completion);
        // The CQ is not armed.
        assert!(!state.announce(true));
        assert!(!state.urgent);
        Ok(())
    }

    /// A run pushes a completion, the CQ is destroyed, and the run delivers the notification.
    /// [`Cq::notify`] then finds nothing due, and a timer that it had started before is not stored.
    #[test]
    fn nothing_is_due_after_destruction() -> Result {
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
    fn limits_unread_events() -> Result {
        let payer = Payer::current(&Accounts::new(1)?)?;
        let mut state = state(0, 0)?;
        for _ in 0..2 {
            assert!(state.adds_event(false, || None));
            for _ in 1..MAX_EVENTS {
                assert!(state.adds_event(true, || payer.claim_unread_events().ok()));
            }
            for _ in 0..1000 {
                assert!(!state.adds_event(true, || None));
            }
        }
        Ok(())
    }

    /// CQs beyond the limit of their payer have one unread event each, until the events of another
    /// CQ are read.
    #[test]
    fn adds_one_event_beyond_the_payers_limit() -> Result {
        let payer = Payer::current(&Accounts::new(1)?)?;
        let claim = || payer.claim_unread_events().ok();
        let mut claims = KVVec::new();
        while let Ok(claim) = payer.claim_unread_events() {
            claims.push(claim, GFP_KERNEL)?;
        }
        drop(claims.pop());
        let (mut first, mut second) = (state(0, 0)?, state(0, 0)?);
        assert!(first.adds_event(false, claim));
        assert!(second.adds_event(false, claim));
        assert!(first.adds_event(true, claim));
        assert!(!second.adds_event(true, claim));
        assert!(first.adds_event(true, claim));
        // The process has read the events of the first CQ.
        assert!(first.adds_event(false, claim));
        assert!(second.adds_event(true, claim));
        assert!(!first.adds_event(true, claim));
        Ok(())
    }
}
