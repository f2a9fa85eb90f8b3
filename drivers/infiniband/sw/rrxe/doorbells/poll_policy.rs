// SPDX-License-Identifier: GPL-2.0

//! When to watch a page of doorbells: while its process posts so often that watching is cheaper than
//! its calls, and a CPU can be had for it.
//!
//! Times are nanoseconds since any one moment.

use kernel::prelude::*;

/// Posts that are not farther apart than this, or than a page is watched in vain, belong together.
const NEAR: i64 = 1_000_000;
/// So many of them make a busy process.
const BUSY: u32 = 16;
/// How long a page isn't watched whose watcher got no CPU, or which rang in vain; it doubles each time, …
const PENALTY: i64 = 10_000_000;
/// … up to this.
const MAX_PENALTY: i64 = 1_000_000_000;

/// What is known of a process's posts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollPolicy {
    last: i64,
    near: u32,
    penalty: i64,
    not_before: i64,
}

impl PollPolicy {
    /// The process called to post at `now`. Returns whether its page is to be watched, which it would be
    /// for `idle_limit` in vain.
    pub(crate) fn called(&mut self, now: i64, idle_limit: i64) -> bool {
        let gap = now.saturating_sub(self.last);
        self.last = now;
        self.near = match gap <= NEAR.max(idle_limit) {
            true => self.near.saturating_add(1),
            false => 1,
        };
        self.near >= BUSY && now >= self.not_before
    }

    /// The page was watched until nothing came any more.
    pub(crate) fn on_idle(&mut self) {
        self.near = 0;
        self.penalty = 0;
    }

    /// At `now` it was no use watching: its doorbells had rung for long and the watcher had got no CPU, or
    /// they rang for nothing.
    pub(crate) fn back_off(&mut self, now: i64) {
        self.near = 0;
        self.penalty = self.penalty.saturating_mul(2).clamp(PENALTY, MAX_PENALTY);
        self.not_before = now.saturating_add(self.penalty);
    }
}

#[kunit_tests(rrxe_interest)]
mod tests {
    use super::*;

    /// Calls `gap` apart from `now` on until the page is to be watched; how many, at most 100.
    fn calls(policy: &mut PollPolicy, now: &mut i64, gap: i64) -> u32 {
        for count in 1..100 {
            *now += gap;
            if policy.called(*now, 0) {
                return count;
            }
        }
        100
    }

    #[test]
    fn wakes_for_the_busy_only() {
        let (mut policy, mut now) = (PollPolicy::default(), 1 << 40);
        assert_eq!(calls(&mut policy, &mut now, NEAR + 1), 100);
        assert_eq!(calls(&mut policy, &mut now, NEAR), BUSY - 1);
        policy.on_idle();
        assert_eq!(calls(&mut policy, &mut now, 1), BUSY);
        policy.on_idle();
        now += NEAR + 1;
        assert!(!(1..BUSY).any(|_| policy.called(now, 0)));
        now += NEAR + 1;
        assert!(policy.called(now, NEAR + 1));
    }

    #[test]
    fn waits_longer_and_longer_when_it_is_no_use() {
        let (mut policy, mut now) = (PollPolicy::default(), 1 << 40);
        for penalty in [1, 2, 4, 8, 16, 32, 64, 100, 100] {
            policy.back_off(now);
            assert_eq!(policy.not_before - now, penalty * PENALTY);
            assert_eq!(calls(&mut policy, &mut now, 1), 100);
            now = policy.not_before;
            assert!(!policy.called(now, 0));
            assert_eq!(calls(&mut policy, &mut now, 1), BUSY - 1);
        }
        policy.on_idle();
        policy.back_off(now);
        assert_eq!(policy.not_before - now, PENALTY);
    }
}
