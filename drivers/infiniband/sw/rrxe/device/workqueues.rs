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
    gsi::GuestLimits,
    limits::{self, accounts::Accounts, softirq_time::SoftirqTime},
};

/// The work queues, for work that no system call and no packet does.
pub(crate) struct Workqueues {
    /// Runs QPs that nobody else runs, in softirq.
    pub(crate) softirq: OwnedQueue,
    /// Runs QPs of processes in threads, when a turn left work over, ends those of CQs that overflowed, and serves last
    /// doorbells. An administrator sets number
    /// and CPUs of the threads by `/sys/devices/virtual/workqueue/rrxe_deferred`.
    pub(crate) deferred: OwnedQueue,
    /// Hands faults to the processes whose memory is absent, and looks at the speed of links. Runs no QP: its items have no
    /// account.
    pub(crate) faults: OwnedQueue,
    /// What softirqs may spend on packets of processes' QPs; the rest is for `deferred`.
    pub(crate) softirq_time: SoftirqTime,
    /// Releases what ended of regions on demand, where it may sleep, in a thread for each process.
    pub(crate) owners: Arc<Owners>,
    /// The threads of `deferred` and `owners` that each user and memory cgroup uses.
    pub(crate) accounts: Arc<Accounts>,
    /// The limits of all guests' networks together.
    pub(crate) guests: Pin<KBox<GuestLimits>>,
    /// Watches pages of doorbells. An administrator sets CPUs, priority and NUMA affinity by
    /// `/sys/devices/virtual/workqueue/rrxe_poll`.
    pollers: OwnedQueue,
    /// Pages that wait for one of those.
    waiting: Atomic<i32>,
    /// Nanoseconds that a page is watched in vain; zero for never watching any.
    pub(crate) idle_limit: i64,
    /// How often it is looked whether a page's watcher runs.
    pub(crate) watchdog: Delta,
}

/// Threads of `rrxe_faults`. Its items wait for the turn of a QP, for RTNL, or for the driver of a network device.
const FAULT_THREADS: u32 = 16;

/// Watchers are given this long to run, in microseconds, …
const MIN_WATCHDOG: u32 = 200;
/// … at most this long.
const MAX_WATCHDOG: u32 = 1_000_000;

impl Workqueues {
    /// At most `pollers` pages are watched at a time, each for `idle_limit_us` microseconds in vain;
    /// none if either is zero. Softirqs spend `softirq_percent` of a CPU's time on processes' QPs. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(pollers: u32, idle_limit_us: u32, softirq_percent: u32) -> Result<Arc<Self>> {
        let idle_limit_us = match pollers {
            0 => 0,
            _ => idle_limit_us,
        };
        let workqueues = Self {
            softirq: OwnedQueue::new_bh(c"rrxe")?,
            deferred: OwnedQueue::new_unbound(c"rrxe_deferred", pollers.max(1))?,
            faults: OwnedQueue::new_unbound(c"rrxe_faults", FAULT_THREADS)?,
            softirq_time: SoftirqTime::new(softirq_percent)?,
            owners: Owners::new(c"rrxe_release", limits::SLEEPERS)?,
            accounts: Accounts::new(pollers.max(1))?,
            guests: GuestLimits::new()?,
            pollers: OwnedQueue::new_unbound(c"rrxe_poll", pollers.max(1))?,
            waiting: Atomic::new(0),
            idle_limit: i64::from(idle_limit_us).saturating_mul(1_000),
            watchdog: Delta::from_micros(i64::from(
                idle_limit_us.clamp(MIN_WATCHDOG, MAX_WATCHDOG),
            )),
        };
        Ok(Arc::new(workqueues, GFP_KERNEL)?)
    }

    /// Lets a poller serve a page, after those that wait already. Any context.
    pub(crate) fn poll(&self, doorbells: Arc<Doorbells>) {
        self.waiting.fetch_add(1, Relaxed);
        // Already queued is as good: it has not run yet.
        if self.pollers.enqueue::<_, 0>(doorbells).is_err() {
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
        self.pollers.flush();
        self.faults.flush();
        self.owners.flush();
        self.softirq.flush();
        self.deferred.flush();
        // Those may have queued one of these again.
        self.softirq.flush();
    }
}
