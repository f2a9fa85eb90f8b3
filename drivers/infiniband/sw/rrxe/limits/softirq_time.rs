// SPDX-License-Identifier: GPL-2.0

//! A bound on the CPU time that softirqs spend on the QPs of processes.
//!
//! A packet from the network runs its QP's engine in softirq, and the run may send: an
//! acknowledgment of a few bytes allows up to 36 packets of 4 KiB to be sent. `process_backlog()`
//! (net/core/dev.c) takes in 64 packets, each of which may consist of 128 segments, before it
//! checks the time. A QP also runs in softirq when packets in flight are freed, if its tx limit
//! (the bound on its packets in flight) was exhausted. None of this time is charged to the process.
//! Neither is the time for copies of frames that flow steering rules deliver to raw packet QPs.
//!
//! So each CPU has an account. The time that softirqs spend beyond a percentage of all time, 75
//! percent by default, is a debt. While the debt is more than [`MOST_DEBT`], packets and QPs wait
//! for threads of a work queue, and further copies of a frame or of a multicast packet are not
//! made.
//!
//! Any sender can keep a CPU in debt by datagrams to a multicast group with many members. So that
//! the groups of other users still receive, each user has a number of copies of multicast packets
//! that are made in spite of the debt. They come from token buckets, the lots: each CPU has
//! [`LOTS`] lots of [`GRANTED`] copies. A user's lot is a hash of the user's number, so several
//! users may have the same lot.

use core::sync::atomic::{AtomicI64, Ordering::Relaxed};

use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    time::{Instant, Monotonic},
};
use roce::time::Duration;

/// Debt in nanoseconds beyond which a CPU counts as in debt, and runs no QPs in softirq. A CPU that
/// does nothing else reaches it in three milliseconds if softirqs may have 75 percent of the time.
const MOST_DEBT: i64 = 1_000_000;
/// Largest debt of a CPU in nanoseconds. A virtual CPU that was stopped in the middle of a run owes
/// no more, either.
const LARGEST_DEBT: i64 = 8 * MOST_DEBT;

/// Number of token buckets of a CPU.
const LOTS: usize = 32;
/// Capacity of a lot: the number of copies that it grants in a row while the CPU is in debt.
const GRANTED: i64 = 64;
/// Nanoseconds after which a lot gets one more copy. All lots of a CPU together grant 205,000
/// copies a second, which take about a fifth of the CPU's time.
const GRANT_INTERVAL: i64 = 156_250;

/// The accounts of all CPUs.
pub(crate) struct SoftirqTime {
    /// Zero of the accounts' times.
    epoch: Instant<Monotonic>,
    /// Time that a CPU must do other things, in 1,024ths of the time that it spent.
    pause_ratio: i64,
    /// Accounts, indexed by CPU number. An account is written only by its own CPU, with bottom
    /// halves disabled.
    accounts: KVVec<Account>,
}

/// The account of a CPU. Times are in nanoseconds as those of [`SoftirqTime::now`]. Each account
/// has cache lines of its own. It consists of `core`'s atomics, because it is used for each packet
/// and the operations of the kernel's atomics are calls of C functions.
#[repr(align(64))]
struct Account {
    /// Time at which the debt is paid.
    paid: AtomicI64,
    /// Time at which each lot is full again.
    lots: [AtomicI64; LOTS],
}

impl Account {
    /// Creates an account without debt, with full lots.
    const fn new() -> Self {
        Self {
            paid: AtomicI64::new(0),
            lots: [const { AtomicI64::new(0) }; LOTS],
        }
    }

    /// Takes one copy from a lot. Returns whether the lot had one left.
    fn grant(&self, lot: CopyBucket, now: i64) -> bool {
        let Some(lot) = self.lots.get(lot.0) else {
            return false;
        };
        let full_at = lot.load(Relaxed).max(now).saturating_add(GRANT_INTERVAL);
        let granted = full_at.saturating_sub(now) <= GRANTED * GRANT_INTERVAL;
        if granted {
            lot.store(full_at, Relaxed);
        }
        granted
    }
}

/// The index of a token bucket, which users share.
#[derive(Clone, Copy)]
pub(crate) struct CopyBucket(usize);

impl CopyBucket {
    /// Returns the lot of the user with this number. The number may be any of 64 bits, such as an
    /// address.
    pub(crate) fn of(number: u64) -> Self {
        // The multiplier of `hash_64()` (include/linux/hash.h). It gives adjacent numbers different
        // lots.
        let mixed = number.wrapping_mul(0x61C8_8646_80B5_83EB) >> (u64::BITS - LOTS.ilog2());
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
    /// large, but `lot` grants a copy.
    pub(crate) fn spend_of(&self, lot: CopyBucket, f: impl FnOnce()) -> bool {
        self.spend_or(|account, now| account.grant(lot, now), f)
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
            // Computed from the debt before `f`: this replaces the time that nested calls charged.
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

/// Returns for how many 1,024ths of the spent time a CPU must do other things, so that the spent
/// time is `percent` of all time.
fn pause_ratio_of(percent: u32) -> i64 {
    let percent = percent.clamp(1, 100);
    i64::from((100 - percent) * 1024 / percent)
}

/// Returns when a debt that would be paid at `before` is paid, after the time from `begin` to `end`
/// was spent.
fn paid_after(before: i64, begin: i64, end: i64, pause_ratio: i64) -> i64 {
    let spent = end.saturating_sub(begin);
    let due = spent.saturating_add(spent.saturating_mul(pause_ratio) >> 10);
    let paid = before.max(begin).saturating_add(due);
    paid.min(end.saturating_add(LARGEST_DEBT))
}

#[kunit_tests(rrxe_softirq_time)]
mod tests {
    use super::*;

    const QUARTER: i64 = 341;

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
            paid = paid_after(paid, now, now + piece, QUARTER);
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
        assert_eq!(paid_after(5, 1_000, 1_300, QUARTER), 1_399);
        assert_eq!(paid_after(2_000, 1_000, 1_300, QUARTER), 2_399);
        Ok(())
    }

    #[test]
    fn debt_is_bounded() -> Result {
        let hour = 3_600_000_000_000;
        assert_eq!(paid_after(0, 0, hour, QUARTER), hour + LARGEST_DEBT);
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
        assert_eq!(pause_ratio_of(75), QUARTER);
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
        assert!(most > 600_000 && most <= spent + spent * QUARTER / 1024);
        Ok(())
    }

    #[test]
    fn a_lot_grants_regardless_of_others() -> Result {
        let account = Account::new();
        let (greedy, other) = (CopyBucket(0), CopyBucket(1));
        let taken = |lot, now| (0..1_000).filter(|_| account.grant(lot, now)).count();
        assert_eq!(taken(greedy, 5), GRANTED as usize);
        assert_eq!(taken(greedy, 5 + GRANT_INTERVAL), 1);
        assert_eq!(taken(other, 5 + GRANT_INTERVAL), GRANTED as usize);
        assert_eq!(taken(greedy, 1_000_000_000), GRANTED as usize);
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
        for _ in 0..GRANTED {
            assert!(time.spend_of(CopyBucket(3), || copies += 1));
            for account in &time.accounts {
                account.paid.store(i64::MAX, Relaxed);
            }
            assert!(!time.spend(|| runs += 1));
        }
        assert_eq!((copies, runs), (GRANTED, 0));
        Ok(())
    }

    #[test]
    fn adjacent_numbers_have_different_lots() -> Result {
        let mut seen = [false; LOTS];
        for number in 0..1_000 {
            let CopyBucket(lot) = CopyBucket::of(0xffff_8880_0000_0000 + number * 512);
            assert!(lot < LOTS);
            seen[lot] = true;
        }
        assert!(seen.iter().filter(|seen| **seen).count() > LOTS / 2);
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
