// SPDX-License-Identifier: GPL-2.0

//! How many datagrams of a device wait in ib_core's queue of connection management.
//!
//! That queue has no limit (`cm_recv_handler()`, cm.c), and a datagram in it counts for nobody. A user can stop the queue: one who
//! keeps its thread from going on in a call that holds a lock of the queue's work items (`ucma_get_event()`, ucma.c). So a
//! probe (`probe.rs`) follows a datagram when [`BATCH`] of them have come since the last probe. While it is due and there is no
//! place for it, no datagram is taken.
//!
//! The probe is for the address that the datagram came to, which its sender chooses. ib_core does not answer if it does not find
//! that address: it is about to go, or is one of a network device that is down. So an address has a few of the places only, and
//! those of one that goes are free, or soon are if many had gone of late.
//!
//! Each CPU has a queue, and only one of these may stand still. So a probe that is answered says nothing of another one that
//! is not: this one is lost until its own answer comes.

use kernel::{
    prelude::*,
    time::{Instant, Monotonic},
};
use rdma::{device::gid::Gid, new_irq_spinlock, support::sync::IrqSpinLock};

use super::senders::NUMBER_BITS;

/// Datagrams from one probe to the next.
const BATCH: u32 = 256;
/// Probes that are not answered, of all addresses, and of one.
const PLACES: usize = 16;
const MOST: usize = 2;
/// Nanoseconds after which a probe is forgotten. Doubled for each that was forgotten before, up to half an hour: a probe may
/// also be lost for want of memory.
const TIMEOUT: i64 = 16_000_000_000;
const DOUBLINGS: u32 = 7;
/// Nanoseconds after which one that was forgotten counts no more, though its answer has not come.
const FADES: i64 = 3_600_000_000_000;
/// How many probes whose addresses go free their places at once, and nanoseconds after which one of them counts no more.
const GONE: u32 = 64;
const GONE_FADES: i64 = 64_000_000_000;
/// Nanoseconds for which others keep their places.
const GONE_KEEPS: i64 = 256_000_000_000;

/// The datagrams of a device that wait in the queue, and the probes behind them.
#[pin_data]
pub(crate) struct CmQueue {
    /// When the device was made.
    epoch: Instant<Monotonic>,
    #[pin]
    state: IrqSpinLock<State>,
}

/// A probe that is not answered.
#[derive(Clone, Copy)]
struct Probe {
    number: u32,
    address: Gid,
    /// When it is forgotten, in nanoseconds.
    until: i64,
    /// Its address has gone: nobody answers it.
    is_gone: bool,
}

/// A count that falls by one each period.
struct Fading {
    count: u32,
    /// In nanoseconds, as `since`.
    period: i64,
    /// When the period began.
    since: i64,
}

impl Fading {
    const fn new(period: i64) -> Self {
        Self {
            count: 0,
            period,
            since: 0,
        }
    }

    /// The count at `now`.
    fn at(&mut self, now: i64) -> u32 {
        let periods = now.saturating_sub(self.since).checked_div(self.period);
        let periods = periods.unwrap_or(0).max(0);
        self.since = self
            .since
            .saturating_add(periods.saturating_mul(self.period));
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        self.count = self.count.saturating_sub(periods);
        self.count
    }

    fn add(&mut self, more: u32, now: i64) {
        if self.at(now) == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(more);
    }

    /// Takes one off. Returns whether there was one.
    fn take(&mut self) -> bool {
        let had_one = self.count > 0;
        self.count = self.count.saturating_sub(1);
        had_one
    }
}

struct State {
    /// Datagrams since the last probe.
    since: u32,
    /// The number of the next probe.
    next: u32,
    /// Probes that were forgotten.
    forgotten: Fading,
    /// Probes whose addresses have gone.
    gone: Fading,
    probes: [Option<Probe>; PLACES],
}

impl State {
    const fn new() -> Self {
        Self {
            since: 0,
            next: 0,
            forgotten: Fading::new(FADES),
            gone: Fading::new(GONE_FADES),
            probes: [None; PLACES],
        }
    }

    /// Counts a datagram. Returns whether a probe is to follow it.
    fn count(&mut self) -> bool {
        let is_due = self.since >= BATCH;
        self.since = self.since.saturating_add(u32::from(!is_due));
        is_due
    }

    /// The number of a probe for `address` at `now`. `None` while too many are not answered.
    fn take(&mut self, address: Gid, now: i64) -> Option<u32> {
        let forgotten = self.remove(|probe| probe.until <= now && !probe.is_gone);
        if forgotten > 0 {
            self.forgotten.add(forgotten, now);
        }
        self.remove(|probe| probe.until <= now);
        let of_address = |probe: &&Probe| probe.address == address;
        if self.probes.iter().flatten().filter(of_address).count() >= MOST {
            return None;
        }
        let free = self.probes.iter_mut().find(|place| place.is_none())?;
        let number = self.next;
        let timeout = TIMEOUT << self.forgotten.at(now).min(DOUBLINGS);
        *free = Some(Probe {
            number,
            address,
            until: now.saturating_add(timeout),
            is_gone: false,
        });
        self.next = number.wrapping_add(1) % (1 << NUMBER_BITS);
        Some(number)
    }

    /// Removes probes, and returns how many.
    fn remove(&mut self, unwanted: impl Fn(&Probe) -> bool) -> u32 {
        let mut count = 0_u32;
        for place in &mut self.probes {
            if place.take_if(|probe| unwanted(probe)).is_some() {
                count = count.saturating_add(1);
            }
        }
        count
    }

    /// A probe is answered, perhaps after it was forgotten.
    fn end(&mut self, number: u32) {
        if self.remove(|probe| probe.number == number) == 0 && !self.forgotten.take() {
            self.gone.take();
        }
    }

    /// Frees the places of an address that goes at `now`, or has them free later if many had gone.
    fn forget_address(&mut self, address: Gid, now: i64) {
        if self.gone.at(now) >= GONE {
            let of_address = |probe: &&mut Probe| probe.address == address && !probe.is_gone;
            for probe in self.probes.iter_mut().flatten().filter(of_address) {
                (probe.until, probe.is_gone) = (now.saturating_add(GONE_KEEPS), true);
            }
            return;
        }
        let removed = self.remove(|probe| probe.address == address);
        if removed > 0 {
            self.gone.add(removed, now);
        }
    }

    /// A probe was not sent: it is still due.
    fn give_back(&mut self, number: u32) {
        self.remove(|probe| probe.number == number);
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

    /// The number of a probe that follows a datagram to `address`. `None` while too many are not answered. Any context.
    pub(super) fn take(&self, address: Gid) -> Option<u32> {
        let now = self.epoch.elapsed().as_nanos();
        self.state.lock().take(address, now)
    }

    /// A probe follows a datagram: the next one is due after [`BATCH`] others. Any context.
    pub(super) fn restart(&self) {
        self.state.lock().since = 0;
    }

    /// ib_core has nothing of the device in the queue: it is given to its users, perhaps anew. Any context.
    pub(crate) fn forget(&self) {
        *self.state.lock() = State::new();
    }

    /// The device has no more this address, so ib_core answers no probe for it. Any context.
    pub(crate) fn forget_address(&self, address: Gid) {
        let now = self.epoch.elapsed().as_nanos();
        self.state.lock().forget_address(address, now);
    }

    /// Takes the number of a probe back that was not sent. Any context.
    pub(super) fn give_back(&self, number: u32) {
        self.state.lock().give_back(number);
    }

    /// The probe with this number is answered. Any context.
    pub(super) fn end(&self, number: u32) {
        self.state.lock().end(number);
    }
}

#[kunit_tests(rrxe_gsi_cm_queue)]
mod tests {
    use super::*;

    const ONE: Gid = Gid([1; 16]);
    const MANY: u32 = 100_000;

    /// How many of so many datagrams to `address` are taken at `now`, and the probes behind them.
    fn take(state: &mut State, address: Gid, count: u32, now: i64) -> Result<(u32, KVec<u32>)> {
        let (mut taken, mut probes) = (0, KVec::new());
        for _ in 0..count {
            if state.count() {
                let Some(number) = state.take(address, now) else {
                    continue;
                };
                probes.push(number, GFP_KERNEL)?;
                state.since = 0;
            }
            taken += 1;
        }
        Ok((taken, probes))
    }

    #[test]
    fn no_more_are_taken_than_two_probes_follow() -> Result {
        let mut state = State::new();
        let (taken, probes) = take(&mut state, ONE, MANY, 0)?;
        assert_eq!((taken, &probes[..]), (3 * BATCH + 2, &[0, 1][..]));
        assert_eq!(take(&mut state, ONE, MANY, TIMEOUT - 1)?.0, 0);
        state.end(0);
        let (taken, probes) = take(&mut state, ONE, MANY, TIMEOUT - 1)?;
        assert_eq!((taken, &probes[..]), (1 + BATCH, &[2][..]));
        Ok(())
    }

    #[test]
    fn an_address_without_answers_leaves_places_to_others() -> Result {
        let mut state = State::new();
        take(&mut state, ONE, MANY, 0)?;
        // Those to the first one are in between.
        for _ in 0..MANY {
            take(&mut state, ONE, 1, 0)?;
            let (taken, probes) = take(&mut state, Gid([2; 16]), 1, 0)?;
            assert_eq!(taken, 1);
            for answered in &probes {
                state.end(*answered);
            }
        }
        Ok(())
    }

    #[test]
    fn what_goes_on_for_ever_without_answers_ends() -> Result {
        let (mut state, mut taken) = (State::new(), 0);
        // A day, by the quarter of a minute.
        for interval in 0..4 * 24 * 60 {
            for address in 0..32 {
                taken += take(
                    &mut state,
                    Gid([address; 16]),
                    2 * BATCH,
                    interval * TIMEOUT,
                )?
                .0;
            }
        }
        assert!(taken < 1_200 * BATCH);
        Ok(())
    }

    #[test]
    fn answers_of_other_cpus_do_not_fill_the_queue_of_one() -> Result {
        let (mut state, mut taken) = (State::new(), 0);
        // A day, by the minute. Each fourth probe is to a CPU whose queue stands still.
        for minute in 0..24 * 60 {
            for address in 0..8 {
                for _ in 0..16 {
                    let now = minute * 60_000_000_000;
                    let probes = take(&mut state, Gid([address; 16]), BATCH, now)?.1;
                    for number in &probes {
                        match number % 4 {
                            0 => taken += BATCH,
                            _ => state.end(*number),
                        }
                    }
                }
            }
        }
        assert!(taken < 1_200 * BATCH);
        Ok(())
    }

    #[test]
    fn late_answers_have_all_go_on_as_before() -> Result {
        let (mut state, mut numbers) = (State::new(), KVec::new());
        for round in 0..4 {
            for number in &take(&mut state, ONE, MANY, round << 40)?.1 {
                numbers.push(*number, GFP_KERNEL)?;
            }
        }
        assert!(state.forgotten.count > 0);
        for number in &numbers {
            state.end(*number);
        }
        assert_eq!(state.forgotten.count, 0);
        Ok(())
    }

    #[test]
    fn addresses_that_come_and_go_do_not_fill_the_queue() -> Result {
        let (mut state, mut taken) = (State::new(), 0);
        // An hour, by the second.
        for second in 0..3600 {
            for address in 0..4 {
                let (address, now) = (Gid([address; 16]), second * 1_000_000_000);
                taken += take(&mut state, address, 2 * BATCH, now)?.0;
                state.forget_address(address, now);
            }
        }
        assert!(taken < 400 * BATCH);
        // Those that stay are not stopped for longer.
        let later = 3600 * 1_000_000_000 + GONE_KEEPS;
        assert_eq!(take(&mut state, ONE, BATCH, later)?.1.len(), 1);
        assert_eq!(state.forgotten.count, 0);
        Ok(())
    }

    #[test]
    fn an_address_that_goes_keeps_no_place() -> Result {
        let mut state = State::new();
        for address in 0..32 {
            take(&mut state, Gid([address; 16]), MANY, 0)?;
        }
        assert_eq!(take(&mut state, Gid([99; 16]), MANY, 0)?.0, 0);
        state.forget_address(Gid([0; 16]), 0);
        assert_eq!(take(&mut state, Gid([99; 16]), MANY, 0)?.0, 2 * (1 + BATCH));
        Ok(())
    }

    #[test]
    fn answers_keep_the_queue_going() -> Result {
        let mut state = State::new();
        for now in 0..100 {
            let (taken, probes) = take(&mut state, ONE, BATCH, now)?;
            assert_eq!(taken, BATCH);
            for number in &probes {
                state.end(*number);
            }
        }
        Ok(())
    }

    #[test]
    fn a_probe_that_was_not_sent_is_due_again() -> Result {
        let mut state = State::new();
        take(&mut state, ONE, BATCH, 0)?;
        let number = state.take(ONE, 0).ok_or(ENOENT)?;
        state.give_back(number);
        assert!(state.count());
        Ok(())
    }
}
