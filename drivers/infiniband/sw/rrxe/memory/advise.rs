// SPDX-License-Identifier: GPL-2.0

//! Advice (`ibv_advise_mr()`) to make the memory of on-demand regions resident before it is used.

use kernel::{
    error::code::ERESTARTNOINTR,
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
    time::{delay::fsleep, Delta},
};
use rdma::{
    memory::odp::{Fault, Job, OnDemand},
    support::{
        outcome::Outcome,
        sync::{check_not_killed, check_stays_awake},
    },
    verbs::mr::Advised,
};

use crate::{
    device::link::Link,
    limits::accounts::{Payer, PayerClaim},
    memory::mr::Mr,
    verbs::pd::Pd,
};

/// Pause between two attempts to claim room for advice.
const CLAIM_RETRY: Delta = Delta::from_millis(10);

/// Has threads of the processes that own the memory follow the advice: they make the memory
/// present in the way `how`. If `flush` is set, this call waits until they have followed it.
/// This call itself walks no page tables, because such a walk waits for MMU notifiers.
///
/// A user and a memory cgroup have a limit on the calls whose advice is followed or queued. Beyond
/// it, advice without `flush` is dropped. Queued advice would occupy kernel memory, and memory that
/// isn't resident becomes resident when it is used. The advice isn't refused with an error: its
/// outcome is not reported in any case, and a program that gives much advice at a time does nothing
/// wrong. With `flush`, the call waits for room.
///
/// # Errors
///
/// `EINVAL` for a key that is not that of an on-demand region of this protection domain, `EPERM`
/// for advice to make memory writable that the region may not write, `EFAULT` for a range beyond
/// the region, `ENOMEM`. With `flush` also: those of [`OnDemand::fault_in`]; `EFAULT` if the
/// process that owns the memory has ended; `EINTR` if either process was killed; `ERESTARTNOINTR`
/// if the system is suspended, after which the system call is restarted; `EIO` when the device is
/// going away.
pub(crate) fn advise(pd: &Pd, ranges: &[Advised], how: Fault, flush: bool) -> Result {
    let device = pd.device();
    let mut regions = KVVec::with_capacity(ranges.len(), GFP_KERNEL_ACCOUNT)?;
    for advised in ranges {
        let mr = device.mrs.advised(pd.id(), advised, how)?;
        regions.push((mr, *advised), GFP_KERNEL_ACCOUNT)?;
    }
    let payer = Payer::current(&device.workqueues.accounts)?;
    let (claim, outcome) = match flush {
        true => (await_room(&payer, &device.link)?, Some(Outcome::new()?)),
        false => match payer.claim_advice() {
            Ok(claim) => (claim, None),
            Err(_) => return Ok(()),
        },
    };
    let ranges = Ranges {
        _claim: claim,
        _payer: payer,
        regions,
        next: 0,
        offset: 0,
    };
    let begun = Prefetch::begin(ranges, how, &device.link, outcome.clone());
    match outcome {
        Some(outcome) => begun.and_then(|()| outcome.wait(|| device.link.check_stays())),
        None => Ok(()),
    }
}

/// Claims room for advice, and waits until the limits of `payer` allow it. Process context; sleeps.
///
/// # Errors
///
/// `EINTR` if the calling process was killed, `ERESTARTNOINTR` if the system is suspended, `EIO`
/// when the device is going away.
fn await_room(payer: &Payer, link: &Link) -> Result<PayerClaim> {
    loop {
        if let Ok(claim) = payer.claim_advice() {
            return Ok(claim);
        }
        check_not_killed()?;
        check_stays_awake()?;
        link.check_stays()?;
        fsleep(CLAIM_RETRY);
    }
}

/// The ranges of the advice of one call, and the progress in them.
struct Ranges {
    /// Claim on the limit of advice.
    _claim: PayerClaim,
    /// Accounts to which the claim belongs.
    _payer: Payer,
    /// Ranges, each with its region.
    regions: KVVec<(Arc<Mr>, Advised)>,
    /// Index of the first range that is not finished.
    next: usize,
    /// Number of bytes of that range that are finished.
    offset: u64,
}

impl Ranges {
    /// Returns the memory of the first unfinished range, the offset of its unfinished part and the
    /// number of bytes left. `None` if all ranges are finished.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the region's memory isn't on demand.
    fn next(&self) -> Result<Option<(&OnDemand, u64, u64)>> {
        let Some((mr, advised)) = self.regions.get(self.next) else {
            return Ok(None);
        };
        let (memory, offset) = mr.on_demand(advised.addr).ok_or(EFAULT)?;
        let left = u64::from(advised.length).saturating_sub(self.offset);
        Ok(Some((memory, offset.saturating_add(self.offset), left)))
    }

    /// Counts `done` bytes of the first unfinished range as finished. `left` is the number of its
    /// unfinished bytes that [`Self::next`] returned.
    fn advance(&mut self, done: u64, left: u64) {
        if done < left {
            self.offset = self.offset.saturating_add(done);
        } else {
            (self.next, self.offset) = (self.next.saturating_add(1), 0);
        }
    }
}

/// The advice of one call, as a job of the threads of processes.
#[pin_data]
struct Prefetch {
    /// Ranges; `None` after the end of the job.
    #[pin]
    ranges: Mutex<Option<Ranges>>,
    /// Way in which the memory is made present.
    how: Fault,
    /// Link of the device, which says whether the device is going away.
    link: Arc<Link>,
    /// Outcome for the caller that waits; `None` if the caller doesn't wait.
    outcome: Option<Arc<Outcome>>,
}

/// The continuation of advice after one call of [`Job::run`].
enum Next {
    /// Continues in this thread.
    SameProcess,
    /// Continues in a thread of another process.
    OtherProcess,
    /// All ranges are finished.
    Ended,
}

impl Prefetch {
    /// Queues the advice for a thread of the process that owns the memory of the first range.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, those of [`Ranges::next`] and [`OnDemand::begin`].
    fn begin(
        ranges: Ranges,
        how: Fault,
        link: &Arc<Link>,
        outcome: Option<Arc<Outcome>>,
    ) -> Result {
        let prefetch = pin_init!(Self {
            ranges <- new_mutex!(Some(ranges), "rrxe_prefetch"),
            how,
            link: link.clone(),
            outcome,
        });
        let prefetch = Arc::pin_init(prefetch, GFP_KERNEL_ACCOUNT)?;
        let ranges = prefetch.ranges.lock();
        if let Some(ranges) = &*ranges {
            if let Some((memory, ..)) = ranges.next()? {
                return memory.begin(prefetch.clone()).map(|_| ());
            }
        }
        drop(ranges);
        prefetch.end(Ok(()));
        Ok(())
    }

    /// Follows the advice for one time slice, in a thread of a process.
    ///
    /// # Errors
    ///
    /// Those of [`Self::check_wanted`], [`Ranges::next`] and [`OnDemand::begin`]; if the caller
    /// waits, those of [`OnDemand::fault_in`] except for `ERESTARTNOINTR`, too.
    fn run_slice(self: &Arc<Self>) -> Result<Next> {
        self.check_wanted()?;
        let mut ranges = self.ranges.lock();
        let Some(ranges) = &mut *ranges else {
            return Ok(Next::Ended);
        };
        let Some((memory, offset, left)) = ranges.next()? else {
            return Ok(Next::Ended);
        };
        if !memory.is_here() {
            return memory.begin(self.clone()).map(|_| Next::OtherProcess);
        }
        let done = match memory.fault_in(offset, left, self.how) {
            Ok(done) => done,
            // The thread has to take a signal first.
            Err(ERESTARTNOINTR) => return Ok(Next::SameProcess),
            Err(error) if self.outcome.is_some() => return Err(error),
            // Advice is best effort: the access that needs this memory faults and meets the error.
            Err(_) => left,
        };
        ranges.advance(done, left);
        Ok(Next::SameProcess)
    }

    /// Checks that the advice is still to be followed.
    ///
    /// # Errors
    ///
    /// `EIO` when the device is going away, `EINTR` when the caller has given up its wait.
    fn check_wanted(&self) -> Result {
        self.link.check_stays()?;
        let given_up = |outcome: &Arc<Outcome>| !outcome.has_waiter();
        match self.outcome.as_ref().is_some_and(given_up) {
            true => Err(EINTR),
            false => Ok(()),
        }
    }

    /// Ends the advice with `result`. Drops the references to the regions before the waiting caller
    /// goes on.
    fn end(&self, result: Result) {
        let ranges = self.ranges.lock().take();
        drop(ranges);
        if let Some(outcome) = &self.outcome {
            outcome.complete(result);
        }
    }
}

impl Job for Prefetch {
    fn run(self: Arc<Self>) -> bool {
        match self.run_slice() {
            Ok(Next::SameProcess) => return true,
            Ok(Next::OtherProcess) => {}
            Ok(Next::Ended) => self.end(Ok(())),
            Err(error) => self.end(Err(error)),
        }
        false
    }

    fn cancel(self: Arc<Self>) {
        self.end(Err(EFAULT));
    }
}
