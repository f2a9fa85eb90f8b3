// SPDX-License-Identifier: GPL-2.0

//! The doorbell page of a user context, and the poller of that page.
//!
//! A process that has posted to a send queue rings the queue's doorbell: it sets a bit in a shared
//! page ([`DoorbellPage`]). While the process posts often, a poller looks at the page again and
//! again, and the process makes no system call. When no doorbell has come for some time, the poller
//! ends and tells the process to make the doorbell call again. A page without a poller costs no CPU
//! time.
//!
//! A poller is a work item, so that pages can take turns on the work queue's threads. While other
//! pages wait for a thread, a poller polls its page for a short time, the slice, and queues its
//! item again behind them. One run of a send queue's QP may outlast the page's slice. The excess is
//! the page's [`Deficit`], which the page pays by slices that it skips (deficit round robin). So
//! the pollers of all pages get the same time, whatever their doorbells cause. If a run leaves work
//! to do, the kernel itself rings the QP's doorbell ([`Doorbell::defer`]).
//!
//! A poller may get no CPU while doorbells ring: the process itself may spin on the only CPU, or
//! other work may take too long. A timer, the watchdog, detects that within twice
//! [`Workqueues::watchdog_period`]. On a page where nothing was posted for a long time, the
//! detection takes up to 20 ms if that is longer. The watchdog then tells the process to make the
//! doorbell call again. A thread that counts for the page's payer (`limits/accounts.rs`) serves the
//! doorbells rung so far ([`watchdog`]). Later posts are served in the process's own system calls.
//!
//! Setting a bit costs a process next to nothing. So a page whose doorbells ring although nothing
//! was posted is polled for a short time only, and not again for a while.
//!
//! # How a poller ends without a lost doorbell
//!
//! A process sets its bit and then reads whether it has to make the call, with a full barrier
//! between. A poller that ends tells the process to make the call and then looks for doorbells,
//! with a full barrier between. So either the poller sees the doorbell, or the process sees that it
//! has to make the call.

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
        atomic::{
            ordering::{Full, Relaxed},
            Atomic,
        },
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
        mmap::MmapEntries,
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

/// Maximum number of doorbells that one pass serves before other tasks may get the CPU.
const PASS: u32 = 256;
/// Maximum number of doorbells to serve after polling has ended: those of all slots, and those that
/// a concurrent pass serves.
const MAX_LAST: u32 = 2 * SLOTS;
/// Maximum time for which [`Doorbells::settle`] serves doorbells, in nanoseconds. Serving a
/// doorbell of every send queue of a process takes less, unless the runs of its QPs are long.
const SETTLE_TIME: i64 = 100_000_000;
/// Number of doorbells that may ring without work after the last pass that found work. If more
/// ring, the page counts as idle.
const IDLE_DOORBELLS: u32 = 16;

/// State of the polling of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The page has no poller: the process makes the doorbell call.
    Idle,
    /// A call of [`Doorbells::called`] is about to start polling.
    Starting,
    /// The poller takes the doorbells.
    Polled,
    /// The context is closed: polling never starts again.
    Closed,
}

/// State of a page's polling, under the lock `rrxe_doorbells`.
struct Polling {
    /// Whether the page is polled.
    phase: Phase,
    /// Policy that decides when to start polling.
    policy: PollPolicy,
    /// Value of [`Doorbells::passes`] that the watchdog read last.
    seen_passes: u32,
    /// Handle of the running watchdog timer. Dropping it cancels the timer.
    watchdog: Option<ArcHrTimerHandle<Doorbells>>,
}

/// Result of a pass over the page.
#[derive(Clone, Copy, Default)]
struct Found {
    /// Number of doorbells that the pass took.
    rung: u32,
    /// A WQE was posted, or deferred work was left, at one of these doorbells.
    has_work: bool,
    /// The pass broke off before the end of the page.
    is_incomplete: bool,
}

/// The doorbell page of a user context, with its poller and its watchdog.
#[pin_data]
pub(crate) struct Doorbells {
    /// The shared page.
    page: DoorbellPage,
    /// QPs, indexed by their slots in the page.
    #[pin]
    qps: Table<Qp>,
    workqueues: Arc<Workqueues>,
    /// Whether the phase is [`Phase::Polled`]. A hint that is read without the lock.
    is_polled: Atomic<bool>,
    /// Number of passes of the poller so far.
    passes: Atomic<u32>,
    /// Slot where the next pass begins.
    next: Atomic<u32>,
    /// Time of the last pass that found work, in nanoseconds since `epoch`.
    active: Atomic<i64>,
    /// Number of doorbells that have rung without work since `active`.
    spurious: Atomic<u32>,
    /// Deficit of the page among the pages that wait for threads.
    deficit: Deficit,
    /// Upper bound of the doorbells that the work items still have to serve: doorbells rung until
    /// polling ended, or left over by [`Self::settle`].
    unserved: Atomic<u32>,
    /// Time when the page was created.
    epoch: Instant<Monotonic>,
    #[pin]
    polling: BhSpinLock<Polling>,
    /// Work item of the poller.
    #[pin]
    work: Work<Self>,
    /// Timer of the watchdog.
    #[pin]
    timer: HrTimer<Self>,
    /// Work item that serves the last doorbells after the watchdog has ended polling.
    #[pin]
    last: Work<Self, 1>,
    /// Permission of the page to occupy one thread of `rrxe_deferred`, which runs `last`.
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
        this.workqueues.poller_started();
        let others_wait = this.workqueues.has_waiting();
        if this.deficit.skips_slice(others_wait) || this.poll() {
            this.queue();
        }
    }
}

impl Doorbells {
    /// Creates a doorbell page that the process of `mmap_entries` may map. A thread of
    /// `rrxe_deferred` that serves the page counts for `payer`.
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the context is going away.
    pub(crate) fn new(
        device: &Device,
        mmap_entries: &Arc<MmapEntries>,
        payer: &Arc<Payer>,
    ) -> Result<Arc<Self>> {
        let readers = &device.link.context().readers;
        let page = DoorbellPage::new(mmap_entries)?;
        let deferred_permit = ThreadPermit::new(Threads::Deferred, Some(payer.clone()))?;
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
                deficit: Deficit::new(),
                unserved: Atomic::new(0),
                epoch: Instant::now(),
                polling <- new_bh_spinlock!(Polling {
                    phase: Phase::Idle,
                    policy: PollPolicy::default(),
                    seen_passes: 0,
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

    /// Returns the offset and the size by which the process maps the page.
    pub(crate) fn mmap_reply(&self) -> PageReply {
        self.page.mmap_reply()
    }

    /// Reserves a slot for a QP that is being created. Returns `None` if no slot is free or memory
    /// is short. Process context.
    pub(crate) fn reserve(&self) -> Option<Reservation<'_, Qp>> {
        let slot = self.qps.reserve(0..=SLOTS.wrapping_sub(1)).ok()?;
        self.page.use_slot(slot.id());
        Some(slot)
    }

    /// Counts a doorbell call of the process, and starts polling if the poll policy says so. The QP
    /// of the call was served before. Process context.
    fn called(this: &Arc<Self>) {
        if this.is_polled.load(Relaxed) || this.workqueues.idle_limit == 0 {
            return;
        }
        let before = {
            let mut polling = this.polling.lock();
            let idle_limit = this.workqueues.idle_limit;
            if polling.phase != Phase::Idle || !polling.policy.note_call(this.now(), idle_limit) {
                return;
            }
            polling.phase = Phase::Starting;
            polling.watchdog.take()
        };
        // Dropped outside the lock: dropping the handle waits for the watchdog's callback, which
        // takes the lock.
        drop(before);
        this.active.store(this.now(), Relaxed);
        let watchdog = this.clone().start(this.workqueues.watchdog_period);
        let mut polling = this.polling.lock();
        if polling.phase != Phase::Starting {
            // `close` was called meanwhile.
            drop(polling);
            return drop(watchdog);
        }
        polling.watchdog = Some(watchdog);
        polling.phase = Phase::Polled;
        this.is_polled.store(true, Relaxed);
        this.active.store(this.now(), Relaxed);
        this.spurious.store(0, Relaxed);
        this.page.set_need_wakeup(false);
        this.queue();
    }

    /// Ends polling for ever, because the context is closed. Process context; waits for the
    /// watchdog's callback.
    pub(crate) fn close(&self) {
        let watchdog = {
            let mut polling = self.polling.lock();
            polling.phase = Phase::Closed;
            self.unserved.store(0, Relaxed);
            polling.watchdog.take()
        };
        self.is_polled.store(false, Relaxed);
        // Dropped outside the lock: dropping the handle waits for the watchdog's callback, which
        // takes the lock.
        drop(watchdog);
        self.deferred_permit.close();
    }

    /// Serves the doorbells rung so far, for at most [`SETTLE_TIME`] nanoseconds, then waits for
    /// RCU readers. A poller serves the doorbells that are left. Calls `may_continue` before each
    /// pass. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// Those of `may_continue`, which end the call.
    pub(crate) fn settle(self: &Arc<Self>, may_continue: impl Fn() -> Result) -> Result {
        let sweep = |limit, until| self.sweep(limit, until);
        let served = serve_rung(sweep, || self.now(), may_continue);
        if served != Ok(true) {
            self.defer_remaining();
        }
        served?;
        wait_for_readers();
        Ok(())
    }

    /// Has a poller serve the doorbells that [`Self::settle`] left. A pass that breaks off clears
    /// bits of slots that it does not serve, and sets them again. If polling ended meanwhile, the
    /// page's poller may have missed them, and the process does not make the doorbell call for
    /// them.
    fn defer_remaining(self: &Arc<Self>) {
        {
            let polling = self.polling.lock();
            if polling.phase == Phase::Closed {
                return;
            }
            self.unserved.store(MAX_LAST, Relaxed);
        }
        self.queue();
    }

    /// Returns the time in nanoseconds since `epoch`.
    fn now(&self) -> i64 {
        self.epoch.elapsed().as_nanos()
    }

    /// Queues the poller.
    fn queue(self: &Arc<Self>) {
        self.workqueues.poll(self.clone());
    }

    /// Serves at most `limit` rung slots. After the time `until` no further slot is served, except
    /// that a pass always serves its first two.
    fn sweep(&self, limit: u32, until: i64) -> Found {
        let mut found = Found::default();
        let end = self.page.sweep(self.next.load(Relaxed), |slot| {
            // `get` ends its read-side section before the run, which is a section of its own. So a
            // writer that removes an object from a table waits for one run at most.
            if let Some(qp) = self.qps.get(slot) {
                found.has_work |= Qp::serve_doorbell(qp.as_arc_borrow());
            }
            found.rung = found.rung.saturating_add(1);
            // The clock isn't read for a pass that serves one slot only.
            match found.rung >= limit || (found.rung > 1 && self.now() >= until) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let next = end.break_value();
        self.next.store(next.unwrap_or(0), Relaxed);
        found.is_incomplete = next.is_some();
        found
    }

    /// Polls the page until its slice is over. Returns whether the work item must be queued again.
    /// Process context.
    fn poll(self: &Arc<Self>) -> bool {
        let mut slice = self.deficit.begin(self.now());
        loop {
            self.passes.fetch_add(1, Relaxed);
            let found = self.sweep(PASS, slice.until());
            let now = self.now();
            if !self.is_polled.load(Relaxed) {
                slice.end(now, self.workqueues.has_waiting());
                return self.has_unserved(found);
            }
            if found.has_work {
                self.active.store(now, Relaxed);
                self.spurious.store(0, Relaxed);
            } else {
                let spurious = self.spurious.load(Relaxed).saturating_add(found.rung);
                self.spurious.store(spurious, Relaxed);
                let idle = now.saturating_sub(self.active.load(Relaxed));
                // A doorbell may have rung for a WQE that an earlier pass found already.
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

    /// Ends polling at the time `now`, after no WQE was posted for `idle_limit`. Returns as
    /// [`Self::stop`] does.
    fn give_up(&self, now: i64, slice: &mut Slice<'_>) -> bool {
        // The slice is ended here, since `stop` doesn't end it if the watchdog has ended polling
        // just now.
        slice.end(now, self.workqueues.has_waiting());
        let idle = self.spurious.load(Relaxed) > IDLE_DOORBELLS;
        self.stop(slice, |policy| match idle {
            true => policy.back_off(now),
            false => policy.on_idle(),
        })
    }

    /// Ends polling and calls `outcome` to tell the poll policy why. Then serves doorbells for the
    /// rest of `slice`, and ends the slice. Returns whether the work item must be queued again to
    /// serve more of the last doorbells. Process context.
    fn stop(&self, slice: &mut Slice<'_>, outcome: impl FnOnce(&mut PollPolicy)) -> bool {
        self.end_polling(outcome) && self.serve_last(slice)
    }

    /// Serves the last doorbells of a page whose polling has ended, for the rest of `slice`, and
    /// ends the slice. Returns whether doorbells are left. Process context.
    fn serve_last(&self, slice: &mut Slice<'_>) -> bool {
        let found = self.sweep(PASS, slice.until());
        slice.end(self.now(), self.workqueues.has_waiting());
        self.has_unserved(found)
    }

    /// Ends polling and calls `outcome` to tell the poll policy why. Returns whether the page was
    /// being polled; then the caller has the last doorbells served. Any context up to softirq.
    fn end_polling(&self, outcome: impl FnOnce(&mut PollPolicy)) -> bool {
        let mut polling = self.polling.lock();
        if polling.phase != Phase::Polled {
            return false;
        }
        polling.phase = Phase::Idle;
        outcome(&mut polling.policy);
        self.is_polled.store(false, Relaxed);
        self.unserved.store(MAX_LAST, Relaxed);
        self.page.set_need_wakeup(true);
        true
    }

    /// Returns whether doorbells are left that were rung before polling ended, after a pass with
    /// the result `found`. Passes visit all slots in order, and `unserved` bounds the number of
    /// doorbells that they serve. So doorbells that ring now don't keep the work item running for
    /// ever.
    fn has_unserved(&self, found: Found) -> bool {
        let mut left = self.unserved.load(Relaxed);
        loop {
            let less = left.saturating_sub(found.rung);
            // Fully ordered after the pass, which may have set bits again. Pairs with the barrier
            // behind the store to `unserved` in `end_polling`: either this exchange finds the new
            // value, or the passes that follow `end_polling` find these bits.
            match self.unserved.cmpxchg(left, less, Full) {
                Ok(_) => return found.is_incomplete && less > 0,
                Err(now) => left = now,
            }
        }
    }
}

/// Serves doorbells by calls of `sweep`, which takes the maximum number of doorbells and the end
/// time of a pass. Stops when no doorbell is left, when as many as the page has slots were served,
/// or when [`SETTLE_TIME`] nanoseconds have passed on the clock `now`. Calls `may_continue` before
/// each pass. Returns whether no doorbell is left.
///
/// # Errors
///
/// Those of `may_continue`, which end the call.
fn serve_rung(
    mut sweep: impl FnMut(u32, i64) -> Found,
    now: impl Fn() -> i64,
    may_continue: impl Fn() -> Result,
) -> Result<bool> {
    let end = now().saturating_add(SETTLE_TIME);
    let mut left = SLOTS;
    loop {
        may_continue()?;
        let found = sweep(left.min(PASS), end_of_slice(now()));
        left = left.saturating_sub(found.rung);
        if !found.is_incomplete {
            return Ok(true);
        }
        if left == 0 || now() >= end {
            return Ok(false);
        }
        cond_resched();
    }
}

/// The doorbell of one QP: a slot of its context's doorbell page.
pub(crate) struct Doorbell {
    /// The page of the context.
    doorbells: Arc<Doorbells>,
    slot: u32,
    /// Send ring of the QP.
    sends: Ring,
    /// Producer index of `sends` when [`Self::has_new_wqes`] read it last. An atomic of
    /// `core`, since the atomics of the `kernel` crate are calls of C functions.
    seen: AtomicU32,
    /// Nonzero: the QP has deferred work, for which the kernel rang the doorbell.
    deferred: AtomicU32,
}

impl Doorbell {
    /// Creates the doorbell of the QP in `slot` of `doorbells`, whose send ring is `sends`.
    pub(crate) fn new(doorbells: &Arc<Doorbells>, slot: u32, sends: &Ring) -> Self {
        Self {
            doorbells: doorbells.clone(),
            slot,
            seen: AtomicU32::new(sends.producer()),
            deferred: AtomicU32::new(0),
            sends: sends.share(),
        }
    }

    /// Defers the QP's remaining work to the poller: rings the doorbell if the page is being
    /// polled. Returns whether the page is still being polled after that. Any context.
    ///
    /// The process may clear the bit in the shared page. The deferred work then waits until the QP
    /// runs for another reason.
    pub(crate) fn defer(&self) -> bool {
        if !self.doorbells.is_polled.load(Relaxed) {
            return false;
        }
        // Release: pairs with the exchange in `take_deferred`. Its caller may take this mark before
        // the bit below is set, because of an earlier bit of the slot. It must see the deferred
        // work then, such as a packet in the inbox: the bit below finds no mark, and without one a
        // QP before RTS does not run. An exchange, because it continues the release sequence of a
        // mark that another CPU has set, which a store would break.
        self.deferred.swap(1, Ordering::Release);
        self.doorbells.page.ring(self.slot);
        // `ring` ends with a full barrier. So this read pairs with `end_polling` as the read of a
        // process that rings does.
        self.doorbells.is_polled.load(Relaxed)
    }

    /// Returns whether the QP had deferred work, and clears the mark: the caller does that work.
    /// Any context.
    pub(crate) fn take_deferred(&self) -> bool {
        // Acquire: pairs with the exchange in `defer`.
        self.deferred.load(Ordering::Relaxed) != 0 && self.deferred.swap(0, Ordering::Acquire) != 0
    }

    /// Returns whether a WQE was posted since the last call. Any context.
    pub(crate) fn has_new_wqes(&self) -> bool {
        let producer = self.sends.producer();
        let news = self.seen.load(Ordering::Relaxed) != producer;
        if news {
            self.seen.store(producer, Ordering::Relaxed);
        }
        news
    }

    /// Counts a doorbell call of the process for this QP, after the QP was served. Process context.
    pub(crate) fn called(&self) {
        Doorbells::called(&self.doorbells);
    }

    /// Takes the QP out of its slot and waits for the table's readers. Process context; sleeps.
    pub(crate) fn release(&self) {
        drop(self.doorbells.qps.remove(self.slot));
    }
}

#[kunit_tests(rrxe_doorbells)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// Runs [`serve_rung`] over `rung` slots, each of which takes `each` nanoseconds. A pass ends
    /// at its end time. Returns the number of slots served, the time that took, and the result.
    fn serve(
        rung: u32,
        each: i64,
        may_continue: impl Fn(i64) -> Result,
    ) -> (u32, i64, Result<bool>) {
        let (clock, mut left) = (Cell::new(0), rung);
        let sweep = |limit: u32, until: i64| {
            let mut found = Found::default();
            while left > 0 && found.rung < limit && (found.rung < 2 || clock.get() < until) {
                (found.rung, left) = (found.rung + 1, left - 1);
                clock.set(clock.get() + each);
            }
            found.is_incomplete = left > 0;
            found
        };
        let result = serve_rung(sweep, || clock.get(), || may_continue(clock.get()));
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
    fn settle_ends_in_time_for_long_runs() {
        let each = 3_000_000;
        let (served, took, result) = serve(SLOTS, each, |_| Ok(()));
        assert_eq!(result, Ok(false));
        assert!(served >= 2 && took <= SETTLE_TIME + 2 * each);
    }

    #[test]
    fn settle_ends_though_slots_ring_again() {
        let (served, _, result) = serve(u32::MAX, 1, |_| Ok(()));
        assert_eq!((served, result), (SLOTS, Ok(false)));
    }

    #[test]
    fn settle_fails_when_the_device_goes() {
        let gone = |now| if now >= 1_000_000 { Err(EIO) } else { Ok(()) };
        let (served, _, result) = serve(SLOTS, 10_000, gone);
        assert_eq!(result, Err(EIO));
        assert!(served < 200);
    }
}
