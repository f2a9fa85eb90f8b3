// SPDX-License-Identifier: GPL-2.0

//! A walk through the page tables of a process: it finds the process's pages, by HMM.
//!
//! HMM writes its results without a lock, and `mmu_interval_read_retry()` tells whether they still
//! hold. So each walk has a list of its own. In `ib_umem_odp_map_dma_and_lock()`
//! (drivers/infiniband/core/umem_odp.c) all walks write to the list of the `ib_umem_odp`, where a
//! walk whose pages are gone overwrites those of a later one.

use core::{ops::Range, ptr::NonNull};

use kernel::{
    ffi::c_ulong,
    page::PAGE_SIZE,
    prelude::*,
    time::msecs_to_jiffies, //
};

use super::{hold::Hold, Fault};
use crate::{bindings, support::sync::check_not_killed};

/// Walks before a caller is told that the process keeps changing its mappings.
const MOST_WALKS: u32 = 64;

/// The pages that a walk found: HMM's flags and frame number of each. They hold until the lock of
/// the `ib_umem_odp` is released.
pub(super) struct Found<'a> {
    frames: &'a [c_ulong],
    /// The least order that a page may have.
    order: c_ulong,
}

impl Found<'_> {
    /// The page of a place, and whether the process may write it; `None` if it has none.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the page is of a smaller order.
    pub(super) fn page(&self, index: usize) -> Result<Option<(NonNull<bindings::page>, bool)>> {
        let pfn = self.frames.get(index).copied().unwrap_or_default();
        if pfn & bindings::hmm_pfn_flags_HMM_PFN_VALID == 0 {
            return Ok(None);
        }
        // As `hmm_pfn_to_map_order()` of include/linux/hmm.h.
        if pfn >> bindings::hmm_pfn_flags_HMM_PFN_ORDER_SHIFT & 0x1f < self.order {
            return Err(EINVAL);
        }
        // SAFETY: HMM sets the flag along with the number of a frame, and nobody else has the list.
        let page = NonNull::new(unsafe { bindings::hmm_pfn_to_page(pfn) });
        Ok(page.map(|page| (page, pfn & bindings::hmm_pfn_flags_HMM_PFN_WRITE != 0)))
    }
}

/// Finds the pages of `range`, which are whole pages of the process's addresses. Absent ones are
/// faulted in, unless `how` is [`Fault::Look`]. Calls `note`, which must not sleep, under the lock of `umem`; it is refused
/// pages of a smaller order than `order`. In a thread of the process, so that the address space has a user; sleeps.
///
/// # Errors
///
/// `EFAULT` for an address that the process has not, or may not read; `EPERM` for one that it may not write, for [`Fault::Write`];
/// `EBUSY` if it keeps changing its mappings; `EINTR` if the calling task was killed; `ENOMEM`; those of `note`.
///
/// # Safety
///
/// `umem` must be valid, `range` within it, and the calling thread one of its process.
pub(super) unsafe fn walk(
    umem: NonNull<bindings::ib_umem_odp>,
    range: &Range<usize>,
    how: Fault,
    order: u32,
    note: impl Fn(Found<'_>) -> Result,
) -> Result {
    let mut frames: KVec<c_ulong> = KVec::from_elem(0, range.len() / PAGE_SIZE, GFP_KERNEL)?;
    let mut walked = bindings::hmm_range {
        // SAFETY: A part of what is valid as the caller promises.
        notifier: unsafe { &raw mut (*umem.as_ptr()).notifier },
        start: range.start as c_ulong,
        end: range.end as c_ulong,
        hmm_pfns: frames.as_mut_ptr(),
        default_flags: match how {
            Fault::Look => 0,
            Fault::Read => bindings::hmm_pfn_flags_HMM_PFN_REQ_FAULT,
            Fault::Write => {
                bindings::hmm_pfn_flags_HMM_PFN_REQ_FAULT
                    | bindings::hmm_pfn_flags_HMM_PFN_REQ_WRITE
            }
        },
        ..Default::default()
    };
    let timeout = msecs_to_jiffies(bindings::HMM_RANGE_DEFAULT_TIMEOUT);
    for _ in 0..MOST_WALKS {
        // SAFETY: The list is as long as the range has pages; the address space is the calling thread's, and the
        // notifier is registered as long as `umem` is valid.
        let done = unsafe { bindings::hmm_range_fault_unlocked_timeout(&mut walked, timeout) };
        kernel::error::to_result(done)?;
        // SAFETY: Valid as the caller promises.
        let hold = unsafe { Hold::new(umem) };
        // SAFETY: As above. The notifier changes the number under this lock.
        let stale =
            unsafe { bindings::mmu_interval_read_retry(walked.notifier, walked.notifier_seq) };
        let noted = (!stale).then(|| {
            note(Found {
                frames: &frames,
                order: order as c_ulong,
            })
        });
        drop(hold);
        if let Some(noted) = noted {
            return noted;
        }
        check_not_killed()?;
    }
    Err(kernel::error::code::EBUSY)
}
