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
const SHORTEST: Duration = Duration(50_000_000);
/// Longest interval between polls that find no receive: 1.6 s.
const LONGEST: Duration = Duration(1_600_000_000);

/// Polls of a QP's receive queue in the error state.
#[derive(Clone, Copy)]
pub(crate) struct ErrorPoll {
    /// Slot before which all receives had been flushed at the last poll.
    position: u32,
    /// Interval until the next poll.
    pause: Duration,
    /// Time of the next poll.
    due: Instant,
}

impl ErrorPoll {
    /// Creates the state before the first poll.
    pub(crate) const fn new() -> Self {
        Self {
            position: 0,
            pause: Duration(0),
            due: Instant(0),
        }
    }

    /// Returns the time of the next poll. All receives before slot `position` have been flushed.
    pub(crate) fn due(&mut self, now: Instant, position: u32) -> Instant {
        if position != self.position {
            (self.position, self.pause, self.due) = (position, SHORTEST, now.after(SHORTEST));
        } else if now >= self.due {
            let longer = Duration(self.pause.0.saturating_mul(2));
            self.pause = longer.clamp(SHORTEST, LONGEST);
            self.due = now.after(self.pause);
        }
        self.due
    }
}

#[kunit_tests(rrxe_error_poll)]
mod tests {
    use super::*;

    /// Returns the sum of the intervals of `looks` polls, in nanoseconds.
    fn pauses(poll: &mut ErrorPoll, from: &mut Instant, position: u32, looks: usize) -> u64 {
        let begin = *from;
        for _ in 0..looks {
            *from = poll.due(*from, position);
        }
        from.0.saturating_sub(begin.0)
    }

    #[test]
    fn a_qp_that_finds_nothing_looks_less_often() -> Result {
        let (mut poll, mut now) = (ErrorPoll::new(), Instant(1_000));
        assert_eq!(pauses(&mut poll, &mut now, 0, 1), SHORTEST.0);
        assert_eq!(pauses(&mut poll, &mut now, 0, 2), 6 * SHORTEST.0);
        pauses(&mut poll, &mut now, 0, 10);
        assert_eq!(pauses(&mut poll, &mut now, 0, 1), LONGEST.0);
        Ok(())
    }

    #[test]
    fn a_receive_makes_it_look_soon_again() -> Result {
        let (mut poll, mut now) = (ErrorPoll::new(), Instant(1_000));
        pauses(&mut poll, &mut now, 0, 10);
        // A run for another reason, before the poll is due.
        let early = Instant(now.0 + 5);
        poll.due(now, 0);
        assert_eq!(poll.due(early, 1), early.after(SHORTEST));
        Ok(())
    }

    #[test]
    fn turns_in_between_change_nothing() -> Result {
        let mut poll = ErrorPoll::new();
        let due = poll.due(Instant(1_000), 0);
        assert_eq!(poll.due(Instant(2_000), 0), due);
        assert_eq!(poll.due(Instant(3_000), 0), due);
        Ok(())
    }
}
