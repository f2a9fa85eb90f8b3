// SPDX-License-Identifier: GPL-2.0

//! How many management datagrams a GSI QP takes: of all senders, and of each.
//!
//! Any user may send such a datagram: by connection management, whose address is one of this host or of another one. So
//! the addresses share the rate, by their hash: who has one address, or a few, does not take what others need.

use kernel::prelude::*;
use rdma::gid::Gid;

/// Nanoseconds.
const SECOND: i64 = 1_000_000_000;
/// How many shares there are, a power of two.
const SHARES: usize = 256;

/// How often something may happen.
pub(super) struct Pace {
    /// How often at once.
    burst: i64,
    /// Nanoseconds until it may happen once more.
    interval: i64,
}

impl Pace {
    pub(super) const fn new(burst: i64, a_second: i64) -> Self {
        Self {
            burst,
            interval: SECOND / a_second,
        }
    }
}

/// When the next is due that is not early, in nanoseconds.
#[derive(Clone, Copy)]
struct Due(i64);

impl Due {
    /// Whether it may happen once more, at `now`.
    fn admits(&mut self, pace: &Pace, now: i64) -> bool {
        let due = self.0.max(now);
        let early = due.saturating_sub(now);
        let admitted = early < pace.burst.saturating_mul(pace.interval);
        if admitted {
            self.0 = due.saturating_add(pace.interval);
        }
        admitted
    }
}

/// A rate for all senders together, and one for those of each share.
pub(super) struct Rate {
    pace: Pace,
    due: Due,
    share_pace: Pace,
    shares: [Due; SHARES],
    /// Addresses of one share under this key have different ones under another.
    key: u64,
}

impl Rate {
    /// Nothing has happened. `key` is random.
    pub(super) const fn new(pace: Pace, share_pace: Pace, key: u64) -> Self {
        Self {
            pace,
            due: Due(0),
            share_pace,
            shares: [Due(0); SHARES],
            key,
        }
    }

    /// Whether one more of `sender` is taken, at `now`.
    pub(super) fn admits(&mut self, sender: Gid, now: i64) -> bool {
        let share = self.shares.get_mut(share(sender, self.key));
        share.is_some_and(|share| share.admits(&self.share_pace, now))
            && self.due.admits(&self.pace, now)
    }
}

/// The share of an address.
fn share(sender: Gid, key: u64) -> usize {
    /// Odd, and half of its bits are set: 2⁶⁴ divided by the golden ratio.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let address = u128::from_ne_bytes(sender.0);
    let mix = |word: u64| (word ^ word >> 32).wrapping_mul(MULTIPLIER);
    let mixed = mix(mix(address as u64 ^ key) ^ (address >> 64) as u64);
    (mixed >> 32) as usize % SHARES
}

#[kunit_tests(rrxe_gsi_rate)]
mod tests {
    use super::*;

    const ONE: Gid = Gid([1; 16]);
    const OTHER: Gid = Gid([2; 16]);

    #[test]
    fn a_rate_admits_a_burst_and_then_its_share() -> Result {
        let (pace, mut due) = (Pace::new(4, 1_000_000), Due(0));
        let mut admitted = |now: i64| (0..100).filter(|_| due.admits(&pace, now)).count();
        assert_eq!(admitted(1_000_000), 4);
        assert_eq!(admitted(1_000_000), 0);
        assert_eq!(admitted(1_002_000), 2);
        // Time that passes without any is not kept.
        assert_eq!(admitted(9_000_000), 4);
        Ok(())
    }

    #[test]
    fn a_sender_takes_no_more_than_its_share() -> Result {
        let mut rate = Rate::new(Pace::new(8, 1_000), Pace::new(2, 1_000), 1);
        let mut admitted = |sender: Gid| (0..100).filter(|_| rate.admits(sender, 1_000)).count();
        assert_eq!(admitted(ONE), 2);
        assert_eq!(admitted(OTHER), 2);
        assert_eq!(admitted(ONE), 0);
        Ok(())
    }

    #[test]
    fn all_senders_take_no_more_than_there_is() -> Result {
        let mut rate = Rate::new(Pace::new(8, 1_000), Pace::new(2, 1_000), 1);
        let senders = (0..=255).map(|byte| Gid([byte; 16]));
        assert_eq!(
            senders.filter(|sender| rate.admits(*sender, 1_000)).count(),
            8
        );
        Ok(())
    }

    #[test]
    fn neighbours_have_shares_of_their_own() -> Result {
        let mut seen = [false; SHARES];
        for host in 0..=255 {
            if let Some(place) = seen.get_mut(share(Gid::from_ipv4([10, 0, 0, host]), 7)) {
                *place = true;
            }
        }
        // Of 256 in 256 places about 162 have different ones.
        assert!(seen.iter().filter(|seen| **seen).count() > 100);
        Ok(())
    }
}
