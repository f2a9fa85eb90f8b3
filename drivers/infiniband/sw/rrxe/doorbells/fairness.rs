// SPDX-License-Identifier: GPL-2.0

//! What a page of doorbells has of a poller, while other pages wait for it: as much as each of them.
//!
//! Times are nanoseconds since any one moment.

use kernel::{
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};

/// How long a page is watched while others wait.
const CONTENDED_SLICE: i64 = 50_000;
/// How long one is watched while none does, before the work queue is asked again.
const LONE_SLICE: i64 = 1_000_000;
/// What was too long by more than this isn't paid.
const MAX_DEFICIT: i64 = 100_000_000;

/// When to begin with no more, for one that begins at `now`, keeps others waiting and owes nothing.
pub(crate) fn end_of_slice(now: i64) -> i64 {
    now.saturating_add(CONTENDED_SLICE)
}

/// The debt of a page to pollers. Its watcher, of which there is one at a time, and the thread that serves the last
/// doorbells of a relieved watcher change it, at once at times.
pub(crate) struct Deficit {
    /// By how much its last turn was too long.
    deficit: Atomic<i64>,
}

impl Deficit {
    /// That of a page that had nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            deficit: Atomic::new(0),
        }
    }

    /// Whether the page does without a turn, and so pays for one, because it had too much and others wait.
    pub(crate) fn skips_slice(&self, others_wait: bool) -> bool {
        let deficit = self.deficit.load(Relaxed);
        let owes = deficit >= CONTENDED_SLICE && others_wait;
        if owes {
            self.deficit
                .store(deficit.saturating_sub(CONTENDED_SLICE), Relaxed);
        } else if !others_wait {
            self.deficit.store(0, Relaxed);
        }
        owes
    }

    /// The page is served from `now` on.
    pub(crate) fn begin(&self, now: i64) -> Slice<'_> {
        let initial_deficit = self.deficit.load(Relaxed);
        Slice {
            permit: self,
            began: now,
            initial_deficit,
            until: end_of_slice(now).saturating_sub(initial_deficit),
            charged: 0,
        }
    }
}

/// A stretch of time in which a page is served.
pub(crate) struct Slice<'a> {
    permit: &'a Deficit,
    began: i64,
    /// The debt of the page then, which `until` allows for; zero once it was settled.
    initial_deficit: i64,
    until: i64,
    /// By how much it was too long when it was last ended.
    charged: i64,
}

impl Slice<'_> {
    /// When to begin with no more, should others wait.
    pub(crate) fn until(&self) -> i64 {
        self.until
    }

    /// Whether it is over at `now`.
    pub(crate) fn is_over(&mut self, now: i64, others_wait: bool) -> bool {
        let over =
            self.excess(now, others_wait) >= 0 || now.saturating_sub(self.began) >= LONE_SLICE;
        if over {
            self.end(now, others_wait);
        }
        over
    }

    /// Ends it at `now`, perhaps once more. If others wait, the page owes the time after `until`.
    pub(crate) fn end(&mut self, now: i64, others_wait: bool) {
        let excess = self.excess(now, others_wait).max(0);
        // Another stretch may have ended meanwhile, or the page have paid.
        let change = self
            .permit
            .deficit
            .load(Relaxed)
            .saturating_sub(self.initial_deficit);
        let more = excess.saturating_sub(self.charged);
        let deficit = more.saturating_add(change).clamp(0, MAX_DEFICIT);
        self.permit.deficit.store(deficit, Relaxed);
        (self.initial_deficit, self.charged) = (0, excess);
    }

    /// By how much it is too long at `now`.
    fn excess(&mut self, now: i64, others_wait: bool) -> i64 {
        if !others_wait {
            self.until = end_of_slice(now);
        }
        now.saturating_sub(self.until)
    }
}

#[kunit_tests(rrxe_share)]
mod tests {
    use super::*;

    /// What each of pages has in a second, whose passes take so long.
    fn shares<const N: usize>(passes: [i64; N]) -> [i64; N] {
        let pages: [Deficit; N] = core::array::from_fn(|_| Deficit::new());
        let (mut now, mut had) = (0, [0; N]);
        while now < 1_000_000_000 {
            for ((page, pass), had) in pages.iter().zip(passes).zip(&mut had) {
                if page.skips_slice(true) {
                    continue;
                }
                let before = now;
                let mut slice = page.begin(now);
                loop {
                    now += pass;
                    if slice.is_over(now, true) {
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
        let permit = Deficit::new();
        let mut slice = permit.begin(0);
        assert!(!slice.is_over(CONTENDED_SLICE, false));
        assert!(!slice.is_over(LONE_SLICE - 1, false));
        assert!(slice.is_over(LONE_SLICE, false));
        assert!(!permit.skips_slice(true));
    }

    #[test]
    fn of_those_that_wait_come_soon() {
        let permit = Deficit::new();
        let mut slice = permit.begin(0);
        assert!(!slice.is_over(3 * CONTENDED_SLICE, false));
        assert!(!slice.is_over(4 * CONTENDED_SLICE - 1, true));
        assert!(slice.is_over(5 * CONTENDED_SLICE, true));
        assert!(permit.skips_slice(true));
        assert!(!permit.skips_slice(true));
    }

    /// A stretch that ends before its time, as that of a page which is watched no more.
    #[test]
    fn owe_what_was_too_long_whoever_ends_them() {
        let permit = Deficit::new();
        permit.begin(0).end(3 * CONTENDED_SLICE, true);
        assert!(permit.skips_slice(true));
        assert!(permit.skips_slice(true));
        assert!(!permit.skips_slice(true));
        // The next one is shorter by what is owed still.
        permit
            .begin(0)
            .end(CONTENDED_SLICE + CONTENDED_SLICE / 2, true);
        assert_eq!(permit.begin(0).until(), CONTENDED_SLICE / 2);
        permit.begin(0).end(1, true);
        assert_eq!(permit.begin(0).until(), CONTENDED_SLICE);
        // It kept nobody waiting.
        permit.begin(0).end(9 * CONTENDED_SLICE, false);
        assert_eq!(permit.begin(0).until(), CONTENDED_SLICE);
    }

    /// The watcher is in a long pass while a thread serves the last doorbells.
    #[test]
    fn owe_what_two_at_once_had() {
        let permit = Deficit::new();
        let (mut watcher, mut thread) = (permit.begin(0), permit.begin(0));
        thread.end(3 * CONTENDED_SLICE, true);
        watcher.end(3 * CONTENDED_SLICE, true);
        for _ in 0..4 {
            assert!(permit.skips_slice(true));
        }
        assert!(!permit.skips_slice(true));
    }

    /// The watcher ends its stretch, then serves the last doorbells and ends it again.
    #[test]
    fn owe_what_was_too_long_once() {
        let permit = Deficit::new();
        let mut slice = permit.begin(0);
        slice.end(3 * CONTENDED_SLICE, true);
        slice.end(4 * CONTENDED_SLICE - 1, true);
        assert!(permit.skips_slice(true));
        assert!(permit.skips_slice(true));
        assert!(!permit.skips_slice(true));
    }

    #[test]
    fn are_forgiven_when_nobody_waits() {
        let permit = Deficit::new();
        assert!(permit.begin(0).is_over(9 * CONTENDED_SLICE, true));
        assert!(permit.skips_slice(true));
        assert!(!permit.skips_slice(false));
        assert!(!permit.skips_slice(true));
    }
}
