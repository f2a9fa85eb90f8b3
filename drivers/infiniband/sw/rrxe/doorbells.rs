// SPDX-License-Identifier: GPL-2.0

//! The doorbells of a context, and who watches them.
//!
//! A process rings by bits in a page ([`DoorbellPage`]). While it posts often a worker watches the
//! page, and the process makes no call; when nothing has come for a while the worker goes, and the
//! process is told to call again. Pages that nobody watches cost nothing.
//!
//! A watcher is a work item, so that pages take turns: after a [`SLICE`] it queues behind the others.
//! If it gets no CPU while doorbells ring, because the process itself spins on the only one, the
//! guard, a timer, sees that within twice [`Workers::guard`], serves what was rung, and lets the process call.
//!
//! # The sleep of a watcher
//!
//! A process rings, then reads whether to call, with a full barrier between. A watcher that goes
//! tells the process to call, then looks for doorbells, with a full barrier between. So either the
//! watcher sees the doorbell or the process sees that it has to call.

use core::ops::ControlFlow;

use kernel::{
    impl_has_hr_timer, impl_has_work, new_work,
    prelude::*,
    processor::cpu_relax,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, ArcBorrow,
    },
    time::{
        hrtimer::{
            ArcHrTimerHandle, HrTimer, HrTimerCallback, HrTimerCallbackContext, HrTimerPointer,
            HrTimerRestart, RelativeSoftMode,
        },
        Instant, Monotonic,
    },
    workqueue::{Work, WorkItem},
};
use rdma::{
    doorbell::{DoorbellPage, PageReply, SLOTS},
    mmap::Mappings,
    new_bh_spinlock,
    sync::{cond_resched, wait_for_readers, BhSpinLock},
    table::{Reservation, Table},
};

use crate::{device::Device, interest::Interest, qp::Qp, workers::Workers};

/// Send queues served in a pass, before others get the CPU.
const PASS: u32 = 256;
/// How long a page is watched before other pages get their turn, in nanoseconds.
const SLICE: i64 = 1_000_000;

/// Who takes the doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody: the process calls.
    Unwatched,
    /// Somebody is about to watch.
    Starting,
    /// The watcher.
    Watched,
    /// Nobody ever more: the context is closed.
    Closed,
}

/// How the page is watched.
struct Watch {
    phase: Phase,
    interest: Interest,
    /// The count of passes when the guard last looked.
    seen: u32,
    guard: Option<ArcHrTimerHandle<Doorbells>>,
}

/// The doorbells of a context.
#[pin_data]
pub(crate) struct Doorbells {
    page: DoorbellPage,
    /// The QPs by their slots.
    #[pin]
    qps: Table<Qp>,
    workers: Arc<Workers>,
    /// The phase is [`Phase::Watched`]: for those who need not know exactly.
    watched: Atomic<bool>,
    /// Counts passes of the watcher.
    passes: Atomic<u32>,
    /// The slot where the next pass begins.
    next: Atomic<u32>,
    /// When a pass last found something, in nanoseconds since `epoch`.
    active: Atomic<i64>,
    epoch: Instant<Monotonic>,
    #[pin]
    watch: BhSpinLock<Watch>,
    #[pin]
    work: Work<Self>,
    #[pin]
    timer: HrTimer<Self>,
}

impl_has_work! { impl HasWork<Self> for Doorbells { self.work } }

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Doorbells {
        mode: RelativeSoftMode<Monotonic>, field: self.timer
    }
}

impl WorkItem for Doorbells {
    type Pointer = Arc<Doorbells>;

    fn run(this: Arc<Doorbells>) {
        if this.keep_watching() {
            this.queue();
        }
    }
}

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

impl Doorbells {
    /// Makes a page of doorbells that the process of `mappings` may map. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the context is going away.
    pub(crate) fn new(device: &Device, mappings: &Arc<Mappings>) -> Result<Arc<Self>> {
        let readers = &device.link.context().readers;
        let page = DoorbellPage::new(mappings)?;
        Arc::pin_init(
            pin_init!(Self {
                page,
                qps <- Table::new(SLOTS, readers),
                workers: device.workers.clone(),
                watched: Atomic::new(false),
                passes: Atomic::new(0),
                next: Atomic::new(0),
                active: Atomic::new(0),
                epoch: Instant::now(),
                watch <- new_bh_spinlock!(Watch {
                    phase: Phase::Unwatched,
                    interest: Interest::default(),
                    seen: 0,
                    guard: None,
                }, "rrxe_doorbells"),
                work <- new_work!("Doorbells::work"),
                timer <- HrTimer::new(),
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
        self.qps.reserve(0..=SLOTS.wrapping_sub(1)).ok()
    }

    /// Takes the QP of a slot out. Process context; sleeps.
    pub(crate) fn release(&self, slot: u32) {
        drop(self.qps.remove(slot));
    }

    /// The process called, for one of its send queues that was served since. Process context.
    pub(crate) fn called(this: &Arc<Self>) {
        if this.watched.load(Relaxed) || this.workers.patience == 0 {
            return;
        }
        let before = {
            let mut watch = this.watch.lock();
            let patience = this.workers.patience;
            if watch.phase != Phase::Unwatched || !watch.interest.called(this.now(), patience) {
                return;
            }
            watch.phase = Phase::Starting;
            watch.guard.take()
        };
        // Outside the lock: this waits for the guard.
        drop(before);
        let guard = this.clone().start(this.workers.guard);
        let mut watch = this.watch.lock();
        if watch.phase != Phase::Starting {
            // Closed meanwhile.
            drop(watch);
            return drop(guard);
        }
        watch.guard = Some(guard);
        watch.phase = Phase::Watched;
        this.watched.store(true, Relaxed);
        this.active.store(this.now(), Relaxed);
        this.page.ask_for_calls(false);
        this.queue();
    }

    /// The context is closed: nobody watches any more. Process context.
    pub(crate) fn close(&self) {
        let guard = {
            let mut watch = self.watch.lock();
            watch.phase = Phase::Closed;
            watch.guard.take()
        };
        self.watched.store(false, Relaxed);
        // Outside the lock: this waits for the guard.
        drop(guard);
    }

    /// Serves what was rung so far, and waits for the watcher to have served what it took. Process
    /// context; sleeps.
    pub(crate) fn settle(&self) {
        self.sweep(SLOTS);
        wait_for_readers();
    }

    fn now(&self) -> i64 {
        self.epoch.elapsed().as_nanos()
    }

    fn queue(self: &Arc<Self>) {
        // Already queued is as good: it has not run yet.
        let _ = self.workers.polls.enqueue(self.clone());
    }

    /// Serves at most `limit` slots that were rung; how many it served.
    fn sweep(&self, limit: u32) -> u32 {
        let mut served: u32 = 0;
        let end = self.page.sweep(self.next.load(Relaxed), |slot| {
            self.qps.with(slot, Qp::look_at_sends);
            served = served.wrapping_add(1);
            match served < limit {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        if let ControlFlow::Break(slot) = end {
            self.next.store(slot, Relaxed);
        }
        served
    }

    /// Watches the page for a slice. Returns whether to be queued again. Process context.
    fn keep_watching(self: &Arc<Self>) -> bool {
        let started = self.now();
        loop {
            self.passes.fetch_add(1, Relaxed);
            let served = self.sweep(PASS);
            let now = self.now();
            if !self.watched.load(Relaxed) {
                // What the guard left.
                return served == PASS;
            }
            if served > 0 {
                self.active.store(now, Relaxed);
            } else if now.saturating_sub(self.active.load(Relaxed)) >= self.workers.patience {
                return self.stop(Interest::satisfied);
            }
            if now.saturating_sub(started) >= SLICE {
                return true;
            }
            cpu_relax();
            cond_resched();
        }
    }

    /// Stops watching, and notes by `outcome` why. Returns whether the work item is wanted to serve the
    /// last doorbells. Any context up to softirq.
    fn stop(&self, outcome: impl FnOnce(&mut Interest)) -> bool {
        {
            let mut watch = self.watch.lock();
            if watch.phase != Phase::Watched {
                return false;
            }
            watch.phase = Phase::Unwatched;
            outcome(&mut watch.interest);
            self.watched.store(false, Relaxed);
            self.page.ask_for_calls(true);
        }
        self.sweep(PASS) == PASS
    }

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
        let now = self.now();
        if self.stop(|interest| interest.starved(now)) {
            self.queue();
        }
        false
    }
}
