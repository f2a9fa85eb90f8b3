// SPDX-License-Identifier: GPL-2.0

//! The places of questions that ib_core has not handled yet, of a network whose administrator is none of the host's.
//!
//! ib_core sleeps a second at most for each look-up of an address. It makes two for some questions, and one for the probe
//! behind a question. A place is taken until the probe is answered, and after that for as long again as many times
//! [`REST`] as this has taken: so ib_core sleeps a quarter of the time at most for a device.

use kernel::prelude::*;

/// How many places there are.
const PLACES: usize = 4;
/// Nanoseconds until a place is given again whose probe is not answered.
const TIMEOUT: i64 = 64_000_000_000;
/// The same while none was answered ever. ib_core answers none before connection management takes part, which is after
/// the GSI QP takes datagrams. There is one place then.
const FIRST_TIMEOUT: i64 = 16_000_000_000;
/// Nanoseconds of an answer after which its place is given again at once: others notice nothing of these.
const QUICK: i64 = 10_000_000;
/// How many times longer a place rests than an answer has taken that was not quick.
const REST: i64 = 16;

#[derive(Clone, Copy)]
enum Place {
    /// Nobody has it after this time, in nanoseconds.
    Free(i64),
    /// Of the question before the probe with this number, since then.
    Taken { number: u32, since: i64 },
}

/// The places of a device.
pub(super) struct Places {
    /// ib_core has answered a probe.
    answers: bool,
    places: [Place; PLACES],
}

impl Places {
    /// All are free.
    pub(super) const fn new() -> Self {
        Self {
            answers: false,
            places: [Place::Free(0); PLACES],
        }
    }

    /// A place that is free at `now`.
    pub(super) fn find(&self, now: i64) -> Option<usize> {
        let (count, timeout) = match self.answers {
            true => (PLACES, TIMEOUT),
            false => (1, FIRST_TIMEOUT),
        };
        let is_free = |place: &Place| match *place {
            Place::Free(from) => from <= now,
            Place::Taken { since, .. } => since.saturating_add(timeout) <= now,
        };
        self.places.iter().take(count).position(is_free)
    }

    /// Gives a place to the question before the probe with this number.
    pub(super) fn take(&mut self, place: usize, number: u32, now: i64) {
        if let Some(place) = self.places.get_mut(place) {
            *place = Place::Taken { number, since: now };
        }
    }

    /// Whether `number` is that of a probe, which is answered at `now`.
    pub(super) fn end(&mut self, number: u32, now: i64) -> bool {
        for place in &mut self.places {
            let since = match *place {
                Place::Taken {
                    number: taken,
                    since,
                } if taken == number => since,
                _ => continue,
            };
            let took = now.saturating_sub(since);
            let rest = match took < QUICK {
                true => 0,
                false => took.saturating_mul(REST).min(TIMEOUT),
            };
            *place = Place::Free(now.saturating_add(rest));
            self.answers = true;
            return true;
        }
        false
    }
}

#[kunit_tests(rrxe_gsi_places)]
mod tests {
    use super::*;

    /// With a first probe that was answered, so that all places are there.
    fn places() -> Places {
        let mut places = Places::new();
        places.take(0, u32::MAX, 0);
        places.end(u32::MAX, 0);
        places
    }

    /// Takes all that are free.
    fn fill(places: &mut Places, now: i64, mut number: u32) -> u32 {
        let first = number;
        while let Some(place) = places.find(now) {
            places.take(place, number, now);
            number += 1;
        }
        number - first
    }

    #[test]
    fn there_is_one_place_until_a_probe_is_answered() -> Result {
        let mut places = Places::new();
        assert_eq!(fill(&mut places, 0, 1), 1);
        assert_eq!(places.find(FIRST_TIMEOUT - 1), None);
        assert_eq!(fill(&mut places, FIRST_TIMEOUT, 2), 1);
        assert!(!places.end(1, FIRST_TIMEOUT));
        assert!(places.end(2, FIRST_TIMEOUT));
        assert_eq!(fill(&mut places, FIRST_TIMEOUT, 3), PLACES as u32);
        Ok(())
    }

    #[test]
    fn a_quick_answer_gives_the_place_at_once() -> Result {
        let mut places = places();
        assert_eq!(fill(&mut places, 5, 1), PLACES as u32);
        assert!(places.end(2, 5 + QUICK - 1));
        assert_eq!(fill(&mut places, 5 + QUICK, 100), 1);
        // No answer gives two.
        assert!(!places.end(2, 5 + QUICK));
        assert_eq!(places.find(5 + QUICK), None);
        Ok(())
    }

    #[test]
    fn a_late_answer_gives_the_place_later() -> Result {
        let mut places = places();
        fill(&mut places, 0, 1);
        let second = 1_000_000_000;
        assert!(places.end(1, second));
        assert_eq!(places.find((1 + REST) * second - 1), None);
        assert_eq!(fill(&mut places, (1 + REST) * second, 100), 1);
        Ok(())
    }

    #[test]
    fn a_place_is_given_again_when_there_is_no_answer() -> Result {
        let mut places = places();
        fill(&mut places, 0, 1);
        assert_eq!(places.find(TIMEOUT - 1), None);
        assert_eq!(fill(&mut places, TIMEOUT, 100), PLACES as u32);
        assert!(!places.end(1, TIMEOUT));
        Ok(())
    }
}
