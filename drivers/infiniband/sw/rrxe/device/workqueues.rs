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

/// The module's work queues. They run QPs, and serve doorbells and page faults, if neither a system
/// call nor a packet does.
pub(crate) struct Workqueues {
    /// Runs QPs in softirq: those of in-kernel consumers, and processes' QPs within the time of
    /// `softirq_time`. Also notifies armed CQs of in-kernel consumers.
    pub(crate) softirq: OwnedQueue,
    /// Runs QPs of processes in threads if a run left work to do, moves the QPs of a CQ that
    /// overflowed to the error state, and serves the last doorbells of a page whose polling the
    /// watchdog has ended (`doorbells/watchdog.rs`). An administrator sets the number and the CPUs
    /// of the threads by `/sys/devices/virtual/workqueue/rrxe_deferred`.
    pub(crate) deferred: OwnedQueue,
    /// Hands page faults on on-demand regions to threads of the processes that own the memory, and
    /// queries the speed of links. Never runs the engine of a QP, since its threads are not limited
    /// per user.
    pub(crate) faults: OwnedQueue,
    /// Time that softirqs may spend on QPs of processes. The remaining work is left to the poller
    /// of the process's doorbell page or, if the page is not polled, to `deferred`.
    pub(crate) softirq_time: SoftirqTime,
    /// Releases the remains of ended chunks of on-demand memory. Ends the chunks and the fault
    /// threads of a process whose regions have ended (`rust/rdma/memory/odp/owner.rs`). Its threads
    /// may sleep, and a process occupies one at a time.
    pub(crate) owners: Arc<Owners>,
    /// Accounts of users and memory cgroups, which limit their threads of `deferred` and `owners`,
    /// their objects, events and bytes (`limits/accounts.rs`).
    pub(crate) accounts: Arc<Accounts>,
    /// Limits on the MAD requests that all guest networks together take in, and the times of
    /// ib_cm's last responses to probes (`gsi/guest_limits.rs`). Guest networks are the network
    /// namespaces that user namespaces other than the initial one own.
    pub(crate) guests: Pin<KBox<GuestLimits>>,
    /// Runs the pollers of doorbell pages. An administrator sets the number, the CPUs, the nice
    /// value and the affinity scope of the threads by `/sys/devices/virtual/workqueue/rrxe_poll`.
    pollers: OwnedQueue,
    /// Number of doorbell pages that wait for a thread of `pollers`.
    waiting: Atomic<i32>,
    /// Time after which polling of a page ends if nothing was posted, in nanoseconds. Zero: no page
    /// is ever polled.
    pub(crate) idle_limit: i64,
    /// Shortest period of the watchdogs of doorbell pages (`doorbells/watchdog.rs`).
    pub(crate) watchdog_period: Delta,
}

/// Number of threads of `rrxe_faults`. Its items wait for the turn lock of a QP (`qp/turn.rs`), for
/// RTNL, or for the driver of a network device.
const FAULT_THREADS: u32 = 16;

/// Lower limit of [`Workqueues::watchdog_period`], in microseconds: a poller is given at least this
/// time to get a CPU.
const MIN_WATCHDOG_PERIOD_US: u32 = 200;
/// Upper limit of [`Workqueues::watchdog_period`], in microseconds.
const MAX_WATCHDOG_PERIOD_US: u32 = 1_000_000;

impl Workqueues {
    /// Creates the work queues. At most `pollers` doorbell pages are polled at a time, each until
    /// nothing was posted for `idle_limit_us` microseconds. No page is ever polled if either is
    /// zero. `rrxe_deferred` has `pollers` threads, too, and at least one. Softirqs spend at most
    /// `softirq_percent` of a CPU's time on processes' QPs. Process context.
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
            owners: Owners::new(c"rrxe_release", limits::MAX_RELEASE_THREADS)?,
            accounts: Accounts::new(pollers.max(1))?,
            guests: GuestLimits::new()?,
            pollers: OwnedQueue::new_unbound(c"rrxe_poll", pollers.max(1))?,
            waiting: Atomic::new(0),
            idle_limit: i64::from(idle_limit_us).saturating_mul(1_000),
            watchdog_period: Delta::from_micros(i64::from(
                idle_limit_us.clamp(MIN_WATCHDOG_PERIOD_US, MAX_WATCHDOG_PERIOD_US),
            )),
        };
        Ok(Arc::new(workqueues, GFP_KERNEL)?)
    }

    /// Queues the poller of a page behind those that wait already. Any context.
    pub(crate) fn poll(&self, doorbells: Arc<Doorbells>) {
        self.waiting.fetch_add(1, Relaxed);
        // If the item is queued already, it has not run yet and will see all doorbells.
        if self.pollers.enqueue::<_, 0>(doorbells).is_err() {
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that the item of a page has begun to run, so the page no longer waits.
    pub(crate) fn poller_started(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Returns whether pages wait for a thread of `pollers`. A hint: it may change at any time.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Waits until all queued items have run. Process context; sleeps.
    pub(crate) fn flush(&self) {
        // Items of `pollers` and `faults` queue items of the other queues, so the other queues are
        // flushed after them.
        self.pollers.flush();
        self.faults.flush();
        self.owners.flush();
        self.softirq.flush();
        self.deferred.flush();
        // Items of `deferred` may have queued items of `softirq` again.
        self.softirq.flush();
    }
}
