// SPDX-License-Identifier: GPL-2.0

//! A bound on the CPU time that softirqs spend on the QPs of processes.
//!
//! A packet from the network causes a run of its QP's protocol engine in softirq, and the run may
//! send: an acknowledgment of a few bytes lets it send dozens of packets of 4 KiB.
//! `process_backlog()` (net/core/dev.c) takes in 64 packets, each of which may consist of 128
//! segments, before it checks the time. A QP also runs in softirq when packets in flight are freed,
//! if its tx limit (the bound on its packets in flight) was exhausted. None of this time is charged
//! to the process. Neither is the time for copies of frames that flow steering rules deliver to raw
//! packet QPs.
//!
//! So each CPU has an account. If softirqs have spent more than a percentage of all time, 75
//! percent by default, the CPU has a debt: the time for which they must pause. While the debt is
//! more than [`MOST_DEBT`], packets and QPs wait for threads of a work queue, and softirqs make no
//! further copies of a frame or of a multicast packet.
//!
//! Any sender can keep a CPU in debt by datagrams to a multicast group with many members. The QPs
//! of other users must still receive. So softirqs make some copies of multicast packets for each
//! user in spite of the debt. Token buckets limit the number of these copies: each CPU has
//! [`BUCKETS`] buckets of [`BUCKET_SIZE`] copies. A hash of the user's number selects the user's
//! bucket, so several users may share a bucket.

use core::sync::atomic::{AtomicI64, Ordering::Relaxed};

use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    time::{Instant, Monotonic},
};
use roce::time::Duration;

/// Debt in nanoseconds beyond which a CPU counts as in debt, and runs no QPs in softirq. If
/// softirqs may have 75 percent of the time, a CPU whose softirqs run QPs all the time reaches this
/// debt after three milliseconds.
const MOST_DEBT: i64 = 1_000_000;
/// Upper bound of a CPU's debt in nanoseconds. Without it, a virtual CPU that its hypervisor stops
/// during a run would owe for the whole stop, because the account measures by the clock.
const LARGEST_DEBT: i64 = 8 * MOST_DEBT;

/// Number of token buckets of a CPU.
const BUCKETS: usize = 32;
/// Capacity of a bucket: the number of copies that it grants in a row while the CPU is in debt.
const BUCKET_SIZE: i64 = 64;
/// Nanoseconds after which a bucket gets one more copy. All buckets of a CPU together grant 205,000
/// copies a second, which take about a fifth of the CPU's time.
const GRANT_INTERVAL: i64 = 156_250;

/// The accounts of all CPUs.
pub(crate) struct SoftirqTime {
    /// Time from which the accounts count their times.
    epoch: Instant<Monotonic>,
    /// Time for which a CPU must run no QPs in softirq after it has spent time on them, in 1,024ths
    /// of that time.
    pause_ratio: i64,
    /// Accounts, indexed by CPU number. An account is written only by its own CPU, with bottom
    /// halves disabled.
    accounts: KVVec<Account>,
}

/// The account of a CPU. Its times are in nanoseconds since `epoch`. Each account has cache lines
/// of its own. It consists of `core`'s atomics, because it is used for each packet and the
/// operations of the kernel's atomics are calls of C functions.
#[repr(align(64))]
struct Account {
    /// Time at which the debt is paid.
    paid: AtomicI64,
    /// Time at which each bucket is full again.
    buckets: [AtomicI64; BUCKETS],
}

impl Account {
    /// Creates an account without debt, with full buckets.
    const fn new() -> Self {
        Self {
            paid: AtomicI64::new(0),
            buckets: [const { AtomicI64::new(0) }; BUCKETS],
        }
    }

    /// Takes one copy from a bucket. Returns whether the bucket had one left.
    fn grant(&self, bucket: CopyBucket, now: i64) -> bool {
        let Some(bucket) = self.buckets.get(bucket.0) else {
            return false;
        };
        let full_at = bucket.load(Relaxed).max(now).saturating_add(GRANT_INTERVAL);
        let granted = full_at.saturating_sub(now) <= BUCKET_SIZE * GRANT_INTERVAL;
        if granted {
            bucket.store(full_at, Relaxed);
        }
        granted
    }
}

/// The index of the token bucket of one or more users.
#[derive(Clone, Copy)]
pub(crate) struct CopyBucket(usize);

impl CopyBucket {
    /// Returns the bucket of the user with this number. Any 64-bit number will do, such as the
    /// address of an object of the user.
    pub(crate) fn of(number: u64) -> Self {
        // The multiplier of `hash_64()` (include/linux/hash.h). It gives adjacent numbers different
        // buckets.
        let mixed = number.wrapping_mul(0x61C8_8646_80B5_83EB) >> (u64::BITS - BUCKETS.ilog2());
        Self(mixed as usize)
    }
}

impl SoftirqTime {
    /// Creates accounts without debts. Softirqs may have `percent` of the time, clamped to 1 to
    /// 100. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(percent: u32) -> Result<Self> {
        let count = nr_cpu_ids() as usize;
        let mut accounts = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            accounts.push(Account::new(), GFP_KERNEL)?;
        }
        Ok(Self {
            epoch: Instant::now(),
            pause_ratio: pause_ratio_of(percent),
            accounts,
        })
    }

    /// Runs `f` and charges its time to this CPU's account, unless the debt is too large. Returns
    /// whether `f` ran. Time that `f` spends in nested calls is charged once. Must be called with
    /// bottom halves disabled.
    #[inline]
    pub(crate) fn spend(&self, f: impl FnOnce()) -> bool {
        self.spend_or(|_, _| false, f)
    }

    /// Works as [`Self::spend`], for a copy of a multicast packet. Also runs `f` if the debt is too
    /// large, but `bucket` grants a copy.
    pub(crate) fn spend_on_copy(&self, bucket: CopyBucket, f: impl FnOnce()) -> bool {
        self.spend_or(|account, now| account.grant(bucket, now), f)
    }

    /// Returns how long CPU `cpu` needs to pay its debt, if the debt is too large for
    /// [`Self::spend`]. Any context.
    pub(crate) fn remaining_pause(&self, cpu: CpuId) -> Option<Duration> {
        let account = self.accounts.get(cpu.as_u32() as usize)?;
        let debt = account.paid.load(Relaxed).saturating_sub(self.now());
        let is_too_large = debt > MOST_DEBT;
        is_too_large.then_some(Duration(debt.unsigned_abs()))
    }

    /// Runs `f` and charges its time if this CPU's debt isn't too large, or if `granted` returns
    /// true for the account and the time.
    #[inline]
    fn spend_or(&self, granted: impl FnOnce(&Account, i64) -> bool, f: impl FnOnce()) -> bool {
        let Some(account) = self.accounts.get(CpuId::current().as_u32() as usize) else {
            return false;
        };
        let begin = self.now();
        let before = account.paid.load(Relaxed);
        let runs = before.saturating_sub(begin) <= MOST_DEBT || granted(account, begin);
        if runs {
            f();
            let end = self.now();
            // Computed from the debt before `f`. So the stored value replaces the charges of nested
            // calls.
            account
                .paid
                .store(paid_after(before, begin, end, self.pause_ratio), Relaxed);
        }
        runs
    }

    /// Returns the nanoseconds since this object was created.
    fn now(&self) -> i64 {
        self.epoch.elapsed().as_nanos()
    }
}

/// Returns the [`SoftirqTime::pause_ratio`] with which softirqs spend `percent` of all time.
fn pause_ratio_of(percent: u32) -> i64 {
    let percent = percent.clamp(1, 100);
    i64::from((100 - percent) * 1024 / percent)
}

/// Returns the time at which a CPU's debt is paid, after the CPU spent the time from `begin` to
/// `end`. Without that, the debt would be paid at the time `before`.
fn paid_after(before: i64, begin: i64, end: i64, pause_ratio: i64) -> i64 {
    let spent = end.saturating_sub(begin);
    let due = spent.saturating_add(spent.saturating_mul(pause_ratio) >> 10);
    let paid = before.max(begin).saturating_add(due);
    paid.min(end.saturating_add(LARGEST_DEBT))
}

#[kunit_tests(rrxe_softirq_time)]
mod tests {
    use super::*;

    /// Pause ratio of 75 percent.
    const RATIO: i64 = 341;

    /// Simulates `total` nanoseconds of a CPU that always has work and spends `piece` nanoseconds
    /// at a time. Returns the nanoseconds spent before the first pause, and in total.
    fn spent_in(total: i64, piece: i64) -> (i64, i64) {
        let (mut now, mut paid, mut spent, mut before_pause) = (0_i64, 0_i64, 0_i64, 0_i64);
        while now < total {
            if paid - now > MOST_DEBT {
                if before_pause == 0 {
                    before_pause = spent;
                }
                now += 1_000;
                continue;
            }
            paid = paid_after(paid, now, now + piece, RATIO);
            spent += piece;
            now += piece;
        }
        (before_pause, spent)
    }

    #[test]
    fn a_cpu_spends_three_quarters_of_its_time() -> Result {
        let (before_pause, spent) = spent_in(1_000_000_000, 10_000);
        assert!(before_pause >= 3_000_000 && before_pause < 3_100_000);
        assert!(spent > 740_000_000 && spent < 760_000_000);
        Ok(())
    }

    #[test]
    fn a_long_run_is_charged() -> Result {
        let (_, spent) = spent_in(1_000_000_000, 8_000_000);
        assert!(spent > 700_000_000 && spent < 770_000_000);
        Ok(())
    }

    #[test]
    fn unspent_time_is_not_saved() -> Result {
        assert_eq!(paid_after(5, 1_000, 1_300, RATIO), 1_399);
        assert_eq!(paid_after(2_000, 1_000, 1_300, RATIO), 2_399);
        Ok(())
    }

    #[test]
    fn debt_is_bounded() -> Result {
        let hour = 3_600_000_000_000;
        assert_eq!(paid_after(0, 0, hour, RATIO), hour + LARGEST_DEBT);
        Ok(())
    }

    #[test]
    fn reports_the_pause_of_a_cpu_in_debt() -> Result {
        let time = SoftirqTime::new(75)?;
        let _off = rdma::support::sync::bottom_halves_off();
        let here = CpuId::current();
        assert_eq!(time.remaining_pause(here), None);
        let account = time.accounts.get(here.as_u32() as usize).ok_or(EINVAL)?;
        account.paid.store(i64::MAX, Relaxed);
        assert!(!time.spend(|| ()));
        assert!(time
            .remaining_pause(here)
            .is_some_and(|pause| pause.0 > MOST_DEBT.unsigned_abs()));
        Ok(())
    }

    #[test]
    fn percent_is_clamped() -> Result {
        assert_eq!(pause_ratio_of(75), RATIO);
        assert_eq!((pause_ratio_of(100), pause_ratio_of(1_000)), (0, 0));
        assert_eq!(
            (pause_ratio_of(1), pause_ratio_of(0)),
            (99 * 1024, 99 * 1024)
        );
        Ok(())
    }

    #[test]
    fn nested_time_is_charged_once() -> Result {
        let time = SoftirqTime::new(75)?;
        let _off = rdma::support::sync::bottom_halves_off();
        let begin = time.now();
        let wait = || {
            let start = time.now();
            while time.now() - start < 500_000 {}
        };
        let mut inner = false;
        assert!(time.spend(|| inner = time.spend(wait)));
        assert!(inner);
        let spent = time.now() - begin;
        let owed = |account: &Account| account.paid.load(Relaxed) - begin;
        let most = time.accounts.iter().map(owed).max().ok_or(EINVAL)?;
        assert!(most > 600_000 && most <= spent + spent * RATIO / 1024);
        Ok(())
    }

    #[test]
    fn a_bucket_grants_regardless_of_others() -> Result {
        let account = Account::new();
        let (greedy, other) = (CopyBucket(0), CopyBucket(1));
        let taken = |bucket, now| (0..1_000).filter(|_| account.grant(bucket, now)).count();
        assert_eq!(taken(greedy, 5), BUCKET_SIZE as usize);
        assert_eq!(taken(greedy, 5 + GRANT_INTERVAL), 1);
        assert_eq!(taken(other, 5 + GRANT_INTERVAL), BUCKET_SIZE as usize);
        assert_eq!(taken(greedy, 1_000_000_000), BUCKET_SIZE as usize);
        Ok(())
    }

    #[test]
    fn granted_copies_are_made_in_debt() -> Result {
        let time = SoftirqTime::new(75)?;
        let _off = rdma::support::sync::bottom_halves_off();
        for account in &time.accounts {
            account.paid.store(i64::MAX, Relaxed);
        }
        let (mut copies, mut runs) = (0, 0);
        for _ in 0..BUCKET_SIZE {
            assert!(time.spend_on_copy(CopyBucket(3), || copies += 1));
            for account in &time.accounts {
                account.paid.store(i64::MAX, Relaxed);
            }
            assert!(!time.spend(|| runs += 1));
        }
        assert_eq!((copies, runs), (BUCKET_SIZE, 0));
        Ok(())
    }

    #[test]
    fn adjacent_numbers_have_different_buckets() -> Result {
        let mut seen = [false; BUCKETS];
        for number in 0..1_000 {
            let CopyBucket(bucket) = CopyBucket::of(0xffff_8880_0000_0000 + number * 512);
            assert!(bucket < BUCKETS);
            seen[bucket] = true;
        }
        assert!(seen.iter().filter(|seen| **seen).count() > BUCKETS / 2);
        Ok(())
    }

    #[test]
    fn a_cpu_in_debt_does_not_run() -> Result {
        let time = SoftirqTime::new(75)?;
        let run = |owed: i64| {
            let _off = rdma::support::sync::bottom_halves_off();
            for Account { paid, .. } in &time.accounts {
                paid.store(time.now() + owed, Relaxed);
            }
            let mut has_run = false;
            (time.spend(|| has_run = true), has_run)
        };
        assert_eq!(run(1_000_000_000), (false, false));
        assert_eq!(run(0), (true, true));
        Ok(())
    }
}
