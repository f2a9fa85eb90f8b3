// SPDX-License-Identifier: GPL-2.0

//! The questions that ib_core has not handled yet, of networks whose administrators are none of the host's.
//!
//! ib_core sleeps a second at most for each look-up of an address, and takes besides as long as the network's routing rules.
//! It makes two look-ups for some questions, and one for the probe behind a question. So one network at a time has questions
//! in ib_core's queue, [`MOST`] at most. ib_core has handled a question when it answers the probe. A network has a seventeenth of
//! ib_core's time for answers that are not [`QUICK`], and [`AT_ONCE`] of it at once; then it takes no questions until it has some
//! left again. A probe that is not answered counts for [`TIMEOUT`], and for twice as long each further time that happens
//! without a quick answer between; meanwhile ib_core may be busy with the question for longer.
//!
//! A question also waits for what is before it in ib_core's queue, of which each CPU has one. An answer has taken the time since
//! the last one by the same CPU. Besides, ib_core may be busy still with a question that was lost: each such question of another
//! network excuses one answer, which counts for [`LONGEST_SLEEP`] at most. What else keeps ib_core is not known here, so no
//! answer counts for more than [`TIMEOUT`].

use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
};

use super::senders::NUMBER_BITS;

/// How many questions a network has in ib_core's queue.
const MOST: usize = 3;
/// How many questions are remembered whose probes were not answered in time.
const LOST: usize = 8;
/// Nanoseconds after which a question is lost whose probe is not answered: another network may ask.
const TIMEOUT: i64 = 64_000_000_000;
/// How often the rest of a network doubles whose questions are lost.
const DOUBLINGS: u32 = 6;
/// Nanoseconds of an answer for which a network does not rest: others notice nothing of these.
const QUICK: i64 = 10_000_000;
/// How many times longer a network rests than an answer has taken, if it has no time left.
const REST: i64 = 16;
/// Nanoseconds of ib_core's time that a network has at once: connections of a busy host take some hundredths of a second each.
const AT_ONCE: i64 = 3_000_000_000;
/// Nanoseconds that ib_core sleeps for a question and its probe at most.
const LONGEST_SLEEP: i64 = 3_000_000_000;
/// Nanoseconds after which a question keeps others waiting for long: the network that was refused then comes next.
const LONG: i64 = 100_000_000;
/// Nanoseconds for which the network that comes next is waited for. Its peers ask again after five seconds or so.
const WAIT: i64 = 16_000_000_000;

/// How a network stands with these limits. All fields belong to the holder of the lock of [`Places`]; times are in nanoseconds.
pub(crate) struct Standing {
    /// When its question was taken last, or came first; [`Self::NEVER`] before that.
    served: Atomic<i64>,
    /// It takes no questions before. In the past: how much time it has left.
    rests_until: Atomic<i64>,
    /// How many of its questions were lost since the last quick answer.
    lost: Atomic<u32>,
}

impl Standing {
    const NEVER: i64 = i64::MIN;

    /// That of a network without questions. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let standing = Self {
            served: Atomic::new(Self::NEVER),
            rests_until: Atomic::new(Self::NEVER),
            lost: Atomic::new(0),
        };
        Ok(Arc::new(standing, GFP_KERNEL)?)
    }

    /// When it was served last; if never, it is from now on.
    fn served(&self, now: i64) -> i64 {
        if self.served.load(Relaxed) == Self::NEVER {
            self.served.store(now, Relaxed);
        }
        self.served.load(Relaxed)
    }

    fn rests(&self, now: i64) -> bool {
        now < self.rests_until.load(Relaxed)
    }

    /// The answer to one of its questions has taken so long.
    fn pay(&self, took: i64, now: i64) {
        if took < QUICK {
            return self.lost.store(0, Relaxed);
        }
        self.rest_until(now.saturating_sub(AT_ONCE * (1 + REST)));
        let from = self.rests_until.load(Relaxed);
        self.rest_until(from.saturating_add(took.min(TIMEOUT).saturating_mul(1 + REST)));
    }

    /// The answer to one of its questions that was lost has taken so long.
    fn pay_late(&self, took: i64, now: i64) {
        self.rest_until(now.saturating_add(took.min(TIMEOUT).saturating_mul(REST)));
    }

    /// A question of its was lost at `at`.
    fn lose(&self, at: i64) {
        let before = self.lost.load(Relaxed);
        self.lost.store(before.saturating_add(1), Relaxed);
        let rest = TIMEOUT.saturating_mul(REST) << before.min(DOUBLINGS);
        self.rest_until(at.saturating_add(rest));
    }

    fn rest_until(&self, until: i64) {
        let until = self.rests_until.load(Relaxed).max(until);
        self.rests_until.store(until, Relaxed);
    }

    /// Forgets what it owes.
    fn forgive(&self) {
        self.rests_until.store(Self::NEVER, Relaxed);
        self.lost.store(0, Relaxed);
    }
}

/// The network and the link that a question came by. A link is compared only with those that exist at the same time.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) network: Arc<Standing>,
    pub(super) link: usize,
}

impl Holder {
    fn is_of(&self, network: &Arc<Standing>) -> bool {
        Arc::ptr_eq(&self.network, network)
    }
}

/// A question whose probe is not answered.
struct Question {
    /// The number of the probe.
    probe: u32,
    holder: Holder,
    /// When it was taken, in nanoseconds.
    since: i64,
    /// It was lost, and has excused an answer to another network.
    has_excused: bool,
}

/// The network that comes next: it was refused.
struct Next {
    network: Arc<Standing>,
    /// When it asked last, in nanoseconds.
    asked: i64,
}

/// The questions of all those networks together.
pub(super) struct Places {
    /// The number of the next probe.
    next: u32,
    /// Questions in ib_core's queue, all of one network.
    asked: [Option<Question>; MOST],
    /// Those that were lost last.
    lost: [Option<Question>; LOST],
    /// Where the next one that is lost goes.
    next_lost: usize,
    comes_next: Option<Next>,
    /// When each CPU answered last, in nanoseconds.
    answered: KVVec<i64>,
}

impl Places {
    /// No question has come. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            next: 0,
            asked: [const { None }; MOST],
            lost: [const { None }; LOST],
            next_lost: 0,
            comes_next: None,
            answered: KVVec::from_elem(i64::MIN, nr_cpu_ids() as usize, GFP_KERNEL)?,
        })
    }

    /// Takes a question at `now`, and returns the number of the probe behind it. `None` if it is to be dropped.
    pub(super) fn take(&mut self, holder: Holder, now: i64) -> Option<u32> {
        self.lose_late(now);
        let network = &holder.network;
        let served = network.served(now);
        if network.rests(now) {
            return None;
        }
        let oldest = self
            .asked
            .iter()
            .flatten()
            .min_by_key(|question| question.since);
        // A network with questions there takes no more while another one waits.
        let served = oldest.map_or(served, |_| i64::MAX);
        let another_comes_next = self.another_comes_next(network, served, now);
        if let Some(oldest) = oldest.filter(|oldest| !oldest.holder.is_of(network)) {
            let is_long = now.saturating_sub(oldest.since) >= LONG;
            if is_long && !another_comes_next {
                self.comes_next = Some(Next {
                    network: network.clone(),
                    asked: now,
                });
            }
            return None;
        }
        if another_comes_next {
            return None;
        }
        let number = self.next;
        let place = self.asked.iter_mut().find(|place| place.is_none())?;
        network.served.store(now, Relaxed);
        let is_this = |next: &Next| Arc::ptr_eq(&next.network, network);
        if self.comes_next.as_ref().is_some_and(is_this) {
            self.comes_next = None;
        }
        *place = Some(Question {
            probe: number,
            holder,
            since: now,
            has_excused: false,
        });
        self.next = number.wrapping_add(1) % (1 << NUMBER_BITS);
        Some(number)
    }

    /// Whether another network comes before this one: it was refused not long ago, and served before this one.
    fn another_comes_next(&self, network: &Arc<Standing>, served: i64, now: i64) -> bool {
        self.comes_next.as_ref().is_some_and(|next| {
            !Arc::ptr_eq(&next.network, network)
                && next.network.served(now) <= served
                && !next.network.rests(now)
                && now.saturating_sub(next.asked) < WAIT
        })
    }

    /// Takes those questions for lost whose time is over.
    fn lose_late(&mut self, now: i64) {
        for index in 0..MOST {
            let is_late = |question: &mut Question| now.saturating_sub(question.since) >= TIMEOUT;
            let late = self
                .asked
                .get_mut(index)
                .and_then(|place| place.take_if(is_late));
            let Some(question) = late else {
                continue;
            };
            let at = question.since.saturating_add(TIMEOUT);
            question.holder.network.lose(at);
            if let Some(place) = self.lost.get_mut(self.next_lost) {
                *place = Some(question);
            }
            self.next_lost = self.next_lost.wrapping_add(1) % LOST;
        }
    }

    /// `cpu` answers a probe at `now`: the question before it is handled. The network rests if that took long.
    pub(super) fn end(&mut self, number: u32, cpu: CpuId, now: i64) {
        let last = match self.answered.get_mut(cpu.as_u32() as usize) {
            Some(answered) => core::mem::replace(answered, now),
            None => i64::MIN,
        };
        if let Some(question) = remove(&mut self.asked, number) {
            let took = self.took(&question, last, now);
            question.holder.network.pay(took, now);
        } else if let Some(question) = remove(&mut self.lost, number) {
            let took = self.took(&question, last, now);
            question.holder.network.pay_late(took, now);
        }
    }

    /// How long ib_core has taken for a question until `now`, unless it was excused. The same CPU answered before at `last`.
    fn took(&mut self, question: &Question, last: i64, now: i64) -> i64 {
        let took = now.saturating_sub(question.since.max(last));
        match took > LONGEST_SLEEP && self.is_excused(question) {
            true => LONGEST_SLEEP,
            false => took,
        }
    }

    /// Whether a question of another network was lost that came before, and has excused no answer. It excuses this one.
    fn is_excused(&mut self, question: &Question) -> bool {
        let excuses = |lost: &&mut Question| {
            !lost.has_excused
                && lost.since < question.since
                && !lost.holder.is_of(&question.holder.network)
        };
        let lost = self.lost.iter_mut().flatten().find(excuses);
        lost.map(|lost| lost.has_excused = true).is_some()
    }

    /// A question is not asked: there is no probe with this number.
    pub(super) fn give_back(&mut self, number: u32) {
        remove(&mut self.asked, number);
    }

    /// Forgets the questions of a link that is gone: ib_core has handled all that came by it. Its network owes nothing more.
    pub(super) fn forget(&mut self, holder: &Holder) {
        let is_its = |question: &mut Question| {
            question.holder.link == holder.link && question.holder.is_of(&holder.network)
        };
        for place in Iterator::chain(self.asked.iter_mut(), &mut self.lost) {
            place.take_if(is_its);
        }
        holder.network.forgive();
    }
}

/// Removes the question before the probe with this number.
fn remove(questions: &mut [Option<Question>], number: u32) -> Option<Question> {
    let is_it = |question: &mut Question| question.probe == number;
    questions.iter_mut().find_map(|place| place.take_if(is_it))
}

#[kunit_tests(rrxe_gsi_places)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// Places, and networks with a link each.
    struct Bench {
        places: Places,
        networks: KVec<Holder>,
    }

    impl Bench {
        fn new() -> Result<Self> {
            let mut networks = KVec::new();
            for link in 0..12 {
                let network = Standing::new()?;
                networks.push(Holder { network, link }, GFP_KERNEL)?;
            }
            Ok(Self {
                places: Places::new()?,
                networks,
            })
        }

        fn take(&mut self, network: usize, now: i64) -> Option<u32> {
            let holder = self.networks.get(network)?.clone();
            self.places.take(holder, now)
        }

        /// Takes all that the network may.
        fn fill(&mut self, network: usize, now: i64) -> usize {
            core::iter::from_fn(|| self.take(network, now)).count()
        }

        fn end(&mut self, number: u32, now: i64) {
            self.places.end(number, CpuId::current(), now);
        }
    }

    #[test]
    fn after_a_quick_answer_the_next_question_is_taken() -> Result {
        let mut bench = Bench::new()?;
        let number = bench.take(1, 5).ok_or(ENOENT)?;
        assert_eq!(bench.fill(1, 5), MOST - 1);
        bench.end(number, 5 + QUICK - 1);
        assert_eq!(bench.fill(1, 5 + QUICK), 1);
        // No answer gives two.
        bench.end(number, 5 + QUICK);
        assert_eq!(bench.fill(1, 5 + QUICK), 0);
        Ok(())
    }

    #[test]
    fn a_network_rests_for_its_answers_and_others_do_not() -> Result {
        for took in [SECOND, 20 * SECOND] {
            let mut bench = Bench::new()?;
            // The first answer takes the time that a network has at once.
            let number = bench.take(1, 0).ok_or(ENOENT)?;
            bench.end(number, AT_ONCE);
            let number = bench.take(1, AT_ONCE).ok_or(ENOENT)?;
            bench.end(number, AT_ONCE + took);
            let end = AT_ONCE + took + REST * took;
            assert_eq!(bench.take(1, end - 1), None);
            let other = bench.take(2, end - 1).ok_or(ENOENT)?;
            bench.end(other, end);
            assert_eq!(bench.fill(1, end), MOST);
        }
        Ok(())
    }

    #[test]
    fn an_answer_counts_for_no_more_than_its_time() -> Result {
        let (mut bench, hour) = (Bench::new()?, 3600 * SECOND);
        let number = bench.take(1, 0).ok_or(ENOENT)?;
        bench.end(number, hour);
        let end = hour + (TIMEOUT - AT_ONCE) * (1 + REST);
        assert_eq!(bench.take(1, end - 1), None);
        assert!(bench.take(1, end).is_some());
        Ok(())
    }

    #[test]
    fn one_network_asks_at_a_time() -> Result {
        let mut bench = Bench::new()?;
        let number = bench.take(1, 0).ok_or(ENOENT)?;
        assert_eq!(bench.take(2, LONG - 1), None);
        bench.end(number, LONG - 1);
        // It has not waited for long, so it does not come next.
        assert_eq!(bench.fill(2, LONG - 1), MOST);
        Ok(())
    }

    #[test]
    fn a_network_that_waited_for_long_comes_next() -> Result {
        let mut bench = Bench::new()?;
        let number = bench.take(1, 0).ok_or(ENOENT)?;
        assert_eq!(bench.take(2, LONG), None);
        // The first takes no more, and the third comes after the second, which was served longer ago.
        assert_eq!(bench.take(1, LONG), None);
        assert_eq!(bench.take(3, LONG + 1), None);
        bench.end(number, LONG + 1);
        assert_eq!(bench.take(3, LONG + 1), None);
        assert_eq!(bench.fill(2, LONG + 1), MOST);
        Ok(())
    }

    #[test]
    fn a_network_is_not_waited_for_for_ever() -> Result {
        let mut bench = Bench::new()?;
        let number = bench.take(1, 0).ok_or(ENOENT)?;
        assert_eq!(bench.take(2, LONG), None);
        bench.end(number, LONG + 1);
        assert_eq!(bench.take(3, LONG + WAIT - 1), None);
        assert!(bench.take(3, LONG + WAIT).is_some());
        Ok(())
    }

    #[test]
    fn a_network_whose_questions_are_lost_rests_ever_longer() -> Result {
        let (mut bench, mut now) = (Bench::new()?, 0);
        for doublings in [0, 1, 2, 3, 4, 5, 6, 6] {
            assert!(bench.take(1, now).is_some());
            // Meanwhile others wait, and then they are served.
            assert_eq!(bench.take(2, now + TIMEOUT - 1), None);
            let other = bench.take(2, now + TIMEOUT).ok_or(ENOENT)?;
            bench.end(other, now + TIMEOUT);
            now += TIMEOUT + (REST * TIMEOUT << doublings);
            assert_eq!(bench.take(1, now - 1), None);
        }
        // A quick answer ends that.
        let number = bench.take(1, now).ok_or(ENOENT)?;
        bench.end(number, now);
        assert!(bench.take(1, now).is_some());
        now += TIMEOUT;
        assert_eq!(bench.take(1, now), None);
        assert!(bench.take(1, now + REST * TIMEOUT).is_some());
        Ok(())
    }

    #[test]
    fn late_answers_are_paid_for() -> Result {
        let mut bench = Bench::new()?;
        let late = bench.take(1, 0).ok_or(ENOENT)?;
        let other = bench.take(2, TIMEOUT).ok_or(ENOENT)?;
        bench.end(late, 2 * TIMEOUT);
        // The other question waited for the late one.
        bench.end(other, 2 * TIMEOUT + QUICK - 1);
        assert_eq!(bench.fill(2, 2 * TIMEOUT + QUICK), MOST);
        let end = (2 + REST) * TIMEOUT;
        bench.places.forget(&bench.networks[2].clone());
        assert_eq!(bench.take(1, end - 1), None);
        assert!(bench.take(1, end).is_some());
        Ok(())
    }

    #[test]
    fn a_lost_question_excuses_one_answer() -> Result {
        let mut bench = Bench::new()?;
        bench.take(1, 0).ok_or(ENOENT)?;
        let mut now = TIMEOUT;
        // The first answer counts for what a network has at once.
        for rest in [0, REST * 10 * SECOND] {
            let number = bench.take(2, now).ok_or(ENOENT)?;
            now += 10 * SECOND;
            bench.end(number, now);
            now += rest;
        }
        assert_eq!(bench.take(2, now - 1), None);
        assert!(bench.take(2, now).is_some());
        Ok(())
    }

    #[test]
    fn networks_take_turns() -> Result {
        // They ask each second, always in the same order, and their questions are lost.
        let (mut bench, mut taken) = (Bench::new()?, [0; 12]);
        for seconds in 0..12 * TIMEOUT / SECOND {
            for (network, taken) in taken.iter_mut().enumerate() {
                *taken += bench.fill(network, seconds * SECOND);
            }
        }
        assert!(taken.iter().all(|taken| *taken > 0));
        Ok(())
    }

    #[test]
    fn a_link_that_is_gone_owes_nothing() -> Result {
        let mut bench = Bench::new()?;
        bench.fill(1, 0);
        bench.fill(1, TIMEOUT);
        bench.places.forget(&bench.networks[2].clone());
        assert_eq!(bench.fill(1, TIMEOUT), 0);
        bench.places.forget(&bench.networks[1].clone());
        assert_eq!(bench.fill(1, TIMEOUT), MOST);
        Ok(())
    }

    #[test]
    fn a_question_that_is_not_asked_takes_no_place() -> Result {
        let mut bench = Bench::new()?;
        let number = bench.take(1, 0).ok_or(ENOENT)?;
        bench.places.give_back(number);
        assert_eq!(bench.fill(2, 0), MOST);
        Ok(())
    }
}
