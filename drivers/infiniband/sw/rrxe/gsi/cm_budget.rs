// SPDX-License-Identifier: GPL-2.0

//! How much of ib_core's connection management a network may use whose administrator is none of the host's.
//!
//! Such an administrator decides how long ib_core takes for a question. ib_core looks up the host's own address: twice for
//! some questions, and once for the probe behind a question. It sleeps a second at most in each look-up
//! (`addr_resolve_neigh()`, addr.c), and each look-up takes as long as the network's routing rules. Meanwhile the other
//! questions that came by the same CPU wait, those of all networks (`ib_cm_init()`, cm.c).
//!
//! So a network has [`MOST`] questions in ib_core's queue, and pays for the time of each: twice that time for the first
//! [`QUICK`], and five times for the rest. So the network has half of a CPU's time for quick questions, and little more
//! than a fifth for slow ones, and [`AT_ONCE`] of it at once. While it has no time left, its questions are dropped. The
//! questions of other networks stand in the same queue, and have budgets of their own. One address of the network's peers
//! leaves the last of its places to the others but once a second; a peer with many addresses leaves none.
//!
//! ib_core has handled a question when it answers the probe. The time of a question ends then. It begins when the question was
//! taken, or when the same CPU answered the probe before, whichever is later. So what ib_core took for other networks'
//! questions is left out, if it has answered their probes. What else may have kept ib_core is not known here: questions
//! without answers, and users who stop it. So no question costs more than [`MOST_PAID`], which a network has that has not
//! asked of late.
//!
//! A probe may stay without an answer: for want of memory, because the address is not found, or because ib_core stands still.
//! So a network whose questions have no answers may ask further ones, each after twice as long.

use kernel::prelude::*;
use rdma::{device::gid::Gid, new_irq_spinlock, support::sync::IrqSpinLock};

use super::{
    rate::{Pace, Paces, Rate},
    senders::NUMBER_BITS,
};
use crate::net::address_owners::LinkId;

/// A network with fewer questions without answers may ask at once.
const MOST: usize = 3;
/// Questions without answers that are remembered. Within [`FORGOTTEN`] no more are taken, by [`FURTHER`].
const REMEMBERED: usize = 10;
/// Nanoseconds after which a question is forgotten that has no answer.
const FORGOTTEN: i64 = 600_000_000_000;
/// Nanoseconds between [`MOST`] questions without answers and a further one, doubled for each that is further.
const FURTHER: i64 = 16_000_000_000;
/// Nanoseconds of each question that cost less: on a busy host each takes so long.
const QUICK: i64 = 200_000_000;
/// How many times longer than these a network waits until it has their time again.
const QUICK_PRICE: i64 = 2;
/// Nanoseconds of a question for which a network pays at most: ib_core sleeps for two look-ups of its own, and one for the probe.
const MOST_PAID: i64 = 3_000_000_000;
/// How many times longer than the rest of a question a network waits until it has that time again.
const PRICE: i64 = 5;
/// Nanoseconds of ib_core's time, at [`PRICE`], that a network has at once.
const AT_ONCE: i64 = 3_000_000_000;

/// How often a peer has the last place of [`MOST`].
const LAST_PLACE: Paces = Paces {
    sure: Pace::new(1, 1),
    most: Pace::new(0, 1),
    all: Pace::new(0, 1),
};

/// The questions of a network that ib_core has not answered, and the network's debt.
#[pin_data]
pub(crate) struct CmBudget {
    #[pin]
    state: IrqSpinLock<State>,
}

/// A question whose probe is not answered.
struct Question {
    /// The number of the probe.
    probe: u32,
    /// The link that it came by.
    link: LinkId,
    /// When it was taken, in nanoseconds.
    since: i64,
}

struct State {
    /// The number of the next probe.
    next: u32,
    questions: [Option<Question>; REMEMBERED],
    /// The network takes no questions before, in nanoseconds.
    rests_until: i64,
    /// The peers that have had the last of [`MOST`] places of late.
    last_place: Rate,
}

impl State {
    fn new() -> Result<Self> {
        Ok(Self {
            next: 0,
            questions: [const { None }; REMEMBERED],
            rests_until: i64::MIN,
            last_place: Rate::new(LAST_PLACE)?,
        })
    }

    /// Takes a question of `sender` that comes by `link` at `now`, and returns the number of the probe behind it. `None` if it is to be
    /// dropped.
    fn take(&mut self, sender: Gid, link: LinkId, now: i64) -> Option<u32> {
        self.remove(|question| now.saturating_sub(question.since) >= FORGOTTEN);
        if now < self.rests_until || !self.may_ask(sender, now) {
            return None;
        }
        let place = self.questions.iter_mut().find(|place| place.is_none())?;
        let probe = self.next;
        *place = Some(Question {
            probe,
            link,
            since: now,
        });
        self.next = probe.wrapping_add(1) % (1 << NUMBER_BITS);
        Some(probe)
    }

    /// Whether there are few questions without answers, or the latest one was taken long ago.
    fn may_ask(&mut self, sender: Gid, now: i64) -> bool {
        let questions = || self.questions.iter().flatten();
        let latest = questions().map(|question| question.since).max();
        let count = questions().count();
        match (count.checked_sub(MOST), latest) {
            (Some(further), Some(latest)) => {
                now.saturating_sub(latest) >= FURTHER << further.min(REMEMBERED)
            }
            _ => count < MOST - 1 || self.last_place.admits(sender, now),
        }
    }

    /// A probe is answered at `now` by a CPU that has answered before at `last`, whatever network's.
    fn end(&mut self, probe: u32, last: i64, now: i64) {
        let is_its = |question: &mut Question| question.probe == probe;
        let mut places = self.questions.iter_mut();
        if let Some(question) = places.find_map(|place| place.take_if(is_its)) {
            self.pay(now.saturating_sub(question.since.max(last)), now);
        }
    }

    /// Pays for a question that took so long until `now`.
    fn pay(&mut self, took: i64, now: i64) {
        let from = self.rests_until.max(now.saturating_sub(AT_ONCE * PRICE));
        self.rests_until = from.saturating_add(price(took));
    }

    /// Forgets questions.
    fn remove(&mut self, unwanted: impl Fn(&Question) -> bool) {
        for place in &mut self.questions {
            place.take_if(|question| unwanted(question));
        }
    }
}

/// How long a network waits until it has the time again that a question took.
fn price(took: i64) -> i64 {
    let took = took.clamp(0, MOST_PAID);
    let quick = took.min(QUICK);
    let slow = took.saturating_sub(quick);
    quick
        .saturating_mul(QUICK_PRICE)
        .saturating_add(slow.saturating_mul(PRICE))
}

impl CmBudget {
    /// That of a network without questions. Process context.
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

    /// Takes a question of `sender` that comes by `link` at `now`, in nanoseconds, and returns the number of the probe behind it. `None` if
    /// it is to be dropped. Any context.
    pub(super) fn take(&self, sender: Gid, link: LinkId, now: i64) -> Option<u32> {
        self.state.lock().take(sender, link, now)
    }

    /// A question that was taken is not asked. Any context.
    pub(super) fn give_back(&self, probe: u32) {
        self.state.lock().remove(|question| question.probe == probe);
    }

    /// A probe is answered at `now` by a CPU that has answered another one before at `last`, both in nanoseconds. Any context.
    pub(super) fn end(&self, probe: u32, last: i64, now: i64) {
        self.state.lock().end(probe, last, now);
    }

    /// Forgets the questions that came by a link whose device is unregistered: ib_core keeps nothing of it in the queue of
    /// connection management any more (`cm_remove_one()`, cm.c). Any context.
    pub(crate) fn forget(&self, link: LinkId) {
        self.state.lock().remove(|question| question.link == link);
    }
}

#[kunit_tests(rrxe_gsi_cm_budget)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const HOUR: i64 = 3_600 * SECOND;
    /// A CPU that has answered nothing.
    const NEVER: i64 = i64::MIN;

    /// A network with a link.
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

        /// Takes all that it may ask.
        fn fill(&mut self, now: i64) -> usize {
            core::iter::from_fn(|| self.take(now)).count()
        }
    }

    #[test]
    fn after_an_answer_another_question_is_taken() -> Result {
        let mut network = Network::new()?;
        let number = network.take(5).ok_or(ENOENT)?;
        assert_eq!(network.fill(5), MOST - 1);
        network.state.end(number, NEVER, 5 + QUICK - 1);
        assert_eq!(network.fill(5 + QUICK), 1);
        // A second answer gives nothing.
        network.state.end(number, NEVER, 5 + QUICK);
        assert_eq!(network.fill(5 + QUICK), 0);
        Ok(())
    }

    /// Asks two questions that take all that a network has at once, each. Returns until when it rests.
    fn overdraw(network: &mut Network) -> Result<i64> {
        for round in 1..=2 {
            let number = network.take((round - 1) * MOST_PAID).ok_or(ENOENT)?;
            network.state.end(number, NEVER, round * MOST_PAID);
        }
        Ok(MOST_PAID - AT_ONCE * PRICE + 2 * price(MOST_PAID))
    }

    #[test]
    fn a_network_rests_for_its_questions() -> Result {
        let mut network = Network::new()?;
        let end = overdraw(&mut network)?;
        assert_eq!(network.take(end - 1), None);
        assert_eq!(network.fill(end), MOST);
        Ok(())
    }

    #[test]
    fn one_question_costs_no_rest_whatever_has_kept_ib_core() -> Result {
        let mut network = Network::new()?;
        for round in 0..3 {
            let now = round * HOUR;
            let number = network.take(now).ok_or(ENOENT)?;
            network.state.end(number, NEVER, now + FORGOTTEN);
            assert_eq!(network.fill(now + FORGOTTEN), MOST);
            network.state.remove(|_| true);
        }
        Ok(())
    }

    /// The time of a CPU in an hour, in parts of a thousand, that a network has whose questions take `each` nanoseconds.
    fn share(each: i64) -> Result<i64> {
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
    fn a_network_has_a_part_of_the_time() -> Result {
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
            let share = share(milliseconds * SECOND / 1_000)?;
            assert!((least..=most).contains(&share));
        }
        Ok(())
    }

    #[test]
    fn three_questions_are_asked_at_once_and_ten_without_answers() -> Result {
        let mut network = Network::new()?;
        assert_eq!(network.fill(0), 3);
        assert_eq!(network.fill(16 * SECOND), 1);
        assert_eq!(network.fill(600 * SECOND - 1), 1);
        // The first three are forgotten.
        assert_eq!(network.fill(600 * SECOND), 1);
        assert_eq!(REMEMBERED, 10);
        Ok(())
    }

    #[test]
    fn an_answer_ends_its_own_question() -> Result {
        let mut network = Network::new()?;
        network.state.next = (1 << 20) - 1;
        let first = network.take(0).ok_or(ENOENT)?;
        let second = network.take(1).ok_or(ENOENT)?;
        assert_eq!((first, second), ((1 << 20) - 1, 0));
        network.state.end(second, NEVER, 2);
        let left = || network.state.questions.iter().flatten();
        assert!(left().map(|question| question.probe).eq([first]));
        Ok(())
    }

    #[test]
    fn a_network_does_not_pay_for_others_before_it() -> Result {
        let mut network = Network::new()?;
        let number = network.take(0).ok_or(ENOENT)?;
        // Another one was answered by the same CPU meanwhile.
        network.state.end(number, HOUR, HOUR + QUICK - 1);
        assert_eq!(network.fill(HOUR + QUICK), MOST);
        Ok(())
    }

    #[test]
    fn quick_questions_cost_no_rest_at_half_of_the_time() -> Result {
        let mut network = Network::new()?;
        for round in 0..10_000 {
            let now = round * QUICK * 2;
            let number = network.take(now).ok_or(ENOENT)?;
            network.state.end(number, NEVER, now + QUICK);
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
        // The first peer has the place once a second, and some have its share.
        assert!((70..=95).contains(&taken));
        Ok(())
    }

    #[test]
    fn without_answers_each_further_question_waits_for_longer() -> Result {
        let (mut network, mut now) = (Network::new()?, 0);
        assert_eq!(network.fill(now), MOST);
        for doublings in 0..5 {
            now += FURTHER << doublings;
            assert_eq!(network.fill(now - 1), 0);
            assert_eq!(network.fill(now), 1);
        }
        Ok(())
    }

    #[test]
    fn questions_without_answers_are_few_for_ever() -> Result {
        let (mut network, mut taken) = (Network::new()?, 0);
        // A day, by the second.
        for second in 0..24 * 3_600 {
            taken += network.fill(second * SECOND);
        }
        let periods = (24 * HOUR / FORGOTTEN) as usize;
        assert!((periods..=periods * REMEMBERED).contains(&taken));
        Ok(())
    }

    #[test]
    fn questions_without_answers_are_paid_when_the_answers_come() -> Result {
        let (mut network, mut numbers, mut now) = (Network::new()?, KVec::new(), 0);
        while now < FORGOTTEN {
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
        let end = first + SECOND + paid - AT_ONCE * PRICE;
        assert_eq!(network.take(end - 1), None);
        assert_eq!(network.fill(end), MOST);
        Ok(())
    }

    #[test]
    fn a_link_that_is_gone_keeps_no_place() -> Result {
        let mut network = Network::new()?;
        let link = network.link;
        for now in [0, 2 * SECOND] {
            assert_eq!(network.fill(now), MOST);
            network.state.remove(|question| question.link == link);
        }
        Ok(())
    }

    #[test]
    fn a_question_that_is_not_asked_takes_no_place() -> Result {
        let mut network = Network::new()?;
        let number = network.take(0).ok_or(ENOENT)?;
        network.state.remove(|question| question.probe == number);
        assert_eq!(network.fill(0), MOST);
        Ok(())
    }
}
