// SPDX-License-Identifier: GPL-2.0

//! The number of CM messages of a device that wait in ib_cm's queue, and the probes that measure
//! it.
//!
//! That queue has no limit (`cm_recv_handler()`, cm.c), and the CM messages in it are charged to no
//! user. A user can stop the queue, by stopping one of its own threads within a call that holds a
//! lock for which a work item waits (`ucma_get_event()`, ucma.c). So when [`BATCH`] CM messages
//! have come since the last probe, the next one is followed by a probe: a request of rrxe's own, to
//! which ib_cm responds once it has handled the message (`probe.rs`). At most [`PLACES`] probes may
//! be without responses. While a probe is due and has no free place, no CM message is taken.
//!
//! The probe has the same destination address as the CM message before it, which the sender of that
//! message chose. ib_core does not respond if it does not find that address: the address may be
//! about to go, or may belong to a network device that is down. So each address may have only a few
//! of the places. When an address goes, the places of its probes are freed, at once or, if many
//! addresses have gone recently, a few minutes later.
//!
//! Each CPU has a queue of its own, and one of these queues may be stopped while the others go on.
//! So the response to one probe says nothing about the other probes. Each keeps its place until its
//! own response comes, or until its time is over.

use kernel::{
    prelude::*,
    time::{Instant, Monotonic},
};
use rdma::{device::gid::Gid, new_irq_spinlock, support::sync::IrqSpinLock};

use super::senders::NUMBER_BITS;

/// Number of CM messages from one probe to the next.
const BATCH: u32 = 256;
/// Maximum number of a device's probes without responses.
const PLACES: usize = 16;
/// Maximum number of probes without responses to one address.
const MAX_PER_ADDRESS: usize = 2;
/// Time after which a probe is forgotten, in nanoseconds. A probe may also be lost because memory
/// is short. The time doubles for each probe that was forgotten before, up to half an hour.
const TIMEOUT: i64 = 16_000_000_000;
/// Maximum number of these doublings.
const DOUBLINGS: u32 = 7;
/// Time in nanoseconds after which a forgotten probe no longer counts, though its response has not
/// come.
const FORGOTTEN_FADES: i64 = 3_600_000_000_000;
/// Number of probes whose places are freed at once when their addresses go.
const MAX_GONE: u32 = 64;
/// Time in nanoseconds after which one such probe no longer counts.
const GONE_FADES: i64 = 64_000_000_000;
/// Time in nanoseconds for which further such probes keep their places.
const GONE_KEEPS: i64 = 256_000_000_000;

/// Count of the device's CM messages in ib_cm's queue, and the probes behind them.
#[pin_data]
pub(crate) struct CmQueue {
    /// Time when the device was created.
    epoch: Instant<Monotonic>,
    #[pin]
    state: IrqSpinLock<State>,
}

/// A probe without response.
#[derive(Clone, Copy)]
struct Probe {
    /// Number of the probe, which the stand-in for its sender carries.
    number: u32,
    /// Destination address of the probe.
    address: Gid,
    /// Time when the probe is forgotten, in nanoseconds.
    until: i64,
    /// Whether the address has gone, so that no response will come.
    is_gone: bool,
}

/// A count that falls by one each period.
struct Fading {
    count: u32,
    /// Length of a period, in nanoseconds.
    period: i64,
    /// Time when the present period began, in nanoseconds.
    since: i64,
}

impl Fading {
    /// Creates a count of zero.
    const fn new(period: i64) -> Self {
        Self {
            count: 0,
            period,
            since: 0,
        }
    }

    /// Returns the count at the time `now`.
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

    /// Adds `more` to the count at the time `now`.
    fn add(&mut self, more: u32, now: i64) {
        if self.at(now) == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(more);
    }

    /// Takes one off the count. Returns whether it was more than zero.
    fn take(&mut self) -> bool {
        let had_one = self.count > 0;
        self.count = self.count.saturating_sub(1);
        had_one
    }
}

/// State of a device's probes, under the lock `rrxe_cm_queue`.
struct State {
    /// Number of CM messages since the last probe.
    since: u32,
    /// Number of the next probe.
    next: u32,
    /// Number of probes that were forgotten.
    forgotten: Fading,
    /// Number of probes whose places were freed because their addresses had gone.
    gone: Fading,
    /// Probes without responses.
    probes: [Option<Probe>; PLACES],
}

impl State {
    const fn new() -> Self {
        Self {
            since: 0,
            next: 0,
            forgotten: Fading::new(FORGOTTEN_FADES),
            gone: Fading::new(GONE_FADES),
            probes: [None; PLACES],
        }
    }

    /// Counts a CM message. Returns whether a probe must follow it.
    fn count(&mut self) -> bool {
        let is_due = self.since >= BATCH;
        self.since = self.since.saturating_add(u32::from(!is_due));
        is_due
    }

    /// Returns the number of a new probe for `address` at the time `now`, or `None` while too many
    /// probes have no response.
    fn take(&mut self, address: Gid, now: i64) -> Option<u32> {
        let forgotten = self.remove(|probe| probe.until <= now && !probe.is_gone);
        if forgotten > 0 {
            self.forgotten.add(forgotten, now);
        }
        self.remove(|probe| probe.until <= now);
        let of_address = |probe: &&Probe| probe.address == address;
        if self.probes.iter().flatten().filter(of_address).count() >= MAX_PER_ADDRESS {
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

    /// Removes the probes for which `unwanted` returns true. Returns their number.
    fn remove(&mut self, unwanted: impl Fn(&Probe) -> bool) -> u32 {
        let mut count = 0_u32;
        for place in &mut self.probes {
            if place.take_if(|probe| unwanted(probe)).is_some() {
                count = count.saturating_add(1);
            }
        }
        count
    }

    /// Ends a probe whose response has come, even after it was forgotten.
    fn end(&mut self, number: u32) {
        if self.remove(|probe| probe.number == number) == 0 && !self.forgotten.take() {
            self.gone.take();
        }
    }

    /// Frees the places of an address that goes at the time `now`. If many places were freed so
    /// recently, marks them to be freed after [`GONE_KEEPS`].
    fn forget_address(&mut self, address: Gid, now: i64) {
        if self.gone.at(now) >= MAX_GONE {
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

    /// Gives back the number of a probe that was not sent. The probe stays due.
    fn give_back(&mut self, number: u32) {
        self.remove(|probe| probe.number == number);
    }
}

impl CmQueue {
    /// Initialises the count of a device that has no CM message in the queue.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            epoch: Instant::now(),
            state <- new_irq_spinlock!(State::new(), "rrxe_cm_queue"),
        })
    }

    /// Counts a CM message that is taken. Returns whether a probe must follow it. Any context.
    pub(super) fn count(&self) -> bool {
        self.state.lock().count()
    }

    /// Returns the number of a new probe that follows a CM message to `address`, or `None` while
    /// too many probes have no response. Any context.
    pub(super) fn take(&self, address: Gid) -> Option<u32> {
        let now = self.epoch.elapsed().as_nanos();
        self.state.lock().take(address, now)
    }

    /// Restarts the count, because a probe follows a CM message. The next probe is due after
    /// [`BATCH`] others. Any context.
    pub(super) fn restart(&self) {
        self.state.lock().since = 0;
    }

    /// Resets the state, before ib_core enables the device, perhaps in another namespace. ib_cm's
    /// queue has no CM message of the device then. Any context.
    pub(crate) fn forget(&self) {
        *self.state.lock() = State::new();
    }

    /// Frees the places of an address that the device no longer has, or marks them to be freed
    /// later: ib_core responds to no probe with this address any more. Any context.
    pub(crate) fn forget_address(&self, address: Gid) {
        let now = self.epoch.elapsed().as_nanos();
        self.state.lock().forget_address(address, now);
    }

    /// Gives back the number of a probe that was not sent. Any context.
    pub(super) fn give_back(&self, number: u32) {
        self.state.lock().give_back(number);
    }

    /// Ends the probe with this number: its response has come. Any context.
    pub(super) fn end(&self, number: u32) {
        self.state.lock().end(number);
    }
}

#[kunit_tests(rrxe_gsi_cm_queue)]
mod tests {
    use super::*;

    const ONE: Gid = Gid([1; 16]);
    const MANY: u32 = 100_000;

    /// Offers `count` CM messages to `address` at the time `now`. Returns how many of them are
    /// taken, and the numbers of the probes behind them.
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
    fn no_message_is_taken_while_a_third_probe_is_due() -> Result {
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
    fn an_address_without_responses_leaves_places_to_others() -> Result {
        let mut state = State::new();
        take(&mut state, ONE, MANY, 0)?;
        // CM messages to the first address come in between.
        for _ in 0..MANY {
            take(&mut state, ONE, 1, 0)?;
            let (taken, probes) = take(&mut state, Gid([2; 16]), 1, 0)?;
            assert_eq!(taken, 1);
            for probe in &probes {
                state.end(*probe);
            }
        }
        Ok(())
    }

    #[test]
    fn messages_without_responses_are_few() -> Result {
        let (mut state, mut taken) = (State::new(), 0);
        // A little more than a day, in steps of 16 seconds.
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
    fn responses_of_other_cpus_do_not_fill_the_queue_of_one() -> Result {
        let (mut state, mut taken) = (State::new(), 0);
        // A day, in steps of a minute. Every fourth probe goes to a CPU whose queue is stopped.
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
    fn late_responses_restore_the_timeout() -> Result {
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
        // An hour, in steps of a second.
        for second in 0..3600 {
            for address in 0..4 {
                let (address, now) = (Gid([address; 16]), second * 1_000_000_000);
                taken += take(&mut state, address, 2 * BATCH, now)?.0;
                state.forget_address(address, now);
            }
        }
        assert!(taken < 400 * BATCH);
        // Addresses that stay are not blocked for longer.
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
    fn responses_keep_the_queue_going() -> Result {
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
