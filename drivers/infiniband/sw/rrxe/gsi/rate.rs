// SPDX-License-Identifier: GPL-2.0

//! How many management datagrams a GSI QP takes: of all senders, and of each.
//!
//! Any user may send such a datagram: by connection management, whose address is one of this host or of another one. So
//! the addresses have shares, by their hash. A share has a small rate for sure. What exceeds it comes out of a rate of all
//! shares, of which one share gets a part at most.

use kernel::prelude::*;
use rdma::device::gid::Gid;

use super::keyed_hash::Key;

/// Nanoseconds.
const SECOND: i64 = 1_000_000_000;
/// How many shares there are, a power of two.
const SHARES: usize = 256;
/// Nanoseconds for which an address has the same share: then who has it with somebody else gets another one.
const KEY_LIFE: i64 = 60 * SECOND;

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
    fn admits(&self, pace: &Pace, now: i64) -> bool {
        let early = self.0.saturating_sub(now).max(0);
        early < pace.burst.saturating_mul(pace.interval)
    }

    /// It happens at `now`.
    fn note(&mut self, pace: &Pace, now: i64) {
        self.0 = self.0.max(now).saturating_add(pace.interval);
    }
}

/// The paces of one kind of datagrams.
pub(super) struct Paces {
    /// Those of one share, whatever others do.
    pub(super) sure: Pace,
    /// Those of one share, besides, if the rate of all allows it.
    pub(super) most: Pace,
    /// All, besides what they may do for sure.
    pub(super) all: Pace,
}

/// The addresses with one hash.
#[derive(Clone, Copy)]
struct Share {
    sure: Due,
    most: Due,
}

/// The rate of one kind of datagrams.
pub(super) struct Rate {
    paces: Paces,
    all: Due,
    shares: KVVec<Share>,
    /// Addresses of one share under this key have different ones under another. Nobody computes such addresses.
    key: Key,
    /// When the next key is due.
    key_end: i64,
}

impl Rate {
    /// Nothing has happened. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(paces: Paces) -> Result<Self> {
        let share = Share {
            sure: Due(0),
            most: Due(0),
        };
        Ok(Self {
            paces,
            all: Due(0),
            shares: KVVec::from_elem(share, SHARES, GFP_KERNEL)?,
            key: Key::new(),
            key_end: 0,
        })
    }

    /// Whether one more of `sender` is taken, at `now`.
    pub(super) fn admits(&mut self, sender: Gid, now: i64) -> bool {
        if now >= self.key_end {
            self.key = Key::new();
            self.key_end = now.saturating_add(KEY_LIFE);
        }
        let Some(share) = self.shares.get_mut(share(sender, &self.key)) else {
            return false;
        };
        let Paces { sure, most, all } = &self.paces;
        if share.sure.admits(sure, now) {
            share.sure.note(sure, now);
            return true;
        }
        // A refusal by the rate of all takes nothing from the share.
        let admitted = share.most.admits(most, now) && self.all.admits(all, now);
        if admitted {
            share.most.note(most, now);
            self.all.note(all, now);
        }
        admitted
    }
}

/// The share of an address.
fn share(sender: Gid, key: &Key) -> usize {
    key.hash(&[&sender.0]) as usize % SHARES
}

#[kunit_tests(rrxe_gsi_rate)]
mod tests {
    use super::*;

    const ONE: Gid = Gid([1; 16]);

    #[test]
    fn a_rate_admits_a_burst_and_then_its_share() -> Result {
        let (pace, mut due) = (Pace::new(4, 1_000_000), Due(0));
        let mut admitted = |now: i64| {
            let mut count = 0;
            while due.admits(&pace, now) {
                due.note(&pace, now);
                count += 1;
            }
            count
        };
        assert_eq!(admitted(1_000_000), 4);
        assert_eq!(admitted(1_000_000), 0);
        assert_eq!(admitted(1_002_000), 2);
        // Time that passes without any is not kept.
        assert_eq!(admitted(9_000_000), 4);
        Ok(())
    }

    fn rate() -> Result<Rate> {
        Rate::new(Paces {
            sure: Pace::new(2, 1_000),
            most: Pace::new(4, 1_000),
            all: Pace::new(10, 1_000),
        })
    }

    #[test]
    fn a_sender_takes_no_more_than_its_share() -> Result {
        let mut rate = rate()?;
        let mut admitted = |sender: Gid| (0..100).filter(|_| rate.admits(sender, 1)).count();
        assert_eq!(admitted(ONE), 6);
        assert_eq!(admitted(ONE), 0);
        Ok(())
    }

    #[test]
    fn all_senders_leave_each_what_it_has_for_sure() -> Result {
        let mut rate = rate()?;
        // More than there are shares, so that each is used.
        for number in 0..20_000u32 {
            let [a, b, c, d] = number.to_ne_bytes();
            rate.admits(Gid([a, b, c, d, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]), 1);
        }
        assert!(!rate.admits(ONE, 1));
        // An interval later one more is sure, and one of all.
        let later = 1 + SECOND / 1_000;
        let own = share(ONE, &rate.key);
        for other in (2..=255).map(|byte| Gid([byte; 16])) {
            if share(other, &rate.key) != own {
                rate.admits(other, later);
                rate.admits(other, later);
            }
        }
        assert_eq!((0..100).filter(|_| rate.admits(ONE, later)).count(), 1);
        Ok(())
    }

    #[test]
    fn what_all_together_may_not_takes_nothing_from_a_share() -> Result {
        let mut rate = Rate::new(Paces {
            sure: Pace::new(1, 1),
            most: Pace::new(4, 1),
            all: Pace::new(4, 1_000),
        })?;
        // The one that is sure. From now on the key stays.
        assert!(rate.admits(ONE, 1));
        let own = share(ONE, &rate.key);
        for other in (2..=255).map(|byte| Gid([byte; 16])) {
            if share(other, &rate.key) != own {
                while rate.admits(other, 1) {}
            }
        }
        let mut admitted = |now: i64| (0..100).filter(|_| rate.admits(ONE, now)).count();
        assert_eq!(admitted(1), 0);
        // One is sure, and all together may do four.
        assert_eq!(admitted(1 + 4 * SECOND / 1_000), 5);
        Ok(())
    }

    #[test]
    fn neighbours_have_shares_of_their_own() -> Result {
        let (key, mut seen) = (Key::new(), [false; SHARES]);
        for host in 0..=255 {
            if let Some(place) = seen.get_mut(share(Gid::from_ipv4([10, 0, 0, host]), &key)) {
                *place = true;
            }
        }
        // Of 256 in 256 places about 162 have different ones.
        assert!(seen.iter().filter(|seen| **seen).count() > 100);
        Ok(())
    }

    #[test]
    fn no_two_addresses_have_one_share_under_every_key() -> Result {
        let one = [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0x27, 0xff, 0xfe, 0x12, 0x34, 0x56,
        ];
        // Bits by which addresses differ that a hash by multiplication has in one share.
        for (bytes, bits) in [(&[9, 13][..], 0x5a), (&[11, 15], 1), (&[3, 7, 15], 0x80)] {
            let mut other = one;
            for (at, byte) in other.iter_mut().enumerate() {
                *byte ^= if bytes.contains(&at) { bits } else { 0 };
            }
            let together = |key: &Key| share(Gid(one), key) == share(Gid(other), key);
            let count = (0..1_000).filter(|_| together(&Key::new())).count();
            // About four by chance.
            assert!(count < 40);
        }
        Ok(())
    }
}
