// SPDX-License-Identifier: GPL-2.0

//! The places of questions that ib_core has not handled yet, of networks whose administrators are none of the host's.
//!
//! ib_core sleeps a second at most for each look-up of an address. It makes two for some questions, and one for the probe
//! behind a question. A place is taken until the probe is answered, and after that for as long again as many times
//! [`REST`] as this has taken. So ib_core sleeps for one place a seventeenth of the time at most if it answers, and three
//! seconds of [`TIMEOUT`] if it does not, whatever the devices do: a quarter of the time for all places.

use kernel::prelude::*;

use super::senders::NUMBER_BITS;

/// How many places there are.
const PLACES: usize = 4;
/// Nanoseconds until a place is given again whose probe is not answered.
const TIMEOUT: i64 = 64_000_000_000;
/// The same while none was answered ever. ib_core answers none before connection management takes part, which is after
/// the GSI QP takes datagrams. There is one place then.
const FIRST_TIMEOUT: i64 = 16_000_000_000;
/// How often these double for a place whose probes are not answered one after the other: ib_core may be busy still with what
/// came before.
const DOUBLINGS: u32 = 2;
/// Nanoseconds of an answer after which its place is given again at once: others notice nothing of these.
const QUICK: i64 = 10_000_000;
/// How many times longer a place rests than an answer has taken that was not quick.
const REST: i64 = 16;
/// How many places a network takes at once if no other one waits for a place, and if one does.
const MOST: usize = PLACES - 1;
const MOST_BESIDE_OTHERS: usize = 1;
/// Nanoseconds for which a network without a place waits after a question that got none. Its peers ask again.
const WAIT: i64 = TIMEOUT;

/// Whose question it is. Compared with those of other live ones only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) network: usize,
    pub(super) link: usize,
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
    /// How many probes in a row are not answered.
    unanswered: u32,
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
        unanswered: 0,
    };

    fn is_free(&self, now: i64) -> bool {
        self.until <= now
    }
}

/// The places of all those networks together.
pub(super) struct Places {
    /// ib_core has answered a probe.
    answers: bool,
    /// The number of the next probe.
    next: u32,
    places: [Place; PLACES],
    /// The last network that got no place and had none, and when.
    waiting: Option<(usize, i64)>,
}

impl Places {
    /// All are free.
    pub(super) const fn new() -> Self {
        Self {
            answers: false,
            next: 0,
            places: [Place::FREE; PLACES],
            waiting: None,
        }
    }

    /// How many places there are at present, and the least time until one is given again whose probe is not answered.
    fn extent(&self) -> (usize, i64) {
        match self.answers {
            true => (PLACES, TIMEOUT),
            false => (1, FIRST_TIMEOUT),
        }
    }

    /// Gives a place to a question at `now`, and returns the number of the probe behind it. `None` while there is none for
    /// its network.
    pub(super) fn take(&mut self, holder: Holder, now: i64) -> Option<u32> {
        let (network, number) = (holder.network, self.next);
        let (count, timeout) = self.extent();
        let has = |place: &&Place| !place.is_free(now) && place.holder.network == network;
        let held = self.places.iter().filter(has).count();
        let most = self.most(network, now);
        let free = self
            .places
            .iter_mut()
            .take(count)
            .find(|place| place.is_free(now));
        let Some(place) = free else {
            if held == 0 {
                self.waiting = Some((network, now));
            }
            return None;
        };
        if held >= most {
            return None;
        }
        let timeout = timeout << place.unanswered.min(DOUBLINGS);
        *place = Place {
            holder,
            probe: Some(number),
            since: now,
            until: now.saturating_add(timeout),
            unanswered: place.unanswered.saturating_add(1),
        };
        self.next = number.wrapping_add(1) % (1 << NUMBER_BITS);
        self.waiting = self.waiting.filter(|(waiting, _)| *waiting != network);
        Some(number)
    }

    /// How many places a network may have.
    fn most(&self, network: usize, now: i64) -> usize {
        match self.waiting {
            Some((other, since)) if other != network && now.saturating_sub(since) < WAIT => {
                MOST_BESIDE_OTHERS
            }
            _ => MOST,
        }
    }

    /// Frees the place of the question before a probe that is answered at `now`.
    pub(super) fn end(&mut self, number: u32, now: i64) {
        let is_before = |place: &&mut Place| place.probe == Some(number);
        let Some(place) = self.places.iter_mut().find(is_before) else {
            return;
        };
        let took = now.saturating_sub(place.since);
        let rest = match took < QUICK {
            true => 0,
            false => took.saturating_mul(REST),
        };
        (place.probe, place.unanswered) = (None, 0);
        place.until = now.saturating_add(rest);
        self.answers = true;
    }

    /// Frees the place of a question that is not asked: there is no probe with this number.
    pub(super) fn give_back(&mut self, number: u32) {
        self.free(|place| place.probe == Some(number));
    }

    /// Frees the places of a link that is gone: ib_core has handled all that came by it.
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

    /// With a first probe that was answered, so that all places are there.
    fn places() -> Places {
        let mut places = Places::new();
        if let Some(number) = places.take(ONE, 0) {
            places.end(number, 0);
        }
        places
    }

    /// Takes all that it may.
    fn fill(places: &mut Places, holder: Holder, now: i64) -> usize {
        core::iter::from_fn(|| places.take(holder, now)).count()
    }

    #[test]
    fn there_is_one_place_until_a_probe_is_answered() -> Result {
        let mut places = Places::new();
        let first = places.take(ONE, 0).ok_or(ENOENT)?;
        assert_eq!(places.take(ONE, FIRST_TIMEOUT - 1), None);
        let second = places.take(ONE, FIRST_TIMEOUT).ok_or(ENOENT)?;
        // The first answer is too late.
        places.end(first, FIRST_TIMEOUT);
        assert_eq!(places.take(ONE, FIRST_TIMEOUT), None);
        places.end(second, FIRST_TIMEOUT);
        assert_eq!(fill(&mut places, ONE, FIRST_TIMEOUT), MOST);
        Ok(())
    }

    #[test]
    fn a_quick_answer_gives_the_place_at_once() -> Result {
        let mut places = places();
        let number = places.take(ONE, 5).ok_or(ENOENT)?;
        assert_eq!(fill(&mut places, ONE, 5), MOST - 1);
        places.end(number, 5 + QUICK - 1);
        assert_eq!(fill(&mut places, ONE, 5 + QUICK), 1);
        // No answer gives two.
        places.end(number, 5 + QUICK);
        assert_eq!(fill(&mut places, ONE, 5 + QUICK), 0);
        Ok(())
    }

    #[test]
    fn a_late_answer_gives_the_place_later() -> Result {
        for took in [SECOND, 20 * SECOND] {
            let mut places = places();
            let number = places.take(ONE, 0).ok_or(ENOENT)?;
            assert_eq!(fill(&mut places, holder(2), 0), MOST);
            places.end(number, took);
            let end = (1 + REST) * took;
            // Those that were not answered are given again meanwhile.
            fill(&mut places, holder(2), end - 1);
            assert_eq!(places.take(ONE, end - 1), None);
            assert!(places.take(ONE, end).is_some());
        }
        Ok(())
    }

    #[test]
    fn a_place_without_answers_is_given_ever_later() -> Result {
        let (mut places, mut now) = (places(), 0);
        for doublings in [0, 1, 2, 2] {
            assert_eq!(fill(&mut places, ONE, now), MOST);
            now += TIMEOUT << doublings;
            assert_eq!(fill(&mut places, ONE, now - 1), 0);
        }
        let number = places.take(ONE, now).ok_or(ENOENT)?;
        places.end(number, now);
        assert_eq!(fill(&mut places, ONE, now), MOST);
        // One of them was answered before.
        assert_eq!(fill(&mut places, ONE, now + TIMEOUT), 1);
        Ok(())
    }

    #[test]
    fn a_network_leaves_a_place_to_another() -> Result {
        let mut places = places();
        assert_eq!(fill(&mut places, ONE, 0), MOST);
        assert_eq!(fill(&mut places, holder(2), 0), PLACES - MOST);
        Ok(())
    }

    #[test]
    fn a_network_without_a_place_is_waited_for() -> Result {
        let mut places = places();
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
            places.end(number, 1);
        }
        // Of two free places one is left.
        assert_eq!(fill(&mut places, ONE, 1), MOST_BESIDE_OTHERS);
        assert_eq!(fill(&mut places, holder(2), 1), 0);
        assert!(places.take(holder(3), 1).is_some());
        // Nobody waits any more.
        assert_eq!(fill(&mut places, ONE, 1), 1);
        Ok(())
    }

    #[test]
    fn a_network_is_not_waited_for_for_ever() -> Result {
        let mut places = places();
        fill(&mut places, ONE, 0);
        fill(&mut places, holder(2), 0);
        assert_eq!(places.take(holder(3), 0), None);
        assert_eq!(fill(&mut places, ONE, WAIT), MOST);
        Ok(())
    }

    #[test]
    fn a_link_that_is_gone_has_no_place() -> Result {
        let mut places = places();
        fill(&mut places, ONE, 0);
        places.forget(Holder { link: 8, ..ONE });
        assert_eq!(fill(&mut places, ONE, 0), 0);
        places.forget(ONE);
        assert_eq!(fill(&mut places, ONE, 0), MOST);
        Ok(())
    }

    #[test]
    fn a_question_that_is_not_asked_gives_its_place_back() -> Result {
        let mut places = Places::new();
        let number = places.take(ONE, 0).ok_or(ENOENT)?;
        places.give_back(number);
        assert_eq!(fill(&mut places, ONE, 0), 1);
        Ok(())
    }
}
