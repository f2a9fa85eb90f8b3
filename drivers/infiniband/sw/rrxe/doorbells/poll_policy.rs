// SPDX-License-Identifier: GPL-2.0

//! The policy that decides when to poll a doorbell page: while its process posts so often that
//! polling is cheaper than the process's system calls, and a CPU is available for the poller.
//!
//! Times are nanoseconds since an arbitrary moment, the same for all calls that concern one page.

use kernel::prelude::*;

/// Longest time between two doorbell calls of one burst, in nanoseconds. The time after which an
/// idle poller ends applies instead if it is longer.
const BURST_GAP: i64 = 1_000_000;
/// Number of doorbell calls in a burst from which on the process counts as busy.
const BUSY_CALLS: u32 = 16;
/// Shortest time, in nanoseconds, for which a page is not polled after its poller got no CPU or its
/// doorbells rang without posts. The time doubles with each repetition.
const BACK_OFF: i64 = 10_000_000;
/// Longest time of a back-off, in nanoseconds.
const MAX_BACK_OFF: i64 = 1_000_000_000;

/// Record of a process's doorbell calls, which decides when to poll its page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollPolicy {
    /// Time of the last doorbell call.
    last_call: i64,
    /// Number of calls in the present burst.
    burst: u32,
    /// Length of the last back-off, in nanoseconds; zero if polling was useful since.
    back_off_time: i64,
    /// Time before which the page is not polled again.
    not_before: i64,
}

impl PollPolicy {
    /// Counts a doorbell call of the process at the time `now`. Returns whether to poll the page. A
    /// poller that finds no post ends after `idle_limit` nanoseconds.
    pub(crate) fn note_call(&mut self, now: i64, idle_limit: i64) -> bool {
        let gap = now.saturating_sub(self.last_call);
        self.last_call = now;
        self.burst = match gap <= BURST_GAP.max(idle_limit) {
            true => self.burst.saturating_add(1),
            false => 1,
        };
        self.burst >= BUSY_CALLS && now >= self.not_before
    }

    /// Notes that polling was useful, and ended since no more posts came.
    pub(crate) fn on_idle(&mut self) {
        self.burst = 0;
        self.back_off_time = 0;
    }

    /// Notes that polling was useless at the time `now`: doorbells had rung for some time and the
    /// poller had got no CPU, or the doorbells rang without posts. The page is not polled again
    /// before the end of the back-off.
    pub(crate) fn back_off(&mut self, now: i64) {
        self.burst = 0;
        self.back_off_time = self
            .back_off_time
            .saturating_mul(2)
            .clamp(BACK_OFF, MAX_BACK_OFF);
        self.not_before = now.saturating_add(self.back_off_time);
    }
}

#[kunit_tests(rrxe_poll_policy)]
mod tests {
    use super::*;

    /// Makes calls at intervals of `gap`, from `now` on, until the policy says to poll. Returns
    /// their number, or 100 if the policy never says so in 99 calls.
    fn calls(policy: &mut PollPolicy, now: &mut i64, gap: i64) -> u32 {
        for count in 1..100 {
            *now += gap;
            if policy.note_call(*now, 0) {
                return count;
            }
        }
        100
    }

    #[test]
    fn only_a_busy_process_is_polled() {
        let (mut policy, mut now) = (PollPolicy::default(), 1 << 40);
        assert_eq!(calls(&mut policy, &mut now, BURST_GAP + 1), 100);
        assert_eq!(calls(&mut policy, &mut now, BURST_GAP), BUSY_CALLS - 1);
        policy.on_idle();
        assert_eq!(calls(&mut policy, &mut now, 1), BUSY_CALLS);
        policy.on_idle();
        now += BURST_GAP + 1;
        assert!(!(1..BUSY_CALLS).any(|_| policy.note_call(now, 0)));
        now += BURST_GAP + 1;
        assert!(policy.note_call(now, BURST_GAP + 1));
    }

    #[test]
    fn useless_polling_backs_off_exponentially() {
        let (mut policy, mut now) = (PollPolicy::default(), 1 << 40);
        for back_off_time in [1, 2, 4, 8, 16, 32, 64, 100, 100] {
            policy.back_off(now);
            assert_eq!(policy.not_before - now, back_off_time * BACK_OFF);
            assert_eq!(calls(&mut policy, &mut now, 1), 100);
            now = policy.not_before;
            assert!(!policy.note_call(now, 0));
            assert_eq!(calls(&mut policy, &mut now, 1), BUSY_CALLS - 1);
        }
        policy.on_idle();
        policy.back_off(now);
        assert_eq!(policy.not_before - now, BACK_OFF);
    }
}
