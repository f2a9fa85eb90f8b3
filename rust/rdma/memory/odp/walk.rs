// SPDX-License-Identifier: GPL-2.0

//! Walk through the page tables of a process, by HMM (heterogeneous memory management, `mm/hmm.c`).
//! The walk finds the pages of a range and faults absent ones in.
//!
//! HMM writes its results without a lock. `mmu_interval_read_retry()` tells afterwards whether
//! they are still true. So each walk has a list of its own. In `ib_umem_odp_map_dma_and_lock()`
//! (drivers/infiniband/core/umem_odp.c) all walks write to the list of the `ib_umem_odp`, where a
//! walk with outdated results may overwrite those of a later walk.

use core::{ops::Range, ptr::NonNull};

use kernel::{
    ffi::c_ulong,
    page::PAGE_SIZE,
    prelude::*,
    time::msecs_to_jiffies, //
};

use super::{hold::Hold, Fault};
use crate::{bindings, support::sync::check_not_killed};

/// Number of walks after which a caller gets `EBUSY`, because the process keeps changing its
/// mappings.
const MOST_WALKS: u32 = 64;

/// Pages that a walk found, as HMM's flags and frame number of each. Both are current while the
/// lock of the `ib_umem_odp` is held.
pub(super) struct Found<'a> {
    frames: &'a [c_ulong],
    /// Smallest order that a page may have.
    order: c_ulong,
}

impl Found<'_> {
    /// Returns the page at `index` (in pages) of the range, and whether the process may write to
    /// it. Returns `None` if the process has no page there.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the page has a smaller order than is acceptable.
    pub(super) fn page(&self, index: usize) -> Result<Option<(NonNull<bindings::page>, bool)>> {
        let pfn = self.frames.get(index).copied().unwrap_or_default();
        if pfn & bindings::hmm_pfn_flags_HMM_PFN_VALID == 0 {
            return Ok(None);
        }
        // The order, as `hmm_pfn_to_map_order()` of include/linux/hmm.h returns it.
        if pfn >> bindings::hmm_pfn_flags_HMM_PFN_ORDER_SHIFT & 0x1f < self.order {
            return Err(EINVAL);
        }
        // SAFETY: HMM sets the flag along with the number of a frame, and only this walk writes to
        // the list.
        let page = NonNull::new(unsafe { bindings::hmm_pfn_to_page(pfn) });
        Ok(page.map(|page| (page, pfn & bindings::hmm_pfn_flags_HMM_PFN_WRITE != 0)))
    }
}

/// Finds the pages of `range`: addresses of the process, in whole pages. Absent pages are
/// faulted in, unless `how` is [`Fault::MappedOnly`]. Calls `store` with the pages, with the
/// lock of `umem` held and preemption disabled, so `store` must not sleep. [`Found::page`] refuses
/// pages of a smaller order than `order`. In a thread of the process, so that the address space has
/// a user; sleeps.
///
/// # Errors
///
/// - `EFAULT` if the process has not mapped an address, may not read it, or cannot fault it in.
///   For [`Fault::MappedOnly`] such an address is no error.
/// - `EPERM` if the process may not write to an address, for [`Fault::Write`].
/// - `EBUSY` if the process keeps changing its mappings.
/// - `EINTR` if the calling task was killed.
/// - `ENOMEM`, and the errors of `store`.
///
/// # Safety
///
/// `umem` must be valid. `range` must be within it. The calling thread must belong to its process.
pub(super) unsafe fn walk(
    umem: NonNull<bindings::ib_umem_odp>,
    range: &Range<usize>,
    how: Fault,
    order: u32,
    store: impl Fn(Found<'_>) -> Result,
) -> Result {
    let mut frames: KVec<c_ulong> = KVec::from_elem(0, range.len() / PAGE_SIZE, GFP_KERNEL)?;
    let mut walked = bindings::hmm_range {
        // SAFETY: The caller guarantees that `umem` is valid (see `# Safety`); this is the address
        // of a field.
        notifier: unsafe { &raw mut (*umem.as_ptr()).notifier },
        start: range.start as c_ulong,
        end: range.end as c_ulong,
        hmm_pfns: frames.as_mut_ptr(),
        default_flags: match how {
            Fault::MappedOnly => 0,
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
        // SAFETY: The list has an element for each page of the range; the address space is the
        // calling thread's, and the notifier is registered as long as `umem` is valid.
        let done = unsafe { bindings::hmm_range_fault_unlocked_timeout(&mut walked, timeout) };
        kernel::error::to_result(done)?;
        // SAFETY: The caller guarantees that `umem` is valid (see `# Safety`).
        let hold = unsafe { Hold::new(umem) };
        // SAFETY: The caller guarantees that `umem` is valid. The notifier changes its sequence
        // number under this lock.
        let stale =
            unsafe { bindings::mmu_interval_read_retry(walked.notifier, walked.notifier_seq) };
        let stored = (!stale).then(|| {
            store(Found {
                frames: &frames,
                order: order as c_ulong,
            })
        });
        drop(hold);
        if let Some(stored) = stored {
            return stored;
        }
        check_not_killed()?;
    }
    Err(kernel::error::code::EBUSY)
}
