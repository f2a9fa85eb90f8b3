// SPDX-License-Identifier: GPL-2.0

//! Run budget: how many runs of engines one caller makes.

use kernel::{
    prelude::*,
    time::{Delta, Instant, Monotonic},
};

/// Time after which a caller begins no further run, because softirqs are excluded during its runs.
/// It equals the longest time for which the kernel runs softirqs in a row (`MAX_SOFTIRQ_TIME`,
/// kernel/softirq.c, with a tick of 1 ms).
const LONGEST: Delta = Delta::from_millis(2);

/// The runs that a caller may still make, those of one QP and of its local peers together.
pub(super) struct RunBudget {
    /// Number of runs left.
    left: u32,
    /// The first run was made. Most callers make no other, so the clock is read from the second run
    /// on.
    begun: bool,
    /// End of the second run.
    since: Option<Instant<Monotonic>>,
}

impl RunBudget {
    /// Creates a budget of `left` runs.
    #[inline]
    pub(super) fn new(left: u32) -> Self {
        Self {
            left,
            begun: false,
            since: None,
        }
    }

    /// Takes one run off the budget after it was made. Returns whether the caller may make another
    /// run.
    #[inline]
    pub(super) fn spend(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.begun {
            self.look_at_clock();
        }
        self.begun = true;
        self.left > 0
    }

    /// Returns whether a run is left.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.left > 0
    }

    /// Ends the budget if more than [`LONGEST`] has passed since the end of the second run.
    fn look_at_clock(&mut self) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LONGEST {
            self.left = 0;
        }
    }
}

#[kunit_tests(rrxe_rounds)]
mod tests {
    use super::*;
    use kernel::time::delay::fsleep;

    #[test]
    fn end_after_so_many() {
        let mut rounds = RunBudget::new(2);
        assert!(rounds.spend());
        assert!(!rounds.spend());
        assert!(!rounds.is_left());
        assert!(!RunBudget::new(0).is_left());
    }

    #[test]
    fn end_after_a_time() {
        let mut rounds = RunBudget::new(u32::MAX);
        assert!(rounds.spend());
        rounds.spend();
        fsleep(LONGEST);
        assert!(!rounds.spend());
        assert!(!rounds.is_left());
    }
}
