// SPDX-License-Identifier: GPL-2.0

//! How many datagrams of a device wait in ib_core's queue of connection management.
//!
//! That queue has no limit (`cm_recv_handler()`, cm.c), and a datagram in it counts for nobody. A user can stop the queue: one who
//! keeps its thread from going on in a call that holds a lock of the queue's work items (`ucma_get_event()`, ucma.c). So a
//! probe (`probe.rs`) follows a datagram when [`BATCH`] of them have come since the last probe. While [`MOST`] probes are not
//! answered, and another one is due, no datagram is taken.

use kernel::{
    prelude::*,
    time::{Instant, Monotonic},
};
use rdma::{av::Av, new_irq_spinlock, sync::IrqSpinLock, workqueue::is_in_work_item};

use super::senders::{StandIn, CHECK_SL, NUMBER_BITS};

/// Datagrams from one probe to the next.
const BATCH: u32 = 256;
/// Probes that are not answered.
const MOST: usize = 2;
/// Nanoseconds after which a probe is taken for answered: ib_core may have had no memory for the answer.
const TIMEOUT: i64 = 64_000_000_000;

/// What of a device waits in the queue.
#[pin_data]
pub(crate) struct CmQueue {
    /// When the device was made.
    epoch: Instant<Monotonic>,
    #[pin]
    state: IrqSpinLock<State>,
}

struct State {
    /// Datagrams since the last probe.
    since: u32,
    /// The number of the next probe.
    next: u32,
    /// The numbers of those that are not answered, and when they were sent, in nanoseconds.
    probes: [Option<(u32, i64)>; MOST],
}

impl State {
    const fn new() -> Self {
        Self {
            since: 0,
            next: 0,
            probes: [None; MOST],
        }
    }

    /// Counts a datagram. Returns whether a probe is to follow it.
    fn count(&mut self) -> bool {
        let is_due = self.since >= BATCH;
        self.since = self.since.saturating_add(u32::from(!is_due));
        is_due
    }

    /// The number of a probe at `now`. `None` while too many are not answered.
    fn take(&mut self, now: i64) -> Option<u32> {
        let is_free = |probe: &&mut Option<(u32, i64)>| {
            probe.is_none_or(|(_, sent)| now.saturating_sub(sent) >= TIMEOUT)
        };
        let free = self.probes.iter_mut().find(is_free)?;
        let number = self.next;
        *free = Some((number, now));
        self.next = number.wrapping_add(1) % (1 << NUMBER_BITS);
        self.since = 0;
        Some(number)
    }

    /// A probe is answered, or was not sent.
    fn end(&mut self, number: u32) {
        let is_it = |probe: &Option<(u32, i64)>| probe.is_some_and(|(own, _)| own == number);
        for probe in self.probes.iter_mut().filter(|probe| is_it(probe)) {
            *probe = None;
        }
    }
}

impl CmQueue {
    /// Nothing waits there.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            epoch: Instant::now(),
            state <- new_irq_spinlock!(State::new(), "rrxe_cm_queue"),
        })
    }

    /// Counts a datagram that is taken. Returns whether a probe is to follow it. Any context.
    pub(super) fn count(&self) -> bool {
        self.state.lock().count()
    }

    /// The stand-in of a probe that follows a datagram. `None` while too many are not answered. Any context.
    pub(super) fn take(&self) -> Option<StandIn> {
        let now = self.epoch.elapsed().as_nanos();
        let number = self.state.lock().take(now)?;
        Some(StandIn::Check(number))
    }

    /// Another probe follows a datagram. Any context.
    pub(super) fn restart(&self) {
        self.state.lock().since = 0;
    }

    /// ib_core has nothing of the device in the queue: it is given to its users, perhaps anew. Any context.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        (state.since, state.probes) = (0, [None; MOST]);
    }

    /// Takes the number of a probe back that was not sent. Any context.
    pub(super) fn give_back(&self, probe: StandIn) {
        if let StandIn::Check(number) = probe {
            self.state.lock().end(number);
        }
    }

    /// Whether `av` leads to the stand-in of a probe, as in `Guests::take_answer`. Notes that it is answered. Any context.
    pub(crate) fn take_answer(&self, av: &Av) -> bool {
        let is_answer = av.sgid == av.dgid && av.sl == CHECK_SL && is_in_work_item();
        if is_answer {
            self.state.lock().end(av.flow_label);
        }
        is_answer
    }
}

#[kunit_tests(rrxe_gsi_cm_queue)]
mod tests {
    use super::*;

    /// How many of so many datagrams are taken at `now`, and the probes behind them.
    fn take(state: &mut State, count: u32, now: i64) -> Result<(u32, KVec<u32>)> {
        let (mut taken, mut probes) = (0, KVec::new());
        for _ in 0..count {
            if state.count() {
                let Some(number) = state.take(now) else {
                    continue;
                };
                probes.push(number, GFP_KERNEL)?;
            }
            taken += 1;
        }
        Ok((taken, probes))
    }

    #[test]
    fn no_more_are_taken_than_two_probes_follow() -> Result {
        let mut state = State::new();
        let most = 3 * BATCH + 2;
        let (taken, probes) = take(&mut state, 10_000, 0)?;
        assert_eq!((taken, &probes[..]), (most, &[0, 1][..]));
        assert_eq!(take(&mut state, 10_000, TIMEOUT - 1)?.0, 0);
        state.end(0);
        let (taken, probes) = take(&mut state, 10_000, TIMEOUT - 1)?;
        assert_eq!((taken, &probes[..]), (1 + BATCH, &[2][..]));
        Ok(())
    }

    #[test]
    fn a_probe_without_an_answer_is_forgotten() -> Result {
        let mut state = State::new();
        take(&mut state, 10_000, 0)?;
        assert_eq!(take(&mut state, 10_000, TIMEOUT)?.0, 2 * (1 + BATCH));
        Ok(())
    }

    #[test]
    fn answers_keep_the_queue_going() -> Result {
        let mut state = State::new();
        for now in 0..100 {
            let (taken, probes) = take(&mut state, BATCH, now)?;
            assert_eq!(taken, BATCH);
            for number in &probes {
                state.end(*number);
            }
        }
        Ok(())
    }
}
