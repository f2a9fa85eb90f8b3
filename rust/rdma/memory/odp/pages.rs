// SPDX-License-Identifier: GPL-2.0

//! Table of the present pages of a chunk: 2 MiB of a process's on-demand memory.
//!
//! The data path looks pages up and uses them within one read-side section of
//! [`ReadSections`]. A writer that removes pages waits for the end of the sections that may use
//! them.

use core::{
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
};

use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};

use super::{CHUNK, PAGE_MASK, PAGE_SHIFT};
use crate::{bindings, support::read_section::ReadSections};

/// Flag of an entry: the page is present. An entry is zero, or the address of a page together with
/// flags.
pub(super) const PRESENT: usize = 1 << 0;
/// Flag of an entry: the page may be written.
pub(super) const WRITABLE: usize = 1 << 1;

/// Number of pages of a chunk.
const PAGES: usize = CHUNK >> PAGE_SHIFT;

/// Present pages of a chunk.
///
/// # Invariants
///
/// An entry with [`PRESENT`] is the address (in the kernel's direct mapping) of a page of the
/// process. The page is valid for reads, and with [`WRITABLE`] for writes, until all sections of
/// `readers` have ended that began before the flag was cleared.
///
/// Entries are written with the lock of the `ib_umem_odp` held. While the lock is not held, an
/// entry without [`PRESENT`] is zero, and `present` is the number of entries with [`PRESENT`].
pub(super) struct Pages {
    /// Address of the first page in the process's address space.
    pub(super) start: usize,
    entries: KBox<[AtomicUsize; PAGES]>,
    /// Number of present pages. If it is zero, an invalidation returns at once. The release of a
    /// chunk waits for invalidations, so they should be short.
    present: AtomicUsize,
    readers: Arc<ReadSections>,
}

impl Pages {
    /// Creates a table without present pages for the chunk at the address `start`, a multiple of
    /// [`CHUNK`]. The pages are used within sections of `readers`. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(start: usize, readers: Arc<ReadSections>) -> Result<Self> {
        let absent = pin_init::init_array_from_fn(|_| AtomicUsize::new(0));
        Ok(Self {
            start,
            entries: KBox::init(absent, GFP_KERNEL_ACCOUNT)?,
            present: AtomicUsize::new(0),
            readers,
        })
    }

    /// Returns the address of the page at `va` if it is present, and writable if `write`. To be
    /// called within a section of `readers`; the result is valid until the section ends.
    pub(super) fn find(&self, va: usize, write: bool) -> Option<NonNull<u8>> {
        let entry = self.entry(va)?.load(Ordering::Acquire);
        let needed = if write { PRESENT | WRITABLE } else { PRESENT };
        (entry & needed == needed)
            .then(|| NonNull::new((entry & PAGE_MASK) as *mut u8))
            .flatten()
    }

    /// Returns the entry of the page at `va`, or `None` if the address is not within the chunk.
    pub(super) fn entry(&self, va: usize) -> Option<&AtomicUsize> {
        self.entries.get(va.checked_sub(self.start)? >> PAGE_SHIFT)
    }

    /// Returns whether no page is present.
    pub(super) fn is_empty(&self) -> bool {
        self.present.load(Ordering::Relaxed) == 0
    }

    /// Stores an entry with [`PRESENT`]. The caller holds the lock of the `ib_umem_odp`.
    pub(super) fn set(&self, entry: &AtomicUsize, value: usize) {
        if entry.load(Ordering::Relaxed) & PRESENT == 0 {
            self.present.fetch_add(1, Ordering::Relaxed);
        }
        entry.store(value, Ordering::Release);
    }

    /// Removes the present pages that overlap `first .. end` and whose entry `which` selects. Waits
    /// for the read-side sections that may use them. Marks writable pages dirty. The caller holds
    /// the lock of the `ib_umem_odp`.
    pub(super) fn forget(&self, first: usize, end: usize, which: impl Fn(usize) -> bool) {
        if self.is_empty() {
            return;
        }
        let index = |va: usize| va.saturating_sub(self.start) >> PAGE_SHIFT;
        let end = index(end.saturating_add(PAGE_SIZE - 1)).min(self.entries.len());
        let range = self.entries.get(index(first)..end).unwrap_or_default();
        let mut used = 0usize;
        for entry in range {
            let old = entry.load(Ordering::Relaxed);
            if old & PRESENT != 0 && which(old) {
                used = used.saturating_add(1);
                entry.store(old & !PRESENT, Ordering::Relaxed);
            }
        }
        if used == 0 {
            return;
        }
        self.readers.wait_spinning();
        self.present.fetch_sub(used, Ordering::Relaxed);
        for entry in range {
            let old = entry.load(Ordering::Relaxed);
            if old == 0 || old & PRESENT != 0 {
                continue;
            }
            if old & WRITABLE != 0 {
                let address = (old & PAGE_MASK) as *const u8;
                // SAFETY: The page still belongs to the process, which loses it after the notifier
                // returns.
                let page = unsafe { bindings::virt_to_page(address.cast()) };
                // SAFETY: The page still belongs to the process, so `page` is valid. (It may have
                // been written without a dirty bit in the process's page table.)
                unsafe { bindings::set_page_dirty(page) };
            }
            entry.store(0, Ordering::Relaxed);
        }
    }
}

#[kunit_tests(rrxe_odp_pages)]
mod tests {
    use super::*;

    const START: usize = 3 * CHUNK;

    fn at(page: usize) -> usize {
        START + page * PAGE_SIZE
    }

    /// Returns a table in which the pages `which` are present for reading.
    fn present(which: &[usize]) -> Result<Pages> {
        let readers = Arc::new(ReadSections::new()?, GFP_KERNEL)?;
        let pages = Pages::new(START, readers)?;
        for page in which {
            let entry = pages.entry(at(*page)).ok_or(EINVAL)?;
            pages.set(entry, at(*page) | PRESENT);
        }
        Ok(pages)
    }

    fn found(pages: &Pages) -> usize {
        let found = |page: &usize| pages.find(at(*page), false).is_some();
        (0..PAGES).filter(found).count()
    }

    #[test]
    fn has_an_entry_for_each_page_of_a_chunk() -> Result {
        let pages = present(&[])?;
        assert!(pages.is_empty());
        for (va, wanted) in [
            (START - 1, false),
            (START, true),
            (START + CHUNK - 1, true),
            (START + CHUNK, false),
            (usize::MAX, false),
        ] {
            assert_eq!(pages.entry(va).is_some(), wanted);
        }
        Ok(())
    }

    #[test]
    fn finds_pages_by_their_rights() -> Result {
        let pages = present(&[7])?;
        assert!(pages.find(at(7), false).is_some());
        assert!(pages.find(at(7), true).is_none());
        assert!(pages.find(at(8), false).is_none());
        Ok(())
    }

    #[test]
    fn removes_only_pages_in_the_range() -> Result {
        let pages = present(&[0, 1, 2, PAGES - 1])?;
        let forget = |first, end| pages.forget(first, end, |_| true);
        forget(0, START);
        forget(START + CHUNK, usize::MAX);
        forget(at(3), at(9));
        assert_eq!(found(&pages), 4);
        // A range within one page, which overlaps that page.
        forget(at(1) + 5, at(1) + 6);
        assert_eq!(found(&pages), 3);
        assert!(pages.find(at(1), false).is_none());
        pages.forget(0, usize::MAX, |_| false);
        assert_eq!(found(&pages), 3);
        forget(0, usize::MAX);
        assert!(pages.is_empty() && found(&pages) == 0);
        Ok(())
    }
}
