// SPDX-License-Identifier: GPL-2.0

//! The doorbells of a context, and who watches them.
//!
//! A process rings by bits in a page ([`DoorbellPage`]). While it posts often a worker watches the
//! page, and the process makes no call; when nothing has come for a while the worker goes, and the
//! process is told to call again. Pages that nobody watches cost nothing.
//!
//! A watcher is a work item, so that pages take turns: while others wait it soon queues behind them. A send
//! queue's turn may take longer; by how much is a debt, which the page pays in turns that it does without.
//! So pages get the same [`Deficit`] of a poller whatever they ring for. What is left to do after a turn, the kernel
//! itself rings for ([`Doorbell::leave`]).
//!
//! If it gets no CPU while doorbells ring, because the process itself spins on the only one, or others take
//! too long, the guard, a timer, sees that within twice [`Workqueues::watchdog`] (within 20 ms on a page where nothing was
//! posted for long), and lets the process call. A thread of the process's share serves the doorbells rung so far
//! ([`relief`]). What the process posts then is served in its own time.
//!
//! Pages that ring although nothing was posted aren't watched for long, or soon again: to ring costs a
//! process next to nothing.
//!
//! # The sleep of a watcher
//!
//! A process rings, then reads whether to call, with a full barrier between. A watcher that goes
//! tells the process to call, then looks for doorbells, with a full barrier between. So either the
//! watcher sees the doorbell or the process sees that it has to call.

pub(crate) mod fairness;
pub(crate) mod poll_policy;
mod watchdog;

use core::{
    ops::ControlFlow,
    sync::atomic::{AtomicU32, Ordering},
};

use kernel::{
    impl_has_hr_timer, impl_has_work, new_work,
    prelude::*,
    processor::cpu_relax,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
    time::{
        hrtimer::{ArcHrTimerHandle, HrTimer, HrTimerPointer, RelativeSoftMode},
        Instant, Monotonic,
    },
    workqueue::{Work, WorkItem},
};
use rdma::{
    abi::{
        doorbell::{DoorbellPage, PageReply, SLOTS},
        mmap::Mappings,
        ring::Ring,
    },
    new_bh_spinlock,
    support::{
        sync::{cond_resched, wait_for_readers, BhSpinLock},
        table::{Reservation, Table},
    },
};

use crate::{
    device::{workqueues::Workqueues, Device},
    doorbells::{
        fairness::{end_of_slice, Deficit, Slice},
        poll_policy::PollPolicy,
    },
    limits::{
        accounts::{Payer, Threads},
        thread_permit::ThreadPermit,
    },
    qp::Qp,
};

/// Send queues served in a pass, before others get the CPU.
const PASS: u32 = 256;
/// Doorbells served of a page that is watched no more: each slot, and what a pass that was under way serves.
const LAST: u32 = 2 * SLOTS;
/// How long [`Doorbells::settle`] serves doorbells, in nanoseconds. A process that posted to each of its
/// send queues needs less, unless its turns are long.
const SETTLE: i64 = 100_000_000;
/// Doorbells that may ring for nothing before a page is held to do no more than that.
const IDLE_DOORBELLS: u32 = 16;

/// Who takes the doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody: the process calls.
    Unwatched,
    /// Somebody is about to watch.
    Starting,
    /// The watcher.
    Polled,
    /// Nobody ever more: the context is closed.
    Closed,
}

/// How the page is watched.
struct Polling {
    phase: Phase,
    policy: PollPolicy,
    /// The count of passes when the guard last looked.
    seen: u32,
    watchdog: Option<ArcHrTimerHandle<Doorbells>>,
}

/// What a pass found.
#[derive(Clone, Copy, Default)]
struct Found {
    /// So many doorbells.
    rung: u32,
    /// Something was posted where one of them had rung.
    news: bool,
    /// It broke off.
    more: bool,
}

/// The doorbells of a context.
#[pin_data]
pub(crate) struct Doorbells {
    page: DoorbellPage,
    /// The QPs by their slots.
    #[pin]
    qps: Table<Qp>,
    workqueues: Arc<Workqueues>,
    /// The phase is [`Phase::Polled`]: for those who need not know exactly.
    is_polled: Atomic<bool>,
    /// Counts passes of the watcher.
    passes: Atomic<u32>,
    /// The slot where the next pass begins.
    next: Atomic<u32>,
    /// When a pass last found something posted, in nanoseconds since `epoch`.
    active: Atomic<i64>,
    /// Doorbells that rang for nothing since.
    spurious: Atomic<u32>,
    permit: Deficit,
    /// Of those rung when it was last watched, or left over by [`Self::settle`], at most so many aren't
    /// served yet.
    left: Atomic<u32>,
    epoch: Instant<Monotonic>,
    #[pin]
    polling: BhSpinLock<Polling>,
    #[pin]
    work: Work<Self>,
    #[pin]
    timer: HrTimer<Self>,
    /// Serves the last doorbells of a page whose watcher was relieved.
    #[pin]
    last: Work<Self, 1>,
    /// The page's share in the threads of `rrxe_deferred`, which run `last`.
    #[pin]
    deferred_permit: ThreadPermit,
}

impl_has_work! {
    impl HasWork<Self> for Doorbells { self.work }
    impl HasWork<Self, 1> for Doorbells { self.last }
}

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Doorbells {
        mode: RelativeSoftMode<Monotonic>, field: self.timer
    }
}

impl WorkItem for Doorbells {
    type Pointer = Arc<Doorbells>;

    fn run(this: Arc<Doorbells>) {
        this.workqueues.polled();
        let others_wait = this.workqueues.has_waiting();
        if this.permit.skips_slice(others_wait) || this.poll() {
            this.queue();
        }
    }
}

impl Doorbells {
    /// Makes a page of doorbells that the process of `mappings` may map, and for which `payer` pays. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the context is going away.
    pub(crate) fn new(
        device: &Device,
        mappings: &Arc<Mappings>,
        payer: &Arc<Payer>,
    ) -> Result<Arc<Self>> {
        let readers = &device.link.context().readers;
        let page = DoorbellPage::new(mappings)?;
        let deferred_permit = ThreadPermit::new(Threads::Rests, Some(payer.clone()))?;
        Arc::pin_init(
            pin_init!(Self {
                page,
                qps <- Table::new(SLOTS, readers),
                workqueues: device.workqueues.clone(),
                is_polled: Atomic::new(false),
                passes: Atomic::new(0),
                next: Atomic::new(0),
                active: Atomic::new(0),
                spurious: Atomic::new(0),
                permit: Deficit::new(),
                left: Atomic::new(0),
                epoch: Instant::now(),
                polling <- new_bh_spinlock!(Polling {
                    phase: Phase::Unwatched,
                    policy: PollPolicy::default(),
                    seen: 0,
                    watchdog: None,
                }, "rrxe_doorbells"),
                work <- new_work!("Doorbells::work"),
                timer <- HrTimer::new(),
                last <- new_work!("Doorbells::last"),
                deferred_permit <- deferred_permit,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Where the process finds the page.
    pub(crate) fn mmap_reply(&self) -> PageReply {
        self.page.mmap_reply()
    }

    /// A slot for a QP that is being made, if one can be had. Process context.
    pub(crate) fn reserve(&self) -> Option<Reservation<'_, Qp>> {
        let slot = self.qps.reserve(0..=SLOTS.wrapping_sub(1)).ok()?;
        self.page.use_slot(slot.id());
        Some(slot)
    }

    /// The process called, for one of its send queues that was served since. Process context.
    fn called(this: &Arc<Self>) {
        if this.is_polled.load(Relaxed) || this.workqueues.idle_limit == 0 {
            return;
        }
        let before = {
            let mut polling = this.polling.lock();
            let idle_limit = this.workqueues.idle_limit;
            if polling.phase != Phase::Unwatched || !polling.policy.called(this.now(), idle_limit) {
                return;
            }
            polling.phase = Phase::Starting;
            polling.watchdog.take()
        };
        // Outside the lock: this waits for the guard.
        drop(before);
        this.active.store(this.now(), Relaxed);
        let watchdog = this.clone().start(this.workqueues.watchdog);
        let mut polling = this.polling.lock();
        if polling.phase != Phase::Starting {
            // Closed meanwhile.
            drop(polling);
            return drop(watchdog);
        }
        polling.watchdog = Some(watchdog);
        polling.phase = Phase::Polled;
        this.is_polled.store(true, Relaxed);
        this.active.store(this.now(), Relaxed);
        this.spurious.store(0, Relaxed);
        this.page.ask_for_calls(false);
        this.queue();
    }

    /// The context is closed: nobody watches any more. Process context.
    pub(crate) fn close(&self) {
        let watchdog = {
            let mut polling = self.polling.lock();
            polling.phase = Phase::Closed;
            self.left.store(0, Relaxed);
            polling.watchdog.take()
        };
        self.is_polled.store(false, Relaxed);
        // Outside the lock: this waits for the guard.
        drop(watchdog);
        self.deferred_permit.close();
    }

    /// Serves the doorbells rung so far, for [`SETTLE`] at most, and waits for RCU readers. A poller serves the rest. Asks
    /// `goes_on` before each pass. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// Those of `goes_on`.
    pub(crate) fn settle(self: &Arc<Self>, goes_on: impl Fn() -> Result) -> Result {
        let sweep = |limit, until| self.sweep(limit, until);
        let charged = serve_rung(sweep, || self.now(), goes_on);
        if charged != Ok(true) {
            self.defer_remaining();
        }
        charged?;
        wait_for_readers();
        Ok(())
    }

    /// Leaves doorbells that [`Self::settle`] took and rang again to a poller. If the page ceased to be
    /// watched meanwhile, the watcher may have missed them, and the process does not call for them.
    fn defer_remaining(self: &Arc<Self>) {
        {
            let polling = self.polling.lock();
            if polling.phase == Phase::Closed {
                return;
            }
            self.left.store(LAST, Relaxed);
        }
        self.queue();
    }

    fn now(&self) -> i64 {
        self.epoch.elapsed().as_nanos()
    }

    fn queue(self: &Arc<Self>) {
        self.workqueues.poll(self.clone());
    }

    /// Serves at most `limit` slots that were rung, and begins with no more after `until`, but for the
    /// first two.
    fn sweep(&self, limit: u32, until: i64) -> Found {
        let mut found = Found::default();
        let end = self.page.sweep(self.next.load(Relaxed), |slot| {
            // Its turns are no section: whoever takes an object out of a table waits for one turn at most.
            if let Some(qp) = self.qps.get(slot) {
                found.news |= Qp::look_at_doorbell(qp.as_arc_borrow());
            }
            found.rung = found.rung.saturating_add(1);
            // One alone isn't worth a look at the clock.
            match found.rung >= limit || (found.rung > 1 && self.now() >= until) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let next = end.break_value();
        self.next.store(next.unwrap_or(0), Relaxed);
        found.more = next.is_some();
        found
    }

    /// Watches the page until others have waited for a turn. Returns whether to be queued again. Process context.
    fn poll(self: &Arc<Self>) -> bool {
        let mut slice = self.permit.begin(self.now());
        loop {
            self.passes.fetch_add(1, Relaxed);
            let found = self.sweep(PASS, slice.until());
            let now = self.now();
            if !self.is_polled.load(Relaxed) {
                slice.end(now, self.workqueues.has_waiting());
                return self.is_left(found);
            }
            if found.news {
                self.active.store(now, Relaxed);
                self.spurious.store(0, Relaxed);
            } else {
                let spurious = self.spurious.load(Relaxed).saturating_add(found.rung);
                self.spurious.store(spurious, Relaxed);
                let idle = now.saturating_sub(self.active.load(Relaxed));
                // A process may ring once more for what was found already.
                let quiet = found.rung == 0 || spurious > IDLE_DOORBELLS;
                if quiet && idle >= self.workqueues.idle_limit {
                    return self.give_up(now, &mut slice);
                }
            }
            if slice.is_over(now, self.workqueues.has_waiting()) {
                return true;
            }
            cpu_relax();
            cond_resched();
        }
    }

    /// Stops watching at `now`, when nothing was posted for long. Returns as [`Self::stop`].
    fn give_up(&self, now: i64, slice: &mut Slice<'_>) -> bool {
        // Also if the guard has stopped it just now.
        slice.end(now, self.workqueues.has_waiting());
        let idle = self.spurious.load(Relaxed) > IDLE_DOORBELLS;
        self.stop(slice, |policy| match idle {
            true => policy.back_off(now),
            false => policy.on_idle(),
        })
    }

    /// Stops watching, and notes by `outcome` why. Serves doorbells for the rest of `slice`, and ends it.
    /// Returns whether the work item is wanted to serve the last ones. Process context.
    fn stop(&self, slice: &mut Slice<'_>, outcome: impl FnOnce(&mut PollPolicy)) -> bool {
        self.end_polling(outcome) && self.serve_last(slice)
    }

    /// Serves the last doorbells of a page that is watched no more, for the rest of `slice`, and ends it. Returns whether
    /// others are left. Process context.
    fn serve_last(&self, slice: &mut Slice<'_>) -> bool {
        let found = self.sweep(PASS, slice.until());
        slice.end(self.now(), self.workqueues.has_waiting());
        self.is_left(found)
    }

    /// Ends the watch, and notes by `outcome` why. Returns whether the page was watched: then its last doorbells are to
    /// be served. Any context up to softirq.
    fn end_polling(&self, outcome: impl FnOnce(&mut PollPolicy)) -> bool {
        let mut polling = self.polling.lock();
        if polling.phase != Phase::Polled {
            return false;
        }
        polling.phase = Phase::Unwatched;
        outcome(&mut polling.policy);
        self.is_polled.store(false, Relaxed);
        self.left.store(LAST, Relaxed);
        self.page.ask_for_calls(true);
        true
    }

    /// Whether doorbells are left that were rung while the page was watched, after a pass that `found` some.
    /// Passes come to all slots in their order: those that ring now don't keep the work item for ever.
    fn is_left(&self, found: Found) -> bool {
        let mut left = self.left.load(Relaxed);
        loop {
            let less = left.saturating_sub(found.rung);
            match self.left.cmpxchg(left, less, Relaxed) {
                Ok(_) => return found.more && less > 0,
                Err(now) => left = now,
            }
        }
    }
}

/// Serves doorbells by `sweep`, which gets the number of doorbells and the time for a pass, until none is
/// left, or each slot was served, or [`SETTLE`] has passed on the clock `now`. Asks `goes_on` before each
/// pass. Returns whether none is left.
///
/// # Errors
///
/// Those of `goes_on`.
fn serve_rung(
    mut sweep: impl FnMut(u32, i64) -> Found,
    now: impl Fn() -> i64,
    goes_on: impl Fn() -> Result,
) -> Result<bool> {
    let end = now().saturating_add(SETTLE);
    let mut left = SLOTS;
    loop {
        goes_on()?;
        let found = sweep(left.min(PASS), end_of_slice(now()));
        left = left.saturating_sub(found.rung);
        if !found.more {
            return Ok(true);
        }
        if left == 0 || now() >= end {
            return Ok(false);
        }
        cond_resched();
    }
}

/// Where a process rings for a QP.
pub(crate) struct Doorbell {
    doorbells: Arc<Doorbells>,
    slot: u32,
    sends: Ring,
    /// The producer's index of `sends` when it was last looked at. One of `core`'s atomics: the kernel's are
    /// calls of C.
    seen: AtomicU32,
    /// Not zero: the QP has something left to do, for which the kernel rang.
    left: AtomicU32,
}

impl Doorbell {
    /// That of the QP in `slot` with the ring `sends`.
    pub(crate) fn new(doorbells: &Arc<Doorbells>, slot: u32, sends: &Ring) -> Self {
        Self {
            doorbells: doorbells.clone(),
            slot,
            seen: AtomicU32::new(sends.producer()),
            left: AtomicU32::new(0),
            sends: sends.share(),
        }
    }

    /// Rings for what is left to do, if somebody watches; returns whether they do. Any context.
    ///
    /// Should the process take its doorbell back, that waits until the QP runs for another reason.
    pub(crate) fn leave(&self) -> bool {
        if !self.doorbells.is_polled.load(Relaxed) {
            return false;
        }
        self.left.store(1, Ordering::Relaxed);
        self.doorbells.page.ring(self.slot);
        // With the barrier in it: as for a process that rings.
        self.doorbells.is_polled.load(Relaxed)
    }

    /// Whether something was left to do, of which the caller takes care now. Any context.
    pub(crate) fn take_deferred(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0 && self.left.swap(0, Ordering::Relaxed) != 0
    }

    /// Whether something was posted since this was last asked. Any context.
    pub(crate) fn has_news(&self) -> bool {
        let producer = self.sends.producer();
        let news = self.seen.load(Ordering::Relaxed) != producer;
        if news {
            self.seen.store(producer, Ordering::Relaxed);
        }
        news
    }

    /// The process called instead, and its QP was served since. Process context.
    pub(crate) fn called(&self) {
        Doorbells::called(&self.doorbells);
    }

    /// Takes the QP out of its slot. Process context; sleeps.
    pub(crate) fn release(&self) {
        drop(self.doorbells.qps.remove(self.slot));
    }
}

#[kunit_tests(rrxe_doorbells)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// Passes of [`serve_rung`] over `rung` slots that each take so long, up to the time of a pass. Returns
    /// how many slots were served, how long that took, and the result.
    fn serve(rung: u32, each: i64, goes_on: impl Fn(i64) -> Result) -> (u32, i64, Result<bool>) {
        let (clock, mut left) = (Cell::new(0), rung);
        let sweep = |limit: u32, until: i64| {
            let mut found = Found::default();
            while left > 0 && found.rung < limit && (found.rung < 2 || clock.get() < until) {
                (found.rung, left) = (found.rung + 1, left - 1);
                clock.set(clock.get() + each);
            }
            found.more = left > 0;
            found
        };
        let result = serve_rung(sweep, || clock.get(), || goes_on(clock.get()));
        (rung - left, clock.get(), result)
    }

    #[test]
    fn settle_when_all_are_served() {
        let stays = |_| Ok(());
        assert_eq!(serve(0, 1, stays), (0, 0, Ok(true)));
        assert_eq!(serve(1000, 3_000, stays), (1000, 3_000_000, Ok(true)));
        assert_eq!(
            serve(SLOTS, 3_000, stays),
            (SLOTS, i64::from(SLOTS) * 3_000, Ok(true))
        );
    }

    #[test]
    fn settle_in_time_whatever_turns_take() {
        let each = 3_000_000;
        let (served, took, result) = serve(SLOTS, each, |_| Ok(()));
        assert_eq!(result, Ok(false));
        assert!(served >= 2 && took <= SETTLE + 2 * each);
    }

    #[test]
    fn settle_though_slots_ring_again() {
        let (served, _, result) = serve(u32::MAX, 1, |_| Ok(()));
        assert_eq!((served, result), (SLOTS, Ok(false)));
    }

    #[test]
    fn settle_no_more_when_the_device_goes() {
        let gone = |now| if now >= 1_000_000 { Err(EIO) } else { Ok(()) };
        let (served, _, result) = serve(SLOTS, 10_000, gone);
        assert_eq!(result, Err(EIO));
        assert!(served < 200);
    }
}
