// SPDX-License-Identifier: GPL-2.0

//! Advice to have memory of on-demand regions resident before it is used.

use kernel::{
    impl_has_work, new_work,
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta},
    workqueue::{Work, WorkItem},
};
use rdma::{module::InUse, mr::Advised, odp::Fault, outcome::Outcome, sync::fatal_signal_pending};

use crate::{
    accounts::{Payer, PayerClaim},
    device::Device,
    link::Link,
    mr::Mr,
    pd::Pd,
};

/// Between two attempts to get a thread.
const NAP: Delta = Delta::from_millis(10);

/// Has advice followed by a thread; waits for that if `wait` is set. A walk through page tables waits for MMU notifiers,
/// so no call makes one itself.
///
/// If its process's memory cgroup or user has as many threads that follow advice as are allowed, advice that nobody
/// waits for is dropped: it would wait for them in the kernel's memory, and memory that isn't resident
/// comes when it is used. It isn't refused, for what becomes of it isn't told anyway, and a program that gives much
/// advice at a time does nothing wrong. Who waits for advice waits for a thread, too.
///
/// # Errors
///
/// `EINVAL` for a key that isn't an on-demand region's of this domain, `EPERM` for a right that it hasn't,
/// `EFAULT` for a range beyond it, `ENOMEM`; and for who waits, what isn't there, `EINTR` if the process was
/// killed, `EIO` when the device is going away, and `ENODEV` when the module is being removed.
pub(crate) fn advise(pd: &Pd, ranges: &[Advised], how: Fault, wait: bool) -> Result {
    let device = pd.device();
    let mut regions = KVVec::with_capacity(ranges.len(), GFP_KERNEL_ACCOUNT)?;
    for advised in ranges {
        let mr = device.mrs.advised(pd.id(), advised, how)?;
        regions.push((mr, *advised), GFP_KERNEL_ACCOUNT)?;
    }
    let payer = Payer::current(&device.workers.accounts)?;
    if wait {
        let claim = await_thread(&payer, &device.link)?;
        let outcome = Outcome::new()?;
        let told = Some(outcome.clone());
        Prefetch::begin(device, claim, payer, regions, how, told)?;
        return outcome.wait(|| device.link.check_stays());
    }
    match payer.claim_advice() {
        Ok(claim) => Prefetch::begin(device, claim, payer, regions, how, None),
        Err(_) => Ok(()),
    }
}

/// A thread that follows advice. Process context; sleeps.
///
/// # Errors
///
/// `EINTR` if the process was killed, `EIO` when the device is going away.
fn await_thread(payer: &Payer, link: &Link) -> Result<PayerClaim> {
    loop {
        if let Ok(claim) = payer.claim_advice() {
            return Ok(claim);
        }
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        link.check_stays()?;
        fsleep(NAP);
    }
}

/// Advice that a thread follows.
#[pin_data]
struct Prefetch {
    _claim: PayerClaim,
    _payer: Payer,
    regions: KVVec<(Arc<Mr>, Advised)>,
    how: Fault,
    link: Arc<Link>,
    /// For who waits for it.
    outcome: Option<Arc<Outcome>>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! { impl HasWork<Self> for Prefetch { self.work } }

impl Prefetch {
    /// Has a thread follow it.
    fn begin(
        device: &Device,
        claim: PayerClaim,
        payer: Payer,
        regions: KVVec<(Arc<Mr>, Advised)>,
        how: Fault,
        outcome: Option<Arc<Outcome>>,
    ) -> Result {
        let prefetch = Arc::pin_init(
            pin_init!(Self {
                _claim: claim,
                _payer: payer,
                regions,
                how,
                link: device.link.clone(),
                outcome,
                work <- new_work!("Prefetch::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        // It was just made, so it isn't queued.
        let _ = device.workers.advice.enqueue(prefetch);
        Ok(())
    }

    /// All of it, or up to the first error if somebody waits.
    fn follow(&self) -> Result {
        let _in_use = InUse::begin()?;
        for (mr, advised) in self.regions.iter() {
            let followed = mr.prefetch(advised, self.how, || self.goes_on());
            if self.outcome.is_some() {
                followed?;
            }
            // Else best effort: who uses the memory finds out.
        }
        Ok(())
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
}

impl WorkItem for Prefetch {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let (result, outcome) = (this.follow(), this.outcome.clone());
        // The caller that waits finds its regions and its threads unused again.
        drop(this);
        if let Some(outcome) = outcome {
            outcome.tell(result);
        }
    }
}
