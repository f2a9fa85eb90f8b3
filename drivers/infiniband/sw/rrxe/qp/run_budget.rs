// SPDX-License-Identifier: GPL-2.0

//! How many turns one caller takes in a row.

use kernel::{
    prelude::*,
    time::{Delta, Instant, Monotonic},
};

/// After this time a caller begins no further turn: what it does has softirqs excluded. As long as the kernel has softirqs run
/// at most (`MAX_SOFTIRQ_TIME`, kernel/softirq.c, with a tick of 1 ms).
const LONGEST: Delta = Delta::from_millis(2);

/// The turns that a caller may still take, those of one QP and of local peers together.
pub(super) struct RunBudget {
    left: u32,
    /// It has taken one. Most callers take no other, so the clock is read from the second turn on.
    begun: bool,
    /// When the second turn had ended.
    since: Option<Instant<Monotonic>>,
}

impl RunBudget {
    /// So many turns.
    #[inline]
    pub(super) fn new(left: u32) -> Self {
        Self {
            left,
            begun: false,
            since: None,
        }
    }

    /// A turn was taken. Returns whether the caller may take another one.
    #[inline]
    pub(super) fn spend(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.begun {
            self.look_at_clock();
        }
        self.begun = true;
        self.left > 0
    }

    /// Whether there is a turn left.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.left > 0
    }

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
