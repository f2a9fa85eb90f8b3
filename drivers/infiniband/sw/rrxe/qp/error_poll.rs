// SPDX-License-Identifier: GPL-2.0

//! Polling of the receive queue by a QP in the error state.
//!
//! Receives that are posted to a QP in the error state have to be flushed. The stock provider of
//! rdma-core makes no system call when it posts a receive. So the QP polls its receive queue by a
//! timer, which costs the process nothing. The interval doubles each time the QP finds no receive,
//! because a user may leave any number of QPs in the error state.

use kernel::prelude::*;
use roce::time::{Duration, Instant};

/// Interval between the first polls, and after a poll that found a receive: 50 ms.
const MIN_INTERVAL: Duration = Duration(50_000_000);
/// Longest interval between polls that find no receive: 1.6 s.
const MAX_INTERVAL: Duration = Duration(1_600_000_000);

/// Polls of a QP's receive queue in the error state.
#[derive(Clone, Copy)]
pub(crate) struct ErrorPoll {
    /// Slot before which all receives had been flushed at the last poll.
    position: u32,
    /// Interval until the next poll.
    interval: Duration,
    /// Time of the next poll.
    due: Instant,
}

impl ErrorPoll {
    /// Creates the state before the first poll.
    pub(crate) const fn new() -> Self {
        Self {
            position: 0,
            interval: Duration(0),
            due: Instant(0),
        }
    }

    /// Returns the time of the next poll. All receives before slot `position` have been flushed.
    pub(crate) fn due(&mut self, now: Instant, position: u32) -> Instant {
        if position != self.position {
            (self.position, self.interval, self.due) =
                (position, MIN_INTERVAL, now.after(MIN_INTERVAL));
        } else if now >= self.due {
            let longer = Duration(self.interval.0.saturating_mul(2));
            self.interval = longer.clamp(MIN_INTERVAL, MAX_INTERVAL);
            self.due = now.after(self.interval);
        }
        self.due
    }
}

#[kunit_tests(rrxe_error_poll)]
mod tests {
    use super::*;

    /// Returns the sum of the intervals of `polls` polls, in nanoseconds.
    fn intervals(poll: &mut ErrorPoll, from: &mut Instant, position: u32, polls: usize) -> u64 {
        let begin = *from;
        for _ in 0..polls {
            *from = poll.due(*from, position);
        }
        from.0.saturating_sub(begin.0)
    }

    #[test]
    fn the_interval_doubles_without_a_receive() -> Result {
        let (mut poll, mut now) = (ErrorPoll::new(), Instant(1_000));
        assert_eq!(intervals(&mut poll, &mut now, 0, 1), MIN_INTERVAL.0);
        assert_eq!(intervals(&mut poll, &mut now, 0, 2), 6 * MIN_INTERVAL.0);
        intervals(&mut poll, &mut now, 0, 10);
        assert_eq!(intervals(&mut poll, &mut now, 0, 1), MAX_INTERVAL.0);
        Ok(())
    }

    #[test]
    fn a_receive_resets_the_interval() -> Result {
        let (mut poll, mut now) = (ErrorPoll::new(), Instant(1_000));
        intervals(&mut poll, &mut now, 0, 10);
        // A run for another reason, before the poll is due.
        let early = Instant(now.0 + 5);
        poll.due(now, 0);
        assert_eq!(poll.due(early, 1), early.after(MIN_INTERVAL));
        Ok(())
    }

    #[test]
    fn runs_in_between_change_nothing() -> Result {
        let mut poll = ErrorPoll::new();
        let due = poll.due(Instant(1_000), 0);
        assert_eq!(poll.due(Instant(2_000), 0), due);
        assert_eq!(poll.due(Instant(3_000), 0), due);
        Ok(())
    }
}
