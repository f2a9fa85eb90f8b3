// SPDX-License-Identifier: GPL-2.0

//! Run budget: the number of runs of engines (`qp/run.rs`) that one caller makes.

use kernel::{
    prelude::*,
    time::{Delta, Instant, Monotonic},
};

/// Time after which a caller begins no further run, because softirqs are excluded during its runs.
/// It equals the longest time for which the kernel runs softirqs in a row (`MAX_SOFTIRQ_TIME`,
/// kernel/softirq.c, with a tick of 1 ms).
const MAX_TIME: Delta = Delta::from_millis(2);

/// The runs that a caller may still make, those of one QP and of its local peers (QPs of this host
/// to which it sends) together. Local peers of other payers have a budget of their own.
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

    /// Ends the budget if more than [`MAX_TIME`] has passed since the end of the second run.
    fn look_at_clock(&mut self) {
        let now = Instant::now();
        if now - *self.since.get_or_insert(now) >= MAX_TIME {
            self.left = 0;
        }
    }
}

#[kunit_tests(rrxe_run_budget)]
mod tests {
    use super::*;
    use kernel::time::delay::fsleep;

    #[test]
    fn ends_after_the_given_number_of_runs() {
        let mut budget = RunBudget::new(2);
        assert!(budget.spend());
        assert!(!budget.spend());
        assert!(!budget.is_left());
        assert!(!RunBudget::new(0).is_left());
    }

    #[test]
    fn ends_after_max_time() {
        let mut budget = RunBudget::new(u32::MAX);
        assert!(budget.spend());
        budget.spend();
        fsleep(MAX_TIME);
        assert!(!budget.spend());
        assert!(!budget.is_left());
    }
}
