// SPDX-License-Identifier: GPL-2.0

//! What the devices of those networks share whose administrators are none of the host's.
//!
//! Such an administrator can make the host's own address one that ib_core does not find. What ib_core does then costs the
//! host, however many devices and networks there are.

use kernel::{
    prelude::*,
    time::{Instant, Monotonic},
};
use rdma::{gid::Gid, new_irq_spinlock, sync::IrqSpinLock};

use super::rate::{Pace, Paces, Rate};

/// Questions but those of connection management. ib_mad answers many itself, and writes a line to the log, without a limit,
/// for each sender that it does not find (`agent_send_response()`, agent.c).
const QUESTIONS: Paces = Paces {
    sure: Pace::new(0, 1),
    most: Pace::new(64, 16),
    all: Pace::new(256, 32),
};

/// What they share.
#[pin_data]
pub(crate) struct Guests {
    /// When the module was loaded.
    epoch: Instant<Monotonic>,
    #[pin]
    state: IrqSpinLock<State>,
}

struct State {
    questions: Rate,
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
        let now = self.epoch.elapsed().as_nanos();
        self.state.lock().questions.admits(sender, now)
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
