// SPDX-License-Identifier: GPL-2.0

//! When a QP in the error state looks for receives.
//!
//! The stock provider of rdma-core makes no system call when it posts a receive, and a receive that is posted to a QP in the
//! error state is to be flushed. So the QP has a timer, which costs its process nothing. A QP that finds no receive looks
//! ever less often: a user may leave any number of QPs in the error state.

use kernel::prelude::*;
use roce::time::{Duration, Instant};

/// Between the first looks, and after one that found a receive.
const SHORTEST: Duration = Duration(50_000_000);
/// Between the looks of a QP that finds none.
const LONGEST: Duration = Duration(1_600_000_000);

/// The looks of a QP.
#[derive(Clone, Copy)]
pub(crate) struct ErrorPoll {
    /// Where in its receive queue the last look came to.
    position: u32,
    /// The time between looks.
    pause: Duration,
    /// When the next one is.
    due: Instant,
}

impl ErrorPoll {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self {
            position: 0,
            pause: Duration(0),
            due: Instant(0),
        }
    }

    /// When the next look is, once all receives before `position` of the queue have been flushed.
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

    /// The pauses of so many looks.
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
        // A turn that came before the look was due, for another reason.
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
