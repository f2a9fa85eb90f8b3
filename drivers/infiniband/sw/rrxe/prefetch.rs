// SPDX-License-Identifier: GPL-2.0

//! Advice to have memory of on-demand regions resident before it is used.

use kernel::{
    impl_has_work, new_work,
    prelude::*,
    sync::Arc,
    workqueue::{Work, WorkItem},
};
use rdma::{module::InUse, mr::Advised, odp::Fault};

use crate::{
    accounts::{Payer, PayerClaim},
    link::Link,
    mr::Mr,
    pd::Pd,
};

/// Follows advice: at once, or later. The latter is dropped if its process's memory cgroup or user has as many threads
/// that follow advice as are allowed: it would wait for them in the kernel's memory, and memory that isn't resident
/// comes when it is used. It isn't refused, for what becomes of it isn't told anyway, and a program that gives much
/// advice at a time does nothing wrong.
///
/// # Errors
///
/// `EINVAL` for a key that isn't an on-demand region's of this domain, `EPERM` for a right that it hasn't,
/// `EFAULT` for a range beyond it; and if it is carried out at once, for what isn't there, `EINTR` if the process was
/// killed, `EIO` when the device is going away, and `ENODEV` when the module is being removed.
pub(crate) fn advise(pd: &Pd, ranges: &[Advised], how: Fault, wait: bool) -> Result {
    let device = pd.device();
    let mut regions = KVVec::with_capacity(ranges.len(), GFP_KERNEL_ACCOUNT)?;
    for advised in ranges {
        let mr = device.mrs.advised(pd.id(), advised, how)?;
        regions.push((mr, *advised), GFP_KERNEL_ACCOUNT)?;
    }
    if wait {
        let _in_use = InUse::begin()?;
        return regions
            .iter()
            .try_for_each(|(mr, advised)| mr.prefetch(advised, how, || device.link.check_stays()));
    }
    let payer = Payer::current(&device.workers.accounts)?;
    let Ok(claim) = payer.claim_advice() else {
        return Ok(());
    };
    let prefetch = Arc::pin_init(
        pin_init!(Prefetch {
            _claim: claim,
            _payer: payer,
            regions,
            how,
            link: device.link.clone(),
            work <- new_work!("Prefetch::work"),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    // It was just made, so it isn't queued.
    let _ = device.workers.advice.enqueue(prefetch);
    Ok(())
}

/// Advice that is followed later.
#[pin_data]
struct Prefetch {
    _claim: PayerClaim,
    _payer: Payer,
    regions: KVVec<(Arc<Mr>, Advised)>,
    how: Fault,
    link: Arc<Link>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! { impl HasWork<Self> for Prefetch { self.work } }

impl WorkItem for Prefetch {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Ok(_in_use) = InUse::begin() else {
            return;
        };
        for (mr, advised) in this.regions.iter() {
            // Best effort: who uses the memory finds out.
            let _ = mr.prefetch(advised, this.how, || this.link.check_stays());
        }
    }
}
