// SPDX-License-Identifier: GPL-2.0

//! Deficit round robin between doorbell pages: while several pages wait for threads, the pollers of
//! all pages get the same time.
//!
//! Times are nanoseconds since an arbitrary moment, the same for all calls that concern one page.

use kernel::{
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};

/// Length of a page's slice while other pages wait, in nanoseconds.
const CONTENDED_SLICE: i64 = 50_000;
/// Length of a page's slice while no other page waits, in nanoseconds. The poller's item is queued
/// again after it.
const LONE_SLICE: i64 = 1_000_000;
/// Upper bound of a deficit, in nanoseconds. The excess above it is forgiven.
const MAX_DEFICIT: i64 = 100_000_000;

/// Returns the end of a slice that begins at `now`, for a page without deficit while other pages
/// wait.
pub(crate) fn end_of_slice(now: i64) -> i64 {
    now.saturating_add(CONTENDED_SLICE)
}

/// Time that a page has had in excess of its slices while other pages waited. Two threads change
/// it, at times concurrently: the page's poller, of which there is one at a time, and the thread
/// that serves the last doorbells after the watchdog has ended polling.
pub(crate) struct Deficit {
    /// Excess in nanoseconds, from 0 to [`MAX_DEFICIT`].
    nanos: Atomic<i64>,
}

impl Deficit {
    /// Creates the deficit of a new page: zero.
    pub(crate) fn new() -> Self {
        Self {
            nanos: Atomic::new(0),
        }
    }

    /// Returns whether the page skips a slice, because its deficit is at least one slice and others
    /// wait. The skipped slice is taken off the deficit. If no page waits, the deficit is forgiven.
    pub(crate) fn skips_slice(&self, others_wait: bool) -> bool {
        let deficit = self.nanos.load(Relaxed);
        let owes = deficit >= CONTENDED_SLICE && others_wait;
        if owes {
            self.nanos
                .store(deficit.saturating_sub(CONTENDED_SLICE), Relaxed);
        } else if !others_wait {
            self.nanos.store(0, Relaxed);
        }
        owes
    }

    /// Begins a slice of the page at the time `now`.
    pub(crate) fn begin(&self, now: i64) -> Slice<'_> {
        let initial_deficit = self.nanos.load(Relaxed);
        Slice {
            deficit: self,
            began: now,
            initial_deficit,
            until: end_of_slice(now).saturating_sub(initial_deficit),
            charged: 0,
        }
    }
}

/// A stretch of time in which a thread serves the page's doorbells.
pub(crate) struct Slice<'a> {
    /// Deficit of the page.
    deficit: &'a Deficit,
    /// Time when the slice began.
    began: i64,
    /// Deficit of the page when the slice began, which `until` allows for; zero after the slice was
    /// ended.
    initial_deficit: i64,
    /// Time when the slice ends if other pages wait.
    until: i64,
    /// Excess in nanoseconds that was added to the deficit when the slice was last ended.
    charged: i64,
}

impl Slice<'_> {
    /// Returns the time after which no further doorbell should be served if others wait.
    pub(crate) fn until(&self) -> i64 {
        self.until
    }

    /// Returns whether the slice is over at the time `now`, and ends it then.
    pub(crate) fn is_over(&mut self, now: i64, others_wait: bool) -> bool {
        let over =
            self.excess(now, others_wait) >= 0 || now.saturating_sub(self.began) >= LONE_SLICE;
        if over {
            self.end(now, others_wait);
        }
        over
    }

    /// Ends the slice at the time `now`; may be called again later. If others wait, the time after
    /// `until` is added to the page's deficit.
    pub(crate) fn end(&mut self, now: i64, others_wait: bool) {
        let excess = self.excess(now, others_wait).max(0);
        // Another slice may have changed the deficit meanwhile, or the page may have skipped a
        // slice.
        let change = self
            .deficit
            .nanos
            .load(Relaxed)
            .saturating_sub(self.initial_deficit);
        let more = excess.saturating_sub(self.charged);
        let deficit = more.saturating_add(change).clamp(0, MAX_DEFICIT);
        self.deficit.nanos.store(deficit, Relaxed);
        (self.initial_deficit, self.charged) = (0, excess);
    }

    /// Returns the excess of the slice at the time `now`, in nanoseconds; negative before its end.
    /// While no other page waits, the slice's end moves on with `now`.
    fn excess(&mut self, now: i64, others_wait: bool) -> i64 {
        if !others_wait {
            self.until = end_of_slice(now);
        }
        now.saturating_sub(self.until)
    }
}

#[kunit_tests(rrxe_fairness)]
mod tests {
    use super::*;

    /// Returns the nanoseconds that each of `N` pages gets within a second. A pass over page `i`
    /// takes `passes[i]`.
    fn times_served<const N: usize>(passes: [i64; N]) -> [i64; N] {
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
    fn slices_are_fair_for_any_pass_length() {
        for passes in [
            [1_000, 1_000, 1_000, 1_000],
            [1_000, 49_000, 51_000, 99_000],
            [2_000, 900_000, 900_000, 900_000],
            [2_000, 2_000, 2_000, 900_000],
            [2_000, 2_000, 2_000, 9_000_000],
        ] {
            for had in times_served(passes) {
                assert!((240_000_000..=260_000_000).contains(&had));
            }
        }
    }

    #[test]
    fn a_lone_page_gets_long_slices() {
        let deficit = Deficit::new();
        let mut slice = deficit.begin(0);
        assert!(!slice.is_over(CONTENDED_SLICE, false));
        assert!(!slice.is_over(LONE_SLICE - 1, false));
        assert!(slice.is_over(LONE_SLICE, false));
        assert!(!deficit.skips_slice(true));
    }

    #[test]
    fn a_long_slice_ends_when_another_page_waits() {
        let deficit = Deficit::new();
        let mut slice = deficit.begin(0);
        assert!(!slice.is_over(3 * CONTENDED_SLICE, false));
        assert!(!slice.is_over(4 * CONTENDED_SLICE - 1, true));
        assert!(slice.is_over(5 * CONTENDED_SLICE, true));
        assert!(deficit.skips_slice(true));
        assert!(!deficit.skips_slice(true));
    }

    /// A slice that is ended without a call of `is_over`, because the page is no longer polled.
    #[test]
    fn the_excess_of_a_slice_is_charged() {
        let deficit = Deficit::new();
        deficit.begin(0).end(3 * CONTENDED_SLICE, true);
        assert!(deficit.skips_slice(true));
        assert!(deficit.skips_slice(true));
        assert!(!deficit.skips_slice(true));
        // The next slice is shorter by the remaining deficit.
        deficit
            .begin(0)
            .end(CONTENDED_SLICE + CONTENDED_SLICE / 2, true);
        assert_eq!(deficit.begin(0).until(), CONTENDED_SLICE / 2);
        deficit.begin(0).end(1, true);
        assert_eq!(deficit.begin(0).until(), CONTENDED_SLICE);
        // No other page waits when this slice ends.
        deficit.begin(0).end(9 * CONTENDED_SLICE, false);
        assert_eq!(deficit.begin(0).until(), CONTENDED_SLICE);
    }

    /// The poller is in a long pass while a thread serves the last doorbells.
    #[test]
    fn two_concurrent_slices_are_both_charged() {
        let deficit = Deficit::new();
        let (mut poller, mut thread) = (deficit.begin(0), deficit.begin(0));
        thread.end(3 * CONTENDED_SLICE, true);
        poller.end(3 * CONTENDED_SLICE, true);
        for _ in 0..4 {
            assert!(deficit.skips_slice(true));
        }
        assert!(!deficit.skips_slice(true));
    }

    /// The poller ends its slice, then serves the last doorbells and ends the slice again.
    #[test]
    fn an_excess_is_charged_once() {
        let deficit = Deficit::new();
        let mut slice = deficit.begin(0);
        slice.end(3 * CONTENDED_SLICE, true);
        slice.end(4 * CONTENDED_SLICE - 1, true);
        assert!(deficit.skips_slice(true));
        assert!(deficit.skips_slice(true));
        assert!(!deficit.skips_slice(true));
    }

    #[test]
    fn a_deficit_is_forgiven_when_no_page_waits() {
        let deficit = Deficit::new();
        assert!(deficit.begin(0).is_over(9 * CONTENDED_SLICE, true));
        assert!(deficit.skips_slice(true));
        assert!(!deficit.skips_slice(false));
        assert!(!deficit.skips_slice(true));
    }
}
