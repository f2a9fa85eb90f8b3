// SPDX-License-Identifier: GPL-2.0

//! The rates at which GSI QPs take MADs: of all senders together, and of each sender.
//!
//! Any user can send a MAD by connection management, from an address of this host or of another
//! host. So the senders' addresses are hashed to buckets. Each bucket has a small guaranteed rate.
//! All buckets together share a further rate, of which one bucket may use a limited part.

use kernel::prelude::*;
use rdma::device::gid::Gid;

use super::keyed_hash::Key;

/// A second in nanoseconds.
const SECOND: i64 = 1_000_000_000;
/// Number of hash buckets, a power of two.
const BUCKETS: usize = 256;
/// Time for which an address keeps its bucket, in nanoseconds. Then the key of the hash changes, so
/// two senders of one bucket most likely get different buckets.
const KEY_LIFETIME: i64 = 60 * SECOND;

/// A limit: a burst of MADs that is admitted at once, and a rate of further MADs.
pub(super) struct Pace {
    /// Number of MADs that are admitted at once.
    burst: i64,
    /// Time after which one more MAD is admitted, in nanoseconds.
    interval: i64,
}

impl Pace {
    /// Creates a pace with a burst of `burst` MADs, and then `a_second` MADs a second.
    pub(super) const fn new(burst: i64, a_second: i64) -> Self {
        Self {
            burst,
            interval: SECOND / a_second,
        }
    }
}

/// Time in nanoseconds before which the next MAD would exceed the rate of a [`Pace`]. A MAD that
/// comes earlier uses up a part of the burst.
#[derive(Clone, Copy)]
struct Due(i64);

impl Due {
    /// Returns whether one more MAD is admitted at the time `now`.
    fn admits(&self, pace: &Pace, now: i64) -> bool {
        let early = self.0.saturating_sub(now).max(0);
        early < pace.burst.saturating_mul(pace.interval)
    }

    /// Counts a MAD at the time `now`.
    fn note(&mut self, pace: &Pace, now: i64) {
        self.0 = self.0.max(now).saturating_add(pace.interval);
    }
}

/// The paces of one kind of MADs.
pub(super) struct Paces {
    /// Pace of each bucket, whatever the other buckets use.
    pub(super) guaranteed: Pace,
    /// Pace of one bucket beyond `guaranteed`, for MADs that `total` admits, too.
    pub(super) extra: Pace,
    /// Pace of all buckets together beyond their `guaranteed` paces.
    pub(super) total: Pace,
}

/// A hash bucket: the senders with one hash.
#[derive(Clone, Copy)]
struct Bucket {
    /// Use of [`Paces::guaranteed`].
    guaranteed: Due,
    /// Use of [`Paces::extra`].
    extra: Due,
}

/// The limits of one kind of MADs, and how much of them the senders have used.
pub(super) struct Rate {
    /// Paces of this kind.
    paces: Paces,
    /// Use of [`Paces::total`].
    total: Due,
    /// Buckets, by the hashes of the senders' addresses.
    buckets: KVVec<Bucket>,
    /// Key of the hash. Addresses of one bucket under one key most likely have different buckets
    /// under another. The key is random, so a user cannot compute addresses of one bucket.
    key: Key,
    /// Time at which a new key replaces `key`, in nanoseconds.
    key_end: i64,
}

impl Rate {
    /// Creates the limits of a kind of which no MAD has come yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(paces: Paces) -> Result<Self> {
        let bucket = Bucket {
            guaranteed: Due(0),
            extra: Due(0),
        };
        Ok(Self {
            paces,
            total: Due(0),
            buckets: KVVec::from_elem(bucket, BUCKETS, GFP_KERNEL)?,
            key: Key::new(),
            key_end: 0,
        })
    }

    /// Returns whether one more MAD of `sender` is admitted at the time `now`, in nanoseconds. If
    /// so, counts the MAD.
    pub(super) fn admits(&mut self, sender: Gid, now: i64) -> bool {
        if now >= self.key_end {
            self.key = Key::new();
            self.key_end = now.saturating_add(KEY_LIFETIME);
        }
        let Some(bucket) = self.buckets.get_mut(bucket_index(sender, &self.key)) else {
            return false;
        };
        let Paces {
            guaranteed,
            extra,
            total,
        } = &self.paces;
        if bucket.guaranteed.admits(guaranteed, now) {
            bucket.guaranteed.note(guaranteed, now);
            return true;
        }
        // If `total` refuses the MAD, the MAD doesn't count for the bucket either.
        let admitted = bucket.extra.admits(extra, now) && self.total.admits(total, now);
        if admitted {
            bucket.extra.note(extra, now);
            self.total.note(total, now);
        }
        admitted
    }
}

/// Returns the index of an address's bucket.
fn bucket_index(sender: Gid, key: &Key) -> usize {
    key.hash(&[&sender.0]) as usize % BUCKETS
}

#[kunit_tests(rrxe_gsi_rate)]
mod tests {
    use super::*;

    const ONE: Gid = Gid([1; 16]);

    #[test]
    fn a_rate_admits_a_burst_and_then_its_pace() -> Result {
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
        // A burst that is not used does not add up.
        assert_eq!(admitted(9_000_000), 4);
        Ok(())
    }

    fn rate() -> Result<Rate> {
        Rate::new(Paces {
            guaranteed: Pace::new(2, 1_000),
            extra: Pace::new(4, 1_000),
            total: Pace::new(10, 1_000),
        })
    }

    #[test]
    fn a_sender_takes_no_more_than_its_bucket_allows() -> Result {
        let mut rate = rate()?;
        let mut admitted = |sender: Gid| (0..100).filter(|_| rate.admits(sender, 1)).count();
        assert_eq!(admitted(ONE), 6);
        assert_eq!(admitted(ONE), 0);
        Ok(())
    }

    #[test]
    fn all_senders_leave_each_its_guaranteed_rate() -> Result {
        let mut rate = rate()?;
        // More addresses than buckets, so that each bucket is used.
        for number in 0..20_000u32 {
            let [a, b, c, d] = number.to_ne_bytes();
            rate.admits(Gid([a, b, c, d, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]), 1);
        }
        assert!(!rate.admits(ONE, 1));
        // After one interval, the guaranteed pace and the pace of all admit one more each.
        let later = 1 + SECOND / 1_000;
        let own = bucket_index(ONE, &rate.key);
        for other in (2..=255).map(|byte| Gid([byte; 16])) {
            if bucket_index(other, &rate.key) != own {
                rate.admits(other, later);
                rate.admits(other, later);
            }
        }
        assert_eq!((0..100).filter(|_| rate.admits(ONE, later)).count(), 1);
        Ok(())
    }

    #[test]
    fn a_refusal_by_the_total_rate_uses_up_no_bucket() -> Result {
        let mut rate = Rate::new(Paces {
            guaranteed: Pace::new(1, 1),
            extra: Pace::new(4, 1),
            total: Pace::new(4, 1_000),
        })?;
        // Uses up the guaranteed pace. From now on the key stays the same.
        assert!(rate.admits(ONE, 1));
        let own = bucket_index(ONE, &rate.key);
        for other in (2..=255).map(|byte| Gid([byte; 16])) {
            if bucket_index(other, &rate.key) != own {
                while rate.admits(other, 1) {}
            }
        }
        let mut admitted = |now: i64| (0..100).filter(|_| rate.admits(ONE, now)).count();
        assert_eq!(admitted(1), 0);
        // The guaranteed pace admits one, and the pace of all admits four.
        assert_eq!(admitted(1 + 4 * SECOND / 1_000), 5);
        Ok(())
    }

    #[test]
    fn neighbours_have_different_buckets() -> Result {
        let (key, mut seen) = (Key::new(), [false; BUCKETS]);
        for host in 0..=255 {
            if let Some(place) = seen.get_mut(bucket_index(Gid::from_ipv4([10, 0, 0, host]), &key))
            {
                *place = true;
            }
        }
        // 256 addresses have about 162 different buckets out of 256.
        assert!(seen.iter().filter(|seen| **seen).count() > 100);
        Ok(())
    }

    #[test]
    fn no_two_addresses_have_one_bucket_under_every_key() -> Result {
        let one = [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0x27, 0xff, 0xfe, 0x12, 0x34, 0x56,
        ];
        // A hash by multiplication would map both addresses to one bucket under every key, if they
        // differ by these bits.
        for (bytes, bits) in [(&[9, 13][..], 0x5a), (&[11, 15], 1), (&[3, 7, 15], 0x80)] {
            let mut other = one;
            for (at, byte) in other.iter_mut().enumerate() {
                *byte ^= if bytes.contains(&at) { bits } else { 0 };
            }
            let together = |key: &Key| bucket_index(Gid(one), key) == bucket_index(Gid(other), key);
            let count = (0..1_000).filter(|_| together(&Key::new())).count();
            // About four are equal by chance.
            assert!(count < 40);
        }
        Ok(())
    }
}
