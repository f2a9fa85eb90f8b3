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
use rdma::{av::Av, gid::Gid, new_irq_spinlock, sync::IrqSpinLock, workqueue::is_in_work_item};

use super::{
    places::{Holder, Places},
    rate::{Pace, Paces, Rate},
    senders::{StandIn, PROBE_SL},
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
            network: core::ptr::from_ref(&**link.context()).addr(),
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

    /// Gives a place to a question of connection management that came by `link`, and returns the stand-in of the probe
    /// behind it. `None` while there is no place for it. Any context.
    pub(super) fn take_place(&self, link: &Link) -> Option<StandIn> {
        let now = self.now();
        let number = self.state.lock().places.take(Holder::of(link), now)?;
        Some(StandIn::Probe(number))
    }

    /// Takes a place back whose question is not asked. Any context.
    pub(super) fn give_back(&self, probe: StandIn) {
        if let StandIn::Probe(number) = probe {
            self.state.lock().places.give_back(number);
        }
    }

    /// Whether `av` leads to the stand-in of a probe, and so is for its answer. Notes that it is answered. Any context.
    ///
    /// ib_core answers in work items (`cm_work_handler()`, cm.c; `ib_mad_recv_done()`, mad.c). A process that writes to
    /// ib_umad chooses the numbers of the address itself (`ib_umad_write()`, user_mad.c), and is in none.
    pub(crate) fn take_answer(&self, av: &Av) -> bool {
        let is_answer = av.sgid == av.dgid && av.sl == PROBE_SL && is_in_work_item();
        if is_answer {
            let (now, mut state) = (self.now(), self.state.lock());
            state.places.end(av.flow_label, CpuId::current(), now);
        }
        is_answer
    }

    /// Gives the places of a link to others, whose device is unregistered: ib_core keeps nothing of it in the queue of
    /// connection management any more (`cm_remove_one()`, cm.c). Any context.
    pub(crate) fn forget(&self, link: &Link) {
        self.state.lock().places.forget(Holder::of(link));
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

    #[test]
    fn only_a_work_item_answers_a_probe() -> Result {
        let guests = Guests::new()?;
        let gid = Gid::from_ipv4([10, 0, 0, 1]);
        let answer = Av {
            dgid: gid,
            sgid: gid,
            sgid_index: 0,
            netdev_index: 1,
            network: gid.network(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            dmac: [0; 6],
            sl: PROBE_SL,
            static_rate: 0,
            port: 1,
        };
        // Tests run in a thread of their own.
        assert!(!guests.take_answer(&answer));
        Ok(())
    }
}
