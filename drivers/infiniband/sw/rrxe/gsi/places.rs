// SPDX-License-Identifier: GPL-2.0

//! The places of questions that ib_core has not handled yet, of networks whose administrators are none of the host's.
//!
//! ib_core sleeps a second at most for each look-up of an address, and takes besides as long as the network's routing rules.
//! It makes two look-ups for some questions, and one for the probe behind a question. A place is taken until the probe is answered, and after that for as long again as many times
//! [`REST`] as this has taken. So ib_core sleeps for one place a seventeenth of the time at most if it answers, and three
//! seconds of [`TIMEOUT`] if it does not, whatever the devices do: a quarter of the time for all places. Answers that are
//! [`QUICK`] are an exception: ib_core may sleep that long again at once.
//!
//! A question also waits for those before it in ib_core's queue, of which each CPU has one. A network does not pay for the
//! sleep of another one. An answer has taken the time since the last one by the same CPU. Besides, ib_core may have slept for a
//! question without an answer: an answer is excused [`LONGEST_SLEEP`] for each such question of another network that came
//! before, each of which excuses one answer. Two networks that agree on it have ib_core sleep a third of the time so.
//! No network pays for more than [`TIMEOUT`]: ib_core may have been kept by something else, for however long. An answer after
//! that, to a question that has lost its place, has another place of its network rest.

use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    sync::atomic::{ordering, Atomic},
};

use super::senders::NUMBER_BITS;

/// How many places there are.
const PLACES: usize = 4;
/// Nanoseconds until a place is given again whose probe is not answered.
const TIMEOUT: i64 = 64_000_000_000;
/// How often this doubles for a place whose probes are not answered one after the other: ib_core may be busy still with what
/// came before.
const DOUBLINGS: u32 = 2;
/// Nanoseconds of an answer after which its place is given again at once: others notice nothing of these.
const QUICK: i64 = 10_000_000;
/// How many times longer a place rests than an answer has taken that was not quick.
const REST: i64 = 16;
/// Nanoseconds that ib_core sleeps for a question and its probe at most.
const LONGEST_SLEEP: i64 = 3_000_000_000;
/// How many places a network takes at once if no other one waits for a place, and if one does.
const MOST: usize = PLACES - 1;
const MOST_BESIDE_OTHERS: usize = 1;
/// Nanoseconds for which a network without a place waits after a question that got none, if no other one was served longer
/// ago. Its peers ask again after five seconds or so.
const WAIT: i64 = 16_000_000_000;

/// The network and the link that a question came by. Compared only with those that exist at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) network: usize,
    pub(super) link: usize,
}

/// A question that ib_core has not handled yet.
#[derive(Clone, Copy)]
struct Question {
    /// The number of the probe behind it.
    probe: u32,
    network: usize,
    /// When it took its place, in nanoseconds.
    since: i64,
}

#[derive(Clone, Copy)]
struct Place {
    /// Who took it last.
    holder: Holder,
    /// The number of the probe behind the question, until that is answered.
    probe: Option<u32>,
    /// When it was taken, in nanoseconds.
    since: i64,
    /// Nobody else takes it before.
    until: i64,
    /// The question that had it before, until its probe is answered.
    before: Option<Question>,
    /// How many probes in a row are not answered.
    unanswered: u32,
    /// It has excused an answer to another network.
    has_excused: bool,
}

impl Place {
    const FREE: Self = Self {
        holder: Holder {
            network: 0,
            link: 0,
        },
        probe: None,
        since: 0,
        until: i64::MIN,
        before: None,
        unanswered: 0,
        has_excused: false,
    };

    /// The question whose probe is not answered.
    fn question(&self) -> Option<Question> {
        Some(Question {
            probe: self.probe?,
            network: self.holder.network,
            since: self.since,
        })
    }

    fn is_free(&self, now: i64) -> bool {
        self.until <= now
    }

    /// Whether its question may have kept ib_core from that one.
    fn excuses(&self, question: &Question) -> bool {
        let is_before = self.probe.is_some() && self.since < question.since;
        is_before && self.holder.network != question.network && !self.has_excused
    }
}

/// A network that got no place and has none.
#[derive(Clone, Copy)]
struct Waiting {
    network: usize,
    /// When it asked last, in nanoseconds.
    asked: i64,
    /// When it got a place last, or asked first.
    served: i64,
}

/// When a network got a place last, in nanoseconds. Before that: when it asked first.
pub(crate) struct Served(Atomic<i64>);

impl Served {
    const NEVER: i64 = i64::MIN;

    /// It has not asked.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(Self::NEVER))
    }

    /// One caller at a time.
    fn at(&self, now: i64) -> i64 {
        if self.0.load(ordering::Relaxed) == Self::NEVER {
            self.note(now);
        }
        self.0.load(ordering::Relaxed)
    }

    fn note(&self, now: i64) {
        self.0.store(now, ordering::Relaxed);
    }
}

/// How long a place rests whose question has taken so long.
fn rest(took: i64) -> i64 {
    match took < QUICK {
        true => 0,
        false => took.saturating_mul(REST),
    }
}

/// The places of all those networks together.
pub(super) struct Places {
    /// The number of the next probe.
    next: u32,
    places: [Place; PLACES],
    /// The network that comes next.
    waiting: Option<Waiting>,
    /// When each CPU answered last, in nanoseconds.
    answered: KVVec<i64>,
}

impl Places {
    /// All are free. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            next: 0,
            places: [Place::FREE; PLACES],
            waiting: None,
            answered: KVVec::from_elem(i64::MIN, nr_cpu_ids() as usize, GFP_KERNEL)?,
        })
    }

    /// Gives a place to a question at `now`, and returns the number of the probe behind it. `None` while there is none for
    /// its network, which was served as `served` says.
    pub(super) fn take(&mut self, holder: Holder, served: &Served, now: i64) -> Option<u32> {
        let waiting = Waiting {
            network: holder.network,
            asked: now,
            served: served.at(now),
        };
        let free = self.count(|place| place.is_free(now));
        let held =
            self.count(|place| !place.is_free(now) && place.holder.network == holder.network);
        // The last one is for the network that comes next.
        let is_next = !self.another_comes_before(&waiting);
        let may_take = match is_next {
            true => free > 0 && held < MOST,
            false => free > 1 && held < MOST_BESIDE_OTHERS,
        };
        if !may_take {
            if is_next && held == 0 {
                self.waiting = Some(waiting);
            }
            return None;
        }
        let number = self.next;
        let place = self.places.iter_mut().find(|place| place.is_free(now))?;
        let timeout = TIMEOUT << place.unanswered.min(DOUBLINGS);
        *place = Place {
            holder,
            probe: Some(number),
            since: now,
            until: now.saturating_add(timeout),
            before: place.question(),
            unanswered: place.unanswered.saturating_add(1),
            has_excused: false,
        };
        self.next = number.wrapping_add(1) % (1 << NUMBER_BITS);
        served.note(now);
        self.waiting = self
            .waiting
            .filter(|waiting| waiting.network != holder.network);
        Some(number)
    }

    fn count(&self, wanted: impl Fn(&Place) -> bool) -> usize {
        self.places.iter().filter(|place| wanted(place)).count()
    }

    /// Whether another network waits that was served before this one.
    fn another_comes_before(&self, this: &Waiting) -> bool {
        let comes_before = |other: Waiting| {
            other.network != this.network
                && other.served <= this.served
                && this.asked.saturating_sub(other.asked) < WAIT
        };
        self.waiting.is_some_and(comes_before)
    }

    /// Frees the place of the question before a probe that `cpu` answers at `now`. If the question has lost it, a place that its
    /// network had last rests.
    pub(super) fn end(&mut self, number: u32, cpu: CpuId, now: i64) {
        let last = match self.answered.get_mut(cpu.as_u32() as usize) {
            Some(answered) => core::mem::replace(answered, now),
            None => i64::MIN,
        };
        let own = |question: &Question| question.probe == number;
        let is_in_time = |place: &Place| place.probe == Some(number);
        let in_time = self.places.iter().position(is_in_time);
        let asked = match in_time.and_then(|index| self.places.get(index)) {
            Some(place) => place.question(),
            None => self
                .places
                .iter()
                .find_map(|place| place.before.filter(own)),
        };
        let Some(question) = asked else {
            return;
        };
        let until = now.saturating_add(rest(self.took(&question, last, now)));
        match in_time.and_then(|index| self.places.get_mut(index)) {
            Some(place) => (place.probe, place.unanswered, place.until) = (None, 0, until),
            None => self.end_late(&question, until),
        }
    }

    /// Has a place that the network of a question had last rest until then.
    fn end_late(&mut self, question: &Question, until: i64) {
        for place in &mut self.places {
            place.before = place.before.filter(|before| before.probe != question.probe);
        }
        let is_networks = |place: &&mut Place| place.holder.network == question.network;
        if let Some(place) = self.places.iter_mut().find(is_networks) {
            place.until = place.until.max(until);
        }
    }

    /// How long ib_core has taken for a question until `now`, but for the questions of other networks. The same CPU answered
    /// before at `last`.
    fn took(&mut self, question: &Question, last: i64, now: i64) -> i64 {
        let mut took = now.saturating_sub(question.since.max(last));
        for other in &mut self.places {
            if took >= QUICK && other.excuses(question) {
                other.has_excused = true;
                took = took.saturating_sub(LONGEST_SLEEP);
            }
        }
        took.min(TIMEOUT)
    }

    /// Frees the place of a question that is not asked: there is no probe with this number.
    pub(super) fn give_back(&mut self, number: u32) {
        self.free(|place| place.probe == Some(number));
    }

    /// Frees the places of a link that is gone: ib_core has handled all that came by it. They neither rest nor remember that
    /// probes were not answered.
    pub(super) fn forget(&mut self, holder: Holder) {
        self.free(|place| place.holder == holder);
    }

    fn free(&mut self, wanted: impl Fn(&Place) -> bool) {
        for place in self.places.iter_mut().filter(|place| wanted(place)) {
            *place = Place::FREE;
        }
    }
}

#[kunit_tests(rrxe_gsi_places)]
mod tests {
    use super::*;

    const ONE: Holder = holder(1);
    const SECOND: i64 = 1_000_000_000;

    const fn holder(network: usize) -> Holder {
        Holder { network, link: 7 }
    }

    /// Places, and when each network got one last.
    struct Bench {
        places: Places,
        served: [Served; 16],
    }

    impl Bench {
        fn new() -> Result<Self> {
            Ok(Self {
                places: Places::new()?,
                served: [const { Served::new() }; 16],
            })
        }

        fn take(&mut self, holder: Holder, now: i64) -> Option<u32> {
            let served = self.served.get(holder.network)?;
            self.places.take(holder, served, now)
        }
    }

    impl core::ops::Deref for Bench {
        type Target = Places;

        fn deref(&self) -> &Places {
            &self.places
        }
    }

    impl core::ops::DerefMut for Bench {
        fn deref_mut(&mut self) -> &mut Places {
            &mut self.places
        }
    }

    /// Takes all that it may.
    fn fill(places: &mut Bench, holder: Holder, now: i64) -> usize {
        core::iter::from_fn(|| places.take(holder, now)).count()
    }

    #[test]
    fn a_quick_answer_gives_the_place_at_once() -> Result {
        let mut places = Bench::new()?;
        let number = places.take(ONE, 5).ok_or(ENOENT)?;
        assert_eq!(fill(&mut places, ONE, 5), MOST - 1);
        places.end(number, CpuId::current(), 5 + QUICK - 1);
        assert_eq!(fill(&mut places, ONE, 5 + QUICK), 1);
        // No answer gives two.
        places.end(number, CpuId::current(), 5 + QUICK);
        assert_eq!(fill(&mut places, ONE, 5 + QUICK), 0);
        Ok(())
    }

    #[test]
    fn a_late_answer_gives_the_place_later() -> Result {
        for (took, paid) in [
            (SECOND, SECOND),
            (20 * SECOND, 20 * SECOND),
            // Its place could have been taken before.
            (3600 * SECOND, TIMEOUT),
        ] {
            let mut places = Bench::new()?;
            let number = places.take(ONE, 0).ok_or(ENOENT)?;
            assert_eq!(fill(&mut places, holder(2), 0), MOST);
            places.end(number, CpuId::current(), took);
            let end = took + REST * paid;
            // Those that were not answered are given again meanwhile.
            fill(&mut places, holder(2), end - 1);
            assert_eq!(places.take(ONE, end - 1), None);
            assert!(places.take(ONE, end).is_some());
        }
        Ok(())
    }

    #[test]
    fn a_network_rests_for_an_answer_that_comes_too_late() -> Result {
        let (mut places, cpu) = (Bench::new()?, CpuId::current());
        let late = places.take(ONE, 0).ok_or(ENOENT)?;
        // The question loses its place to another one of its network.
        assert_eq!(fill(&mut places, ONE, TIMEOUT), MOST);
        places.end(late, cpu, TIMEOUT + SECOND);
        let rested = TIMEOUT + SECOND + REST * TIMEOUT;
        assert_eq!(fill(&mut places, ONE, rested - 1), MOST - 1);
        // It does so once.
        places.end(late, cpu, rested);
        assert_eq!(fill(&mut places, ONE, rested), 1);
        Ok(())
    }

    #[test]
    fn a_late_answer_costs_no_other_network_a_place() -> Result {
        let (mut places, cpu) = (Bench::new()?, CpuId::current());
        let late = places.take(ONE, 0).ok_or(ENOENT)?;
        let quick = places.take(holder(2), TIMEOUT).ok_or(ENOENT)?;
        places.end(late, cpu, TIMEOUT + SECOND);
        // The late answer was given just before.
        places.end(quick, cpu, TIMEOUT + SECOND + QUICK - 1);
        assert_eq!(fill(&mut places, holder(2), TIMEOUT + 2 * SECOND), MOST);
        Ok(())
    }

    #[test]
    fn a_network_does_not_rest_for_the_sleep_of_another() -> Result {
        let (mut places, cpu) = (Bench::new()?, CpuId::current());
        let slow = [places.take(ONE, 0), places.take(ONE, 0)];
        let quick = places.take(holder(2), 0).ok_or(ENOENT)?;
        for (seconds, number) in (1..).zip(slow) {
            places.end(number.ok_or(ENOENT)?, cpu, seconds * SECOND);
        }
        places.end(quick, cpu, 2 * SECOND + QUICK - 1);
        assert_eq!(fill(&mut places, holder(2), 2 * SECOND + QUICK), 2);
        assert_eq!(fill(&mut places, ONE, (1 + REST) * SECOND), 1);
        Ok(())
    }

    #[test]
    fn a_question_without_an_answer_excuses_one_answer() -> Result {
        let (mut places, cpu, mut now) = (Bench::new()?, CpuId::current(), 1);
        places.take(ONE, 0).ok_or(ENOENT)?;
        // The first answer is excused, and the place of the second one rests.
        for free in [MOST, MOST - 1] {
            let number = places.take(holder(2), now).ok_or(ENOENT)?;
            now += LONGEST_SLEEP + QUICK - 1;
            places.end(number, cpu, now);
            assert_eq!(fill(&mut places, holder(2), now), free);
            places.forget(holder(2));
        }
        Ok(())
    }

    #[test]
    fn a_place_without_answers_is_given_ever_later() -> Result {
        let (mut places, mut now) = (Bench::new()?, 0);
        for doublings in [0, 1, 2, 2] {
            assert_eq!(fill(&mut places, ONE, now), MOST);
            now += TIMEOUT << doublings;
            assert_eq!(fill(&mut places, ONE, now - 1), 0);
        }
        let number = places.take(ONE, now).ok_or(ENOENT)?;
        places.end(number, CpuId::current(), now);
        assert_eq!(fill(&mut places, ONE, now), MOST);
        // One of them was answered before.
        assert_eq!(fill(&mut places, ONE, now + TIMEOUT), 1);
        Ok(())
    }

    #[test]
    fn a_network_leaves_a_place_to_another() -> Result {
        let mut places = Bench::new()?;
        assert_eq!(fill(&mut places, ONE, 0), MOST);
        assert_eq!(fill(&mut places, holder(2), 0), PLACES - MOST);
        Ok(())
    }

    #[test]
    fn a_network_without_a_place_is_waited_for() -> Result {
        let mut places = Bench::new()?;
        let numbers: KVec<u32> = {
            let mut numbers = KVec::new();
            while let Some(number) = places.take(ONE, 0) {
                numbers.push(number, GFP_KERNEL)?;
            }
            numbers
        };
        assert_eq!(fill(&mut places, holder(2), 0), 1);
        assert_eq!(places.take(holder(3), 0), None);
        for number in numbers {
            places.end(number, CpuId::current(), 1);
        }
        // Of three places that are free the last one is left.
        assert_eq!(fill(&mut places, ONE, 1), MOST_BESIDE_OTHERS);
        assert!(places.take(holder(4), 1).is_some());
        assert_eq!(places.take(holder(5), 1), None);
        assert!(places.take(holder(3), 1).is_some());
        Ok(())
    }

    #[test]
    fn networks_take_turns() -> Result {
        let (mut places, mut now) = (Bench::new()?, 0);
        // One more than there are places. They ask without a pause, always in the same order, and are not answered.
        let mut taken = [0; PLACES + 1];
        while now < 16 * TIMEOUT {
            for (network, taken) in (1..).zip(&mut taken) {
                *taken += usize::from(places.take(holder(network), now).is_some());
            }
            now += SECOND;
        }
        assert!(taken.iter().all(|taken| *taken > 1));
        Ok(())
    }

    #[test]
    fn a_network_that_asks_seldom_takes_its_turn() -> Result {
        const NETWORKS: usize = 12;
        let (mut places, mut last, mut longest) = (Bench::new()?, 0, 0);
        // The others ask without a pause, and are not answered. This one is, and asks every four seconds.
        for seconds in 0..100 * 60 {
            let now = seconds * SECOND;
            for network in 2..NETWORKS {
                places.take(holder(network), now);
            }
            let asks = seconds % 4 == 0;
            if let Some(number) = asks.then(|| places.take(ONE, now)).flatten() {
                places.end(number, CpuId::current(), now);
                longest = longest.max(now - last);
                last = now;
            }
        }
        // One place is for the network that was served longest ago, and the others are for those that ask first.
        assert!(last > 0 && longest <= NETWORKS as i64 * (TIMEOUT << DOUBLINGS));
        Ok(())
    }

    #[test]
    fn a_network_is_not_waited_for_for_ever() -> Result {
        let mut places = Bench::new()?;
        fill(&mut places, ONE, 0);
        fill(&mut places, holder(2), 0);
        assert_eq!(places.take(holder(3), TIMEOUT - WAIT), None);
        assert_eq!(fill(&mut places, ONE, TIMEOUT), MOST);
        Ok(())
    }

    #[test]
    fn a_link_that_is_gone_has_no_place() -> Result {
        let mut places = Bench::new()?;
        fill(&mut places, ONE, 0);
        places.forget(Holder { link: 8, ..ONE });
        assert_eq!(fill(&mut places, ONE, 0), 0);
        places.forget(ONE);
        assert_eq!(fill(&mut places, ONE, 0), MOST);
        Ok(())
    }

    #[test]
    fn a_question_that_is_not_asked_gives_its_place_back() -> Result {
        let mut places = Bench::new()?;
        let number = places.take(ONE, 0).ok_or(ENOENT)?;
        places.give_back(number);
        assert_eq!(fill(&mut places, ONE, 0), MOST);
        Ok(())
    }
}
