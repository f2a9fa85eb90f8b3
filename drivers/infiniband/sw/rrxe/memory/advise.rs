// SPDX-License-Identifier: GPL-2.0

//! Advice to have memory of on-demand regions resident before it is used.

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

/// Between two attempts to get room for advice.
const NAP: Delta = Delta::from_millis(10);

/// Has advice followed by the processes whose memory it is about; waits for that if `wait` is set. A walk through page
/// tables waits for MMU notifiers, so no call makes one itself.
///
/// If its process's memory cgroup or user has as much advice as is allowed, advice that nobody waits for is dropped: it
/// would wait for the others in the kernel's memory, and memory that isn't resident comes when it is used. It isn't refused,
/// for what becomes of it isn't told anyway, and a program that gives much advice at a time does nothing wrong. Who waits for
/// advice waits for room, too.
///
/// # Errors
///
/// `EINVAL` for a key that isn't an on-demand region's of this domain, `EPERM` for a right that it hasn't,
/// `EFAULT` for a range beyond it, `ENOMEM`; and for who waits, those of [`OnDemand::fault_in`], `EFAULT` if the process whose
/// memory it is has ended, `EINTR` if either process was killed, `ERESTARTNOINTR` if the system goes to sleep: the advice is
/// given again when it is awake; `EIO` when the device is going away.
pub(crate) fn advise(pd: &Pd, ranges: &[Advised], how: Fault, wait: bool) -> Result {
    let device = pd.device();
    let mut regions = KVVec::with_capacity(ranges.len(), GFP_KERNEL_ACCOUNT)?;
    for advised in ranges {
        let mr = device.mrs.advised(pd.id(), advised, how)?;
        regions.push((mr, *advised), GFP_KERNEL_ACCOUNT)?;
    }
    let payer = Payer::current(&device.workqueues.accounts)?;
    let (claim, outcome) = match wait {
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

/// Room for advice. Process context; sleeps.
///
/// # Errors
///
/// `EINTR` if the process was killed, `ERESTARTNOINTR` if the system goes to sleep, `EIO` when the device is going away.
fn await_room(payer: &Payer, link: &Link) -> Result<PayerClaim> {
    loop {
        if let Ok(claim) = payer.claim_advice() {
            return Ok(claim);
        }
        check_not_killed()?;
        check_stays_awake()?;
        link.check_stays()?;
        fsleep(NAP);
    }
}

/// The ranges of advice, and how far it has been followed.
struct Ranges {
    _claim: PayerClaim,
    _payer: Payer,
    regions: KVVec<(Arc<Mr>, Advised)>,
    /// The range that is next, or is being looked at.
    next: usize,
    /// How many bytes of it have been.
    offset: u64,
}

impl Ranges {
    /// The memory of the next range, where what is left of it begins, and how many bytes that is. `None` if all of them have
    /// been looked at.
    ///
    /// # Errors
    ///
    /// `EFAULT` if it is always there.
    fn next(&self) -> Result<Option<(&OnDemand, u64, u64)>> {
        let Some((mr, advised)) = self.regions.get(self.next) else {
            return Ok(None);
        };
        let (memory, offset) = mr.on_demand(advised.addr).ok_or(EFAULT)?;
        let left = u64::from(advised.length).saturating_sub(self.offset);
        Ok(Some((memory, offset.saturating_add(self.offset), left)))
    }

    /// So many bytes of the next range have been looked at, of as many as were left.
    fn advance(&mut self, done: u64, left: u64) {
        if done < left {
            self.offset = self.offset.saturating_add(done);
        } else {
            (self.next, self.offset) = (self.next.saturating_add(1), 0);
        }
    }
}

/// Advice that the threads of processes follow.
#[pin_data]
struct Prefetch {
    /// `None` once it has ended.
    #[pin]
    ranges: Mutex<Option<Ranges>>,
    how: Fault,
    link: Arc<Link>,
    /// For who waits for it.
    outcome: Option<Arc<Outcome>>,
}

/// How advice goes on after one of its turns.
enum Next {
    /// It goes on in this thread.
    Here,
    /// It goes on in a thread of another process.
    There,
    Ended,
}

impl Prefetch {
    /// Has it followed.
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

    /// Follows it for a while, in a thread of a process.
    fn follow(self: &Arc<Self>) -> Result<Next> {
        self.goes_on()?;
        let mut ranges = self.ranges.lock();
        let Some(ranges) = &mut *ranges else {
            return Ok(Next::Ended);
        };
        let Some((memory, offset, left)) = ranges.next()? else {
            return Ok(Next::Ended);
        };
        if !memory.is_here() {
            return memory.begin(self.clone()).map(|_| Next::There);
        }
        let done = match memory.fault_in(offset, left, self.how) {
            Ok(done) => done,
            // The thread takes a signal first.
            Err(ERESTARTNOINTR) => return Ok(Next::Here),
            Err(error) if self.outcome.is_some() => return Err(error),
            // Best effort: who uses the memory finds out.
            Err(_) => left,
        };
        ranges.advance(done, left);
        Ok(Next::Here)
    }

    /// # Errors
    ///
    /// `EIO` when the device is going away, `EINTR` when who waited was killed.
    fn goes_on(&self) -> Result {
        self.link.check_stays()?;
        let given_up = |outcome: &Arc<Outcome>| !outcome.is_awaited();
        match self.outcome.as_ref().is_some_and(given_up) {
            true => Err(EINTR),
            false => Ok(()),
        }
    }

    /// Ends it. The caller that waits finds its regions unused again.
    fn end(&self, result: Result) {
        let ranges = self.ranges.lock().take();
        drop(ranges);
        if let Some(outcome) = &self.outcome {
            outcome.tell(result);
        }
    }
}

impl Job for Prefetch {
    fn run(self: Arc<Self>) -> bool {
        match self.follow() {
            Ok(Next::Here) => return true,
            Ok(Next::There) => {}
            Ok(Next::Ended) => self.end(Ok(())),
            Err(error) => self.end(Err(error)),
        }
        false
    }

    fn cancel(self: Arc<Self>) {
        self.end(Err(EFAULT));
    }
}
