// SPDX-License-Identifier: GPL-2.0

//! The module's work queues, and the limits that hold for all of its devices together.

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
    time::Delta,
};
use rdma::{memory::odp::Owners, support::workqueue::OwnedQueue};

use crate::{
    doorbells::Doorbells,
    gsi::Guests,
    limits::{self, accounts::Accounts, softirq_time::SoftirqTime},
};

/// The work queues, for work that no system call and no packet does.
pub(crate) struct Workers {
    /// Runs QPs that nobody else runs, in softirq.
    pub(crate) turns: OwnedQueue,
    /// Runs QPs of processes in threads, when a turn left work over, ends those of CQs that overflowed, and serves last
    /// doorbells. An administrator sets number
    /// and CPUs of the threads by `/sys/devices/virtual/workqueue/rrxe_rest`.
    pub(crate) rests: OwnedQueue,
    /// Hands faults to the processes whose memory is absent, and looks at the speed of links. Runs no QP: its items have no
    /// account.
    pub(crate) faults: OwnedQueue,
    /// What softirqs may spend on packets of processes' QPs; the rest is for `rests`.
    pub(crate) softirq_time: SoftirqTime,
    /// Releases what ended of regions on demand, where it may sleep, in a thread for each process.
    pub(crate) owners: Arc<Owners>,
    /// The threads of `rests` and `owners` that each user and memory cgroup uses.
    pub(crate) accounts: Arc<Accounts>,
    /// The limits of all guests' networks together.
    pub(crate) guests: Pin<KBox<Guests>>,
    /// Watches pages of doorbells. An administrator sets CPUs, priority and NUMA affinity by
    /// `/sys/devices/virtual/workqueue/rrxe_poll`.
    polls: OwnedQueue,
    /// Pages that wait for one of those.
    waiting: Atomic<i32>,
    /// Nanoseconds that a page is watched in vain; zero for never watching any.
    pub(crate) patience: i64,
    /// How often it is looked whether a page's watcher runs.
    pub(crate) guard: Delta,
}

/// Threads of `rrxe_faults`. Its items wait for the turn of a QP, for RTNL, or for the driver of a network device.
const FAULT_THREADS: u32 = 16;

/// Watchers are given this long to run, in microseconds, …
const MIN_GUARD: u32 = 200;
/// … at most this long.
const MAX_GUARD: u32 = 1_000_000;

impl Workers {
    /// At most `pollers` pages are watched at a time, each for `patience_us` microseconds in vain;
    /// none if either is zero. Softirqs spend `softirq_percent` of a CPU's time on processes' QPs. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(pollers: u32, patience_us: u32, softirq_percent: u32) -> Result<Arc<Self>> {
        let patience_us = match pollers {
            0 => 0,
            _ => patience_us,
        };
        let workers = Self {
            turns: OwnedQueue::new_bh(c"rrxe")?,
            rests: OwnedQueue::new_unbound(c"rrxe_rest", pollers.max(1))?,
            faults: OwnedQueue::new_unbound(c"rrxe_faults", FAULT_THREADS)?,
            softirq_time: SoftirqTime::new(softirq_percent)?,
            owners: Owners::new(c"rrxe_release", limits::SLEEPERS)?,
            accounts: Accounts::new(pollers.max(1))?,
            guests: Guests::new()?,
            polls: OwnedQueue::new_unbound(c"rrxe_poll", pollers.max(1))?,
            waiting: Atomic::new(0),
            patience: i64::from(patience_us).saturating_mul(1_000),
            guard: Delta::from_micros(i64::from(patience_us.clamp(MIN_GUARD, MAX_GUARD))),
        };
        Ok(Arc::new(workers, GFP_KERNEL)?)
    }

    /// Lets a poller serve a page, after those that wait already. Any context.
    pub(crate) fn poll(&self, doorbells: Arc<Doorbells>) {
        self.waiting.fetch_add(1, Relaxed);
        // Already queued is as good: it has not run yet.
        if self.polls.enqueue::<_, 0>(doorbells).is_err() {
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// A page waits no longer.
    pub(crate) fn polled(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Whether pages wait for a poller: a hint, for this changes at any time.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Waits for all that is queued. Process context.
    pub(crate) fn flush(&self) {
        // Pollers and faults queue the others.
        self.polls.flush();
        self.faults.flush();
        self.owners.flush();
        self.turns.flush();
        self.rests.flush();
        // Those may have queued one of these again.
        self.turns.flush();
    }
}
