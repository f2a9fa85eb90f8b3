// SPDX-License-Identifier: GPL-2.0

//! The budget of ib_cm's time that each guest network has. A guest network is a network namespace
//! whose administrator is not the host's.
//!
//! A request here is a message to ib_cm behind which rrxe queues a probe (`gsi.rs`). The request is
//! pending until ib_cm responds to the probe.
//!
//! The administrator of a guest network influences how long ib_cm takes for a request. ib_core gets
//! an address of this host as the sender's address (`senders.rs`), and looks it up: up to twice for
//! a request, and once for the probe. It sleeps for at most a second in each look-up
//! (`rdma_addr_find_l2_eth_by_grh()`, addr.c). The duration of a look-up depends on the network's
//! routing rules. Meanwhile all other messages in ib_cm's queue of the same CPU wait, also those of
//! other networks (`ib_cm_init()`, cm.c).
//!
//! So a network may have [`MAX_PENDING`] pending requests, and further ones after a delay only. It
//! pays a price for each request. The price is the time after which the network's budget has
//! recovered: [`CHEAP_PRICE`] times the first [`CHEAP_TIME`] that ib_cm took for the request, and
//! [`PRICE`] times the rest. So the network has half of a CPU's time for quick requests, and little
//! more than a fifth for requests that take [`MAX_CHARGE`]. It may spend [`BUDGET`] at once. While
//! the budget is used up, the network's requests are dropped. The requests of other networks are in
//! the same queue, and have budgets of their own.
//!
//! One address of a peer may take the last of the [`MAX_PENDING`] places only once a second. So
//! the place is left to other addresses. A peer with many addresses can take every place.
//!
//! ib_cm has handled a request when it responds to the probe behind the request. The time charged
//! for the request ends then. It begins when the request was taken, or when the same CPU responded
//! to the previous probe, whichever is later. So it leaves out the time that ib_cm took for other
//! networks' requests, if ib_cm has responded to their probes. It includes delays that rrxe cannot
//! attribute to a network: by requests to whose probes ib_cm has not responded, and by users who
//! stop ib_cm's work items. So a network pays for at most [`MAX_CHARGE`] of a request. A network
//! that has made no request recently has a budget for that much.
//!
//! A probe may get no response: memory may be short, the address may not be found, or ib_cm may be
//! stopped. So a network with [`MAX_PENDING`] pending requests or more may still make further ones,
//! the first after [`FURTHER_DELAY`], and each next one after twice the delay of the one before.

use kernel::prelude::*;
use rdma::{device::gid::Gid, new_irq_spinlock, support::sync::IrqSpinLock};

use super::{
    rate::{Pace, Paces, Rate},
    senders::NUMBER_BITS,
};
use crate::net::address_owners::LinkId;

/// Number of pending requests from which on a network must wait before it makes another one.
const MAX_PENDING: usize = 3;
/// Maximum number of pending requests that are remembered. Because of [`FURTHER_DELAY`], a network
/// whose probes get no responses makes no more requests than this within [`LIFETIME`].
const REMEMBERED: usize = 10;
/// Time after which a pending request is forgotten, in nanoseconds.
const LIFETIME: i64 = 600_000_000_000;
/// Time between the last of [`MAX_PENDING`] pending requests and a further one, in nanoseconds.
/// Doubled for each pending request beyond [`MAX_PENDING`].
const FURTHER_DELAY: i64 = 16_000_000_000;
/// Length of the first part of each request's time, in nanoseconds. This part has a lower price,
/// because on a busy host any request may take this long.
const CHEAP_TIME: i64 = 200_000_000;
/// Price of the first part of a request's time: the time until a network has recovered the budget
/// for the part, as a multiple of the part.
const CHEAP_PRICE: i64 = 2;
/// Maximum time that a network pays for a request, in nanoseconds: ib_core sleeps for at most a
/// second in each of two look-ups for the request, and in one for the probe.
const MAX_CHARGE: i64 = 3_000_000_000;
/// Price of the rest of a request's time: the time until a network has recovered the budget for
/// the rest, as a multiple of the rest.
const PRICE: i64 = 5;
/// Size of a network's budget of ib_cm's time at [`PRICE`], in nanoseconds.
const BUDGET: i64 = 3_000_000_000;

/// Rate at which one address of a peer may have the last of the [`MAX_PENDING`] places. Addresses
/// with the same hash share it (`rate.rs`).
const LAST_PLACE: Paces = Paces {
    guaranteed: Pace::new(1, 1),
    extra: Pace::new(0, 1),
    total: Pace::new(0, 1),
};

/// A guest network's pending requests, and its budget.
#[pin_data]
pub(crate) struct CmBudget {
    #[pin]
    state: IrqSpinLock<State>,
}

/// A pending request.
struct Request {
    /// Number of the probe.
    probe: u32,
    /// Link that received the request.
    link: LinkId,
    /// Time when the request was taken, in nanoseconds.
    since: i64,
}

/// State of a budget, under the lock `rrxe_cm_budget`.
struct State {
    /// Number of the next probe.
    next: u32,
    /// Pending requests.
    requests: [Option<Request>; REMEMBERED],
    /// Time before which the network's requests are dropped, in nanoseconds.
    blocked_until: i64,
    /// Rate of each address's use of the last of the [`MAX_PENDING`] places.
    last_place: Rate,
}

impl State {
    fn new() -> Result<Self> {
        Ok(Self {
            next: 0,
            requests: [const { None }; REMEMBERED],
            blocked_until: i64::MIN,
            last_place: Rate::new(LAST_PLACE)?,
        })
    }

    /// Takes a request of `sender` that `link` received at the time `now`. Returns the number of
    /// the probe behind it, or `None` if the request must be dropped.
    fn take(&mut self, sender: Gid, link: LinkId, now: i64) -> Option<u32> {
        self.remove(|request| now.saturating_sub(request.since) >= LIFETIME);
        if now < self.blocked_until || !self.may_request(sender, now) {
            return None;
        }
        let place = self.requests.iter_mut().find(|place| place.is_none())?;
        let probe = self.next;
        *place = Some(Request {
            probe,
            link,
            since: now,
        });
        self.next = probe.wrapping_add(1) % (1 << NUMBER_BITS);
        Some(probe)
    }

    /// Returns whether the network may make a request at the time `now`. With fewer than
    /// [`MAX_PENDING`] pending requests it may, but if only the last place is left, `sender` must
    /// keep within [`LAST_PLACE`]. With more, the latest one must have been taken long enough ago.
    fn may_request(&mut self, sender: Gid, now: i64) -> bool {
        let requests = || self.requests.iter().flatten();
        let latest = requests().map(|request| request.since).max();
        let count = requests().count();
        match (count.checked_sub(MAX_PENDING), latest) {
            (Some(further), Some(latest)) => {
                now.saturating_sub(latest) >= FURTHER_DELAY << further.min(REMEMBERED)
            }
            _ => count < MAX_PENDING - 1 || self.last_place.admits(sender, now),
        }
    }

    /// Ends the request with the number `probe`, whose probe got its response at the time `now`.
    /// The same CPU last responded to another probe, of any network, at the time `last`.
    fn end(&mut self, probe: u32, last: i64, now: i64) {
        let has_number = |request: &mut Request| request.probe == probe;
        let mut places = self.requests.iter_mut();
        if let Some(request) = places.find_map(|place| place.take_if(has_number)) {
            self.charge(now.saturating_sub(request.since.max(last)), now);
        }
    }

    /// Charges the network for a request that took `took` nanoseconds until `now`.
    fn charge(&mut self, took: i64, now: i64) {
        let from = self.blocked_until.max(now.saturating_sub(BUDGET * PRICE));
        self.blocked_until = from.saturating_add(price(took));
    }

    /// Forgets requests for which `unwanted` returns true.
    fn remove(&mut self, unwanted: impl Fn(&Request) -> bool) {
        for place in &mut self.requests {
            place.take_if(|request| unwanted(request));
        }
    }
}

/// Returns the price of a request that took `took` nanoseconds: the time until its network has
/// recovered the budget for it, in nanoseconds.
fn price(took: i64) -> i64 {
    let took = took.clamp(0, MAX_CHARGE);
    let quick = took.min(CHEAP_TIME);
    let slow = took.saturating_sub(quick);
    quick
        .saturating_mul(CHEAP_PRICE)
        .saturating_add(slow.saturating_mul(PRICE))
}

impl CmBudget {
    /// Creates the budget of a network that has made no request. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<impl PinInit<Self>> {
        let state = State::new()?;
        Ok(pin_init!(Self {
            state <- new_irq_spinlock!(state, "rrxe_cm_budget"),
        }))
    }

    /// Takes a request of `sender` that `link` received at the time `now`, in nanoseconds. Returns
    /// the number of the probe behind it, or `None` if the request must be dropped. Any context.
    pub(super) fn take(&self, sender: Gid, link: LinkId, now: i64) -> Option<u32> {
        self.state.lock().take(sender, link, now)
    }

    /// Forgets the request with the number `probe`, which was taken but isn't passed to ib_core.
    /// Any context.
    pub(super) fn give_back(&self, probe: u32) {
        self.state.lock().remove(|request| request.probe == probe);
    }

    /// Ends the request with the number `probe`, whose probe got its response at the time `now`.
    /// The same CPU last responded to another probe, of any network, at the time `last`, which is
    /// `i64::MIN` if there was none. Times are in nanoseconds. Any context.
    pub(super) fn end(&self, probe: u32, last: i64, now: i64) {
        self.state.lock().end(probe, last, now);
    }

    /// Forgets the requests that `link` received. Called while ib_core has the link's device
    /// disabled. ib_core keeps no message of a disabled device in ib_cm's queue
    /// (`cm_remove_one()`, cm.c). Any context.
    pub(crate) fn forget(&self, link: LinkId) {
        self.state.lock().remove(|request| request.link == link);
    }
}

#[kunit_tests(rrxe_gsi_cm_budget)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const HOUR: i64 = 3_600 * SECOND;
    /// Time of the last response of a CPU that has responded to no probe.
    const NEVER: i64 = i64::MIN;

    /// A guest network with one link.
    struct Network {
        state: State,
        link: LinkId,
    }

    impl Network {
        fn new() -> Result<Self> {
            Ok(Self {
                state: State::new()?,
                link: LinkId::default(),
            })
        }

        fn take(&mut self, now: i64) -> Option<u32> {
            self.take_of(Gid([0; 16]), now)
        }

        fn take_of(&mut self, sender: Gid, now: i64) -> Option<u32> {
            self.state.take(sender, self.link, now)
        }

        /// Takes requests until one is refused. Returns their number.
        fn fill(&mut self, now: i64) -> usize {
            core::iter::from_fn(|| self.take(now)).count()
        }
    }

    #[test]
    fn after_a_response_another_request_is_taken() -> Result {
        let mut network = Network::new()?;
        let number = network.take(5).ok_or(ENOENT)?;
        assert_eq!(network.fill(5), MAX_PENDING - 1);
        network.state.end(number, NEVER, 5 + CHEAP_TIME - 1);
        assert_eq!(network.fill(5 + CHEAP_TIME), 1);
        // A second response to the same probe frees no place.
        network.state.end(number, NEVER, 5 + CHEAP_TIME);
        assert_eq!(network.fill(5 + CHEAP_TIME), 0);
        Ok(())
    }

    /// Makes two requests, each of which takes almost all of a network's budget. Returns the time
    /// until which further requests are dropped.
    fn overdraw(network: &mut Network) -> Result<i64> {
        for round in 1..=2 {
            let number = network.take((round - 1) * MAX_CHARGE).ok_or(ENOENT)?;
            network.state.end(number, NEVER, round * MAX_CHARGE);
        }
        Ok(MAX_CHARGE - BUDGET * PRICE + 2 * price(MAX_CHARGE))
    }

    #[test]
    fn a_network_is_blocked_for_its_requests() -> Result {
        let mut network = Network::new()?;
        let end = overdraw(&mut network)?;
        assert_eq!(network.take(end - 1), None);
        assert_eq!(network.fill(end), MAX_PENDING);
        Ok(())
    }

    #[test]
    fn one_long_request_does_not_block_a_network() -> Result {
        let mut network = Network::new()?;
        for round in 0..3 {
            let now = round * HOUR;
            let number = network.take(now).ok_or(ENOENT)?;
            network.state.end(number, NEVER, now + LIFETIME);
            assert_eq!(network.fill(now + LIFETIME), MAX_PENDING);
            network.state.remove(|_| true);
        }
        Ok(())
    }

    /// Returns the share of a CPU's time that a network gets in an hour, in thousandths. Each of
    /// its requests takes `each` nanoseconds.
    fn cpu_share(each: i64) -> Result<i64> {
        let (mut network, mut taken, mut now, mut last) = (Network::new()?, 0, 0, NEVER);
        while now < HOUR {
            if let Some(number) = network.take(now) {
                now += each;
                taken += each;
                network.state.end(number, last, now);
                last = now;
            } else {
                now += SECOND / 100;
            }
        }
        Ok(taken * 1_000 / HOUR)
    }

    #[test]
    fn a_network_gets_a_part_of_the_time() -> Result {
        for (milliseconds, least, most) in [
            (1, 450, 505),
            (50, 450, 505),
            (200, 450, 505),
            (250, 350, 390),
            (500, 250, 270),
            (1_000, 220, 235),
            (3_000, 200, 215),
            (10_000, 680, 700),
        ] {
            let permille = cpu_share(milliseconds * SECOND / 1_000)?;
            assert!((least..=most).contains(&permille));
        }
        Ok(())
    }

    #[test]
    fn three_requests_are_taken_at_once() -> Result {
        let mut network = Network::new()?;
        assert_eq!(network.fill(0), 3);
        assert_eq!(network.fill(16 * SECOND), 1);
        assert_eq!(network.fill(600 * SECOND - 1), 1);
        // The first three requests are forgotten.
        assert_eq!(network.fill(600 * SECOND), 1);
        assert_eq!(REMEMBERED, 10);
        Ok(())
    }

    #[test]
    fn a_response_ends_its_own_request() -> Result {
        let mut network = Network::new()?;
        network.state.next = (1 << 20) - 1;
        let first = network.take(0).ok_or(ENOENT)?;
        let second = network.take(1).ok_or(ENOENT)?;
        assert_eq!((first, second), ((1 << 20) - 1, 0));
        network.state.end(second, NEVER, 2);
        let left = || network.state.requests.iter().flatten();
        assert!(left().map(|request| request.probe).eq([first]));
        Ok(())
    }

    #[test]
    fn a_network_does_not_pay_for_others_before_it() -> Result {
        let mut network = Network::new()?;
        let number = network.take(0).ok_or(ENOENT)?;
        // The same CPU responded to another network's probe meanwhile.
        network.state.end(number, HOUR, HOUR + CHEAP_TIME - 1);
        assert_eq!(network.fill(HOUR + CHEAP_TIME), MAX_PENDING);
        Ok(())
    }

    #[test]
    fn quick_requests_may_use_half_of_the_time() -> Result {
        let mut network = Network::new()?;
        for round in 0..10_000 {
            let now = round * CHEAP_TIME * 2;
            let number = network.take(now).ok_or(ENOENT)?;
            network.state.end(number, NEVER, now + CHEAP_TIME);
        }
        Ok(())
    }

    #[test]
    fn one_peer_leaves_a_place_to_others() -> Result {
        let (mut network, mut taken) = (Network::new()?, 0);
        for round in 0..100 {
            let now = i64::from(round) * SECOND / 10;
            network.state.remove(|_| true);
            network.fill(now);
            taken += u32::from(network.take_of(Gid([100 + round; 16]), now).is_some());
        }
        // The first peer has the place once a second, and some other peers are in the hash bucket
        // of a peer that has had the place.
        assert!((70..=95).contains(&taken));
        Ok(())
    }

    #[test]
    fn without_responses_each_further_request_waits_longer() -> Result {
        let (mut network, mut now) = (Network::new()?, 0);
        assert_eq!(network.fill(now), MAX_PENDING);
        for doublings in 0..5 {
            now += FURTHER_DELAY << doublings;
            assert_eq!(network.fill(now - 1), 0);
            assert_eq!(network.fill(now), 1);
        }
        Ok(())
    }

    #[test]
    fn requests_without_responses_stay_few() -> Result {
        let (mut network, mut taken) = (Network::new()?, 0);
        // A day, in steps of a second.
        for second in 0..24 * 3_600 {
            taken += network.fill(second * SECOND);
        }
        let periods = (24 * HOUR / LIFETIME) as usize;
        assert!((periods..=periods * REMEMBERED).contains(&taken));
        Ok(())
    }

    #[test]
    fn late_responses_are_charged() -> Result {
        let (mut network, mut numbers, mut now) = (Network::new()?, KVec::new(), 0);
        while now < LIFETIME {
            if let Some(number) = network.take(now) {
                numbers.push(number, GFP_KERNEL)?;
            }
            now += SECOND;
        }
        now -= SECOND;
        let first = now;
        for number in &numbers {
            let last = now;
            now += SECOND;
            network.state.end(*number, last, now);
        }
        let paid = numbers.len() as i64 * price(SECOND);
        let end = first + SECOND + paid - BUDGET * PRICE;
        assert_eq!(network.take(end - 1), None);
        assert_eq!(network.fill(end), MAX_PENDING);
        Ok(())
    }

    #[test]
    fn a_link_that_is_gone_keeps_no_place() -> Result {
        let mut network = Network::new()?;
        let link = network.link;
        for now in [0, 2 * SECOND] {
            assert_eq!(network.fill(now), MAX_PENDING);
            network.state.remove(|request| request.link == link);
        }
        Ok(())
    }

    #[test]
    fn a_request_given_back_takes_no_place() -> Result {
        let mut network = Network::new()?;
        let number = network.take(0).ok_or(ENOENT)?;
        network.state.remove(|request| request.probe == number);
        assert_eq!(network.fill(0), MAX_PENDING);
        Ok(())
    }
}
