// SPDX-License-Identifier: GPL-2.0

//! The limits that hold for all networks together whose administrators are none of the host's.
//!
//! Such an administrator can make the host's own address one that ib_core does not find. What ib_core does then costs the
//! host, however many devices and networks there are.

use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    time::{Instant, Monotonic},
};
use rdma::{device::gid::Gid, new_irq_spinlock, support::sync::IrqSpinLock};

use super::rate::{Pace, Paces, Rate};
use crate::device::link::Link;

/// Questions but those of connection management. ib_mad answers many itself, and writes a line to the log, without a limit,
/// for each sender that it does not find (`agent_send_response()`, agent.c).
const QUESTIONS: Paces = Paces {
    sure: Pace::new(0, 1),
    most: Pace::new(64, 16),
    all: Pace::new(256, 32),
};

/// The limits, and how much of them is used.
#[pin_data]
pub(crate) struct GuestLimits {
    /// When the module was loaded.
    epoch: Instant<Monotonic>,
    #[pin]
    questions: IrqSpinLock<Rate>,
    /// When each CPU answered a probe last, in nanoseconds.
    answered: KVVec<Atomic<i64>>,
}

impl GuestLimits {
    /// No question has come. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Pin<KBox<Self>>> {
        let questions = Rate::new(QUESTIONS)?;
        let mut answered = KVVec::new();
        for _ in 0..nr_cpu_ids() {
            answered.push(Atomic::new(i64::MIN), GFP_KERNEL)?;
        }
        KBox::pin_init(
            pin_init!(Self {
                epoch: Instant::now(),
                questions <- new_irq_spinlock!(questions, "rrxe_guests"),
                answered,
            }),
            GFP_KERNEL,
        )
    }

    /// Whether one more question of `sender` is taken that is none of connection management. Any context.
    pub(super) fn admits(&self, sender: Gid) -> bool {
        let now = self.now();
        self.questions.lock().admits(sender, now)
    }

    fn now(&self) -> i64 {
        self.epoch.elapsed().as_nanos()
    }

    /// Takes a question of connection management of `sender` that came by `link`, and returns the number of the probe behind it. `None` if it
    /// is to be dropped. Any context.
    pub(super) fn take(&self, sender: Gid, link: &Link) -> Option<u32> {
        let now = self.now();
        link.context().cm_budget.take(sender, link.id(), now)
    }

    /// The probe with this number of a device of `link` is answered. In the work item of ib_core that answers.
    pub(super) fn end(&self, link: &Link, number: u32) {
        let now = self.now();
        let cpu = self.answered.get(CpuId::current().as_u32() as usize);
        let last = cpu.map_or(i64::MIN, |answered| answered.xchg(now, Relaxed));
        link.context().cm_budget.end(number, last, now);
    }
}

#[kunit_tests(rrxe_gsi_guests)]
mod tests {
    use super::*;

    #[test]
    fn few_questions_are_taken_of_all_senders_together() -> Result {
        let guests = GuestLimits::new()?;
        let senders = (0..=255).map(|host| Gid::from_ipv4([10, 0, 0, host]));
        let admitted = senders
            .flat_map(|sender| [sender; 8])
            .filter(|sender| guests.admits(*sender))
            .count();
        // A burst, and what comes in a second at most that the test takes.
        assert!((256..=288).contains(&admitted));
        Ok(())
    }
}
