// SPDX-License-Identifier: GPL-2.0

//! The limits that hold for all networks together whose administrators are none of the host's.
//!
//! Such an administrator can make the host's own address one that ib_core does not find. What ib_core does then costs the
//! host, however many devices and networks there are.

use kernel::{
    cpu::CpuId,
    prelude::*,
    time::{Instant, Monotonic},
};
use rdma::{gid::Gid, new_irq_spinlock, sync::IrqSpinLock};

use super::{
    places::{Holder, Places},
    rate::{Pace, Paces, Rate},
};
use crate::link::Link;

/// Questions but those of connection management. ib_mad answers many itself, and writes a line to the log, without a limit,
/// for each sender that it does not find (`agent_send_response()`, agent.c).
const QUESTIONS: Paces = Paces {
    sure: Pace::new(0, 1),
    most: Pace::new(64, 16),
    all: Pace::new(256, 32),
};

/// The limits, and how much of them is used.
#[pin_data]
pub(crate) struct Guests {
    /// When the module was loaded.
    epoch: Instant<Monotonic>,
    #[pin]
    state: IrqSpinLock<State>,
}

struct State {
    questions: Rate,
    places: Places,
}

impl Holder {
    fn of(link: &Link) -> Self {
        Self {
            network: link.context().standing.clone(),
            link: core::ptr::from_ref(link).addr(),
        }
    }
}

impl Guests {
    /// No question has come. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Pin<KBox<Self>>> {
        let state = State {
            questions: Rate::new(QUESTIONS)?,
            places: Places::new()?,
        };
        KBox::pin_init(
            pin_init!(Self {
                epoch: Instant::now(),
                state <- new_irq_spinlock!(state, "rrxe_guests"),
            }),
            GFP_KERNEL,
        )
    }

    /// Whether one more question of `sender` is taken that is none of connection management. Any context.
    pub(super) fn admits(&self, sender: Gid) -> bool {
        let now = self.now();
        self.state.lock().questions.admits(sender, now)
    }

    fn now(&self) -> i64 {
        self.epoch.elapsed().as_nanos()
    }

    /// Takes a question of connection management that came by `link`, and returns the number of the probe behind it. `None` if it
    /// is to be dropped. Any context.
    pub(super) fn take_place(&self, link: &Link) -> Option<u32> {
        let now = self.now();
        self.state.lock().places.take(Holder::of(link), now)
    }

    /// A question that was taken is not asked. Any context.
    pub(super) fn give_back(&self, number: u32) {
        self.state.lock().places.give_back(number);
    }

    /// The probe with this number is answered. Any context.
    pub(super) fn end(&self, number: u32) {
        let (now, mut state) = (self.now(), self.state.lock());
        state.places.end(number, CpuId::current(), now);
    }

    /// Forgets the questions of a link whose device is unregistered: ib_core keeps nothing of it in the queue of
    /// connection management any more (`cm_remove_one()`, cm.c). Any context.
    pub(crate) fn forget(&self, link: &Link) {
        self.state.lock().places.forget(&Holder::of(link));
    }
}

#[kunit_tests(rrxe_gsi_guests)]
mod tests {
    use super::*;

    #[test]
    fn few_questions_are_taken_of_all_senders_together() -> Result {
        let guests = Guests::new()?;
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
