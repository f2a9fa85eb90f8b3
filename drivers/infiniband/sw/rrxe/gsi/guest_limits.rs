// SPDX-License-Identifier: GPL-2.0

//! The limits on MAD requests that hold for all guest networks together: network namespaces whose
//! administrators are not the host's.
//!
//! Such an administrator can have ib_core fail to find even the host's own address. No account of
//! the administrator is charged for the work that ib_core then does. So one limit holds for all
//! networks together: an administrator with many networks and devices must not exceed it.

use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    time::{Instant, Monotonic},
};
use rdma::{device::gid::Gid, new_irq_spinlock, support::sync::IrqSpinLock};

use super::rate::{Pace, Paces, Rate};
use crate::device::link::Link;

/// Rates of requests other than CM messages. ib_mad itself responds to many of these. If it does
/// not find the address of a sender, it writes a line to the log each time, without a limit
/// (`agent_send_response()`, agent.c).
///
/// Each rate is a burst, and the requests a second. Senders are divided by a hash of their
/// addresses. The senders of one hash share the rate `extra`, all senders share the rate `total`,
/// and no sender has a guaranteed rate (`rate.rs`).
const REQUESTS: Paces = Paces {
    guaranteed: Pace::new(0, 1),
    extra: Pace::new(64, 16),
    total: Pace::new(256, 32),
};

/// The limits on MAD requests of all guest networks together, and their present use.
#[pin_data]
pub(crate) struct GuestLimits {
    /// Time when the module was loaded.
    epoch: Instant<Monotonic>,
    /// Rate of requests other than CM messages.
    #[pin]
    requests: IrqSpinLock<Rate>,
    /// Time of ib_cm's last response to a probe (`probe.rs`) on each CPU, in nanoseconds since
    /// `epoch`.
    last_response: KVVec<Atomic<i64>>,
}

impl GuestLimits {
    /// Creates the limits, before any request has come. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Pin<KBox<Self>>> {
        let requests = Rate::new(REQUESTS)?;
        let mut last_response = KVVec::new();
        for _ in 0..nr_cpu_ids() {
            last_response.push(Atomic::new(i64::MIN), GFP_KERNEL)?;
        }
        KBox::pin_init(
            pin_init!(Self {
                epoch: Instant::now(),
                requests <- new_irq_spinlock!(requests, "rrxe_guests"),
                last_response,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether one more request of `sender`, other than a CM message, may be taken. Any
    /// context.
    pub(super) fn admits(&self, sender: Gid) -> bool {
        let now = self.now();
        self.requests.lock().admits(sender, now)
    }

    /// Returns the time in nanoseconds since `epoch`.
    fn now(&self) -> i64 {
        self.epoch.elapsed().as_nanos()
    }

    /// Takes a CM message of `sender` that `link` received, on the CM budget of the link's
    /// network. Returns the number of the probe behind the message, or `None` if the message
    /// must be dropped. Any context.
    pub(super) fn take(&self, sender: Gid, link: &Link) -> Option<u32> {
        let now = self.now();
        link.context().cm_budget.take(sender, link.id(), now)
    }

    /// Ends the probe with this number of a device of `link`. Called in the work item of ib_core
    /// that responds to the probe.
    pub(super) fn end(&self, link: &Link, number: u32) {
        let now = self.now();
        let cpu = self.last_response.get(CpuId::current().as_u32() as usize);
        let last = cpu.map_or(i64::MIN, |last_response| last_response.xchg(now, Relaxed));
        link.context().cm_budget.end(number, last, now);
    }
}

#[kunit_tests(rrxe_gsi_guest_limits)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_are_taken_of_all_senders_together() -> Result {
        let guests = GuestLimits::new()?;
        let senders = (0..=255).map(|host| Gid::from_ipv4([10, 0, 0, host]));
        let admitted = senders
            .flat_map(|sender| [sender; 8])
            .filter(|sender| guests.admits(*sender))
            .count();
        // The burst, and the requests that the rate adds while the test runs, for a second at most.
        assert!((256..=288).contains(&admitted));
        Ok(())
    }
}
