// SPDX-License-Identifier: GPL-2.0

//! What a page of doorbells has of a poller, while other pages wait for it: as much as each of them.
//!
//! Times are nanoseconds since any one moment.

use kernel::{
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};

/// How long a page is watched while others wait.
const TURN: i64 = 50_000;
/// How long one is watched while none does, before the work queue is asked again.
const SLICE: i64 = 1_000_000;
/// What was too long by more than this isn't paid.
const MAX_DEBT: i64 = 100_000_000;

/// When to begin with no more, for one that begins at `now`, keeps others waiting and owes nothing.
pub(crate) fn end_of_turn(now: i64) -> i64 {
    now.saturating_add(TURN)
}

/// The debt of a page to pollers. Its watcher, of which there is one at a time, and the thread that serves the last
/// doorbells of a relieved watcher change it, at once at times.
pub(crate) struct Share {
    /// By how much its last turn was too long.
    debt: Atomic<i64>,
}

impl Share {
    /// That of a page that had nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            debt: Atomic::new(0),
        }
    }

    /// Whether the page does without a turn, and so pays for one, because it had too much and others wait.
    pub(crate) fn owes_a_turn(&self, others_wait: bool) -> bool {
        let debt = self.debt.load(Relaxed);
        let owes = debt >= TURN && others_wait;
        if owes {
            self.debt.store(debt.saturating_sub(TURN), Relaxed);
        } else if !others_wait {
            self.debt.store(0, Relaxed);
        }
        owes
    }

    /// The page is served from `now` on.
    pub(crate) fn begin(&self, now: i64) -> Stint<'_> {
        let owed = self.debt.load(Relaxed);
        Stint {
            share: self,
            began: now,
            owed,
            until: end_of_turn(now).saturating_sub(owed),
            settled: 0,
        }
    }
}

/// A stretch of time in which a page is served.
pub(crate) struct Stint<'a> {
    share: &'a Share,
    began: i64,
    /// The debt of the page then, which `until` allows for; zero once it was settled.
    owed: i64,
    until: i64,
    /// By how much it was too long when it was last ended.
    settled: i64,
}

impl Stint<'_> {
    /// When to begin with no more, should others wait.
    pub(crate) fn until(&self) -> i64 {
        self.until
    }

    /// Whether it is over at `now`.
    pub(crate) fn is_over(&mut self, now: i64, others_wait: bool) -> bool {
        let over = self.too_long(now, others_wait) >= 0 || now.saturating_sub(self.began) >= SLICE;
        if over {
            self.end(now, others_wait);
        }
        over
    }

    /// Ends it at `now`, perhaps once more. If others wait, the page owes the time after `until`.
    pub(crate) fn end(&mut self, now: i64, others_wait: bool) {
        let too_long = self.too_long(now, others_wait).max(0);
        // Another stretch may have ended meanwhile, or the page have paid.
        let change = self.share.debt.load(Relaxed).saturating_sub(self.owed);
        let more = too_long.saturating_sub(self.settled);
        let debt = more.saturating_add(change).clamp(0, MAX_DEBT);
        self.share.debt.store(debt, Relaxed);
        (self.owed, self.settled) = (0, too_long);
    }

    /// By how much it is too long at `now`.
    fn too_long(&mut self, now: i64, others_wait: bool) -> i64 {
        if !others_wait {
            self.until = end_of_turn(now);
        }
        now.saturating_sub(self.until)
    }
}

#[kunit_tests(rrxe_share)]
mod tests {
    use super::*;

    /// What each of pages has in a second, whose passes take so long.
    fn shares<const N: usize>(passes: [i64; N]) -> [i64; N] {
        let pages: [Share; N] = core::array::from_fn(|_| Share::new());
        let (mut now, mut had) = (0, [0; N]);
        while now < 1_000_000_000 {
            for ((page, pass), had) in pages.iter().zip(passes).zip(&mut had) {
                if page.owes_a_turn(true) {
                    continue;
                }
                let before = now;
                let mut stint = page.begin(now);
                loop {
                    now += pass;
                    if stint.is_over(now, true) {
                        break;
                    }
                }
                *had += now - before;
            }
        }
        had
    }

    #[test]
    fn are_even_whatever_passes_take() {
        for passes in [
            [1_000, 1_000, 1_000, 1_000],
            [1_000, 49_000, 51_000, 99_000],
            [2_000, 900_000, 900_000, 900_000],
            [2_000, 2_000, 2_000, 900_000],
            [2_000, 2_000, 2_000, 9_000_000],
        ] {
            for had in shares(passes) {
                assert!((240_000_000..=260_000_000).contains(&had));
            }
        }
    }

    #[test]
    fn of_one_alone_are_all() {
        let share = Share::new();
        let mut stint = share.begin(0);
        assert!(!stint.is_over(TURN, false));
        assert!(!stint.is_over(SLICE - 1, false));
        assert!(stint.is_over(SLICE, false));
        assert!(!share.owes_a_turn(true));
    }

    #[test]
    fn of_those_that_wait_come_soon() {
        let share = Share::new();
        let mut stint = share.begin(0);
        assert!(!stint.is_over(3 * TURN, false));
        assert!(!stint.is_over(4 * TURN - 1, true));
        assert!(stint.is_over(5 * TURN, true));
        assert!(share.owes_a_turn(true));
        assert!(!share.owes_a_turn(true));
    }

    /// A stretch that ends before its time, as that of a page which is watched no more.
    #[test]
    fn owe_what_was_too_long_whoever_ends_them() {
        let share = Share::new();
        share.begin(0).end(3 * TURN, true);
        assert!(share.owes_a_turn(true));
        assert!(share.owes_a_turn(true));
        assert!(!share.owes_a_turn(true));
        // The next one is shorter by what is owed still.
        share.begin(0).end(TURN + TURN / 2, true);
        assert_eq!(share.begin(0).until(), TURN / 2);
        share.begin(0).end(1, true);
        assert_eq!(share.begin(0).until(), TURN);
        // It kept nobody waiting.
        share.begin(0).end(9 * TURN, false);
        assert_eq!(share.begin(0).until(), TURN);
    }

    /// The watcher is in a long pass while a thread serves the last doorbells.
    #[test]
    fn owe_what_two_at_once_had() {
        let share = Share::new();
        let (mut watcher, mut thread) = (share.begin(0), share.begin(0));
        thread.end(3 * TURN, true);
        watcher.end(3 * TURN, true);
        for _ in 0..4 {
            assert!(share.owes_a_turn(true));
        }
        assert!(!share.owes_a_turn(true));
    }

    /// The watcher ends its stretch, then serves the last doorbells and ends it again.
    #[test]
    fn owe_what_was_too_long_once() {
        let share = Share::new();
        let mut stint = share.begin(0);
        stint.end(3 * TURN, true);
        stint.end(4 * TURN - 1, true);
        assert!(share.owes_a_turn(true));
        assert!(share.owes_a_turn(true));
        assert!(!share.owes_a_turn(true));
    }

    #[test]
    fn are_forgiven_when_nobody_waits() {
        let share = Share::new();
        assert!(share.begin(0).is_over(9 * TURN, true));
        assert!(share.owes_a_turn(true));
        assert!(!share.owes_a_turn(false));
        assert!(!share.owes_a_turn(true));
    }
}
