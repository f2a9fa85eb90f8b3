// SPDX-License-Identifier: GPL-2.0

//! The pages of a chunk that are present.

use core::{
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
};

use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};

use super::{PAGE_MASK, PAGE_SHIFT};
use crate::{bindings, section::Sections};

/// An entry is the address of a page, or zero, and these.
pub(super) const PRESENT: usize = 1 << 0;
pub(super) const WRITABLE: usize = 1 << 1;

/// The pages of a range that are present.
///
/// # Invariants
///
/// An entry with [`PRESENT`] is the address of a page of the process, valid for reads, and with
/// [`WRITABLE`] for writes, until the sections of `readers` have ended that began before the flag was cleared. Entries
/// are written under the lock of the `ib_umem_odp`; without [`PRESENT`] they are zero when it is not held. Then
/// `present` is the number of those with [`PRESENT`].
pub(super) struct Pages {
    /// The process's address of the first.
    pub(super) start: usize,
    entries: KVVec<AtomicUsize>,
    /// Invalidations of a range that has no page look no further: whoever ends it waits for them.
    present: AtomicUsize,
    pub(super) readers: Arc<Sections>,
}

impl Pages {
    /// None present from `start` on; `entries` is empty and has room.
    pub(super) fn new(start: usize, entries: KVVec<AtomicUsize>, readers: Arc<Sections>) -> Self {
        Self {
            start,
            entries,
            present: AtomicUsize::new(0),
            readers,
        }
    }

    /// Makes an entry for each page up to `end`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no room for them.
    pub(super) fn fill(&mut self, end: usize) -> Result {
        for _ in 0..end.saturating_sub(self.start) >> PAGE_SHIFT {
            let added = self.entries.push_within_capacity(AtomicUsize::new(0));
            added.map_err(|_| ENOMEM)?;
        }
        Ok(())
    }

    /// The page at `va`, if it may be used so. Within a section.
    pub(super) fn find(&self, va: usize, write: bool) -> Option<NonNull<u8>> {
        let entry = self.entry(va)?.load(Ordering::Acquire);
        let needed = if write { PRESENT | WRITABLE } else { PRESENT };
        (entry & needed == needed)
            .then(|| NonNull::new((entry & PAGE_MASK) as *mut u8))
            .flatten()
    }

    pub(super) fn entry(&self, va: usize) -> Option<&AtomicUsize> {
        self.entries.get(va.checked_sub(self.start)? >> PAGE_SHIFT)
    }

    /// No page is present.
    pub(super) fn is_empty(&self) -> bool {
        self.present.load(Ordering::Relaxed) == 0
    }

    /// Writes an entry with [`PRESENT`]. Under the lock.
    pub(super) fn set(&self, entry: &AtomicUsize, value: usize) {
        if entry.load(Ordering::Relaxed) & PRESENT == 0 {
            self.present.fetch_add(1, Ordering::Relaxed);
        }
        entry.store(value, Ordering::Release);
    }

    /// Forgets those of the pages that touch `first .. end` whose entry `which` picks, and waits for
    /// their users. Under the lock. Unless it may `sleep`, it waits only briefly; it returns `false`, and has forgotten
    /// none, if a user is still there.
    pub(super) fn forget(
        &self,
        first: usize,
        end: usize,
        sleep: bool,
        which: impl Fn(usize) -> bool,
    ) -> bool {
        if self.is_empty() {
            return true;
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
            return true;
        }
        let forgotten = range.iter().filter_map(|entry| {
            let old = entry.load(Ordering::Relaxed);
            (old != 0 && old & PRESENT == 0).then_some((entry, old))
        });
        if sleep {
            self.readers.wait();
        } else if !self.readers.wait_briefly() {
            for (entry, old) in forgotten {
                // INVARIANT: The process has the page still: the notifier says that it may not take it.
                entry.store(old | PRESENT, Ordering::Release);
            }
            return false;
        }
        self.present.fetch_sub(used, Ordering::Relaxed);
        for (entry, old) in forgotten {
            if old & WRITABLE != 0 {
                let address = (old & PAGE_MASK) as *const u8;
                // SAFETY: The page is the process's still: it goes after the notifier returns.
                let page = unsafe { bindings::virt_to_page(address.cast()) };
                // SAFETY: As above. Users may have written it without the process's page table.
                unsafe { bindings::set_page_dirty(page) };
            }
            entry.store(0, Ordering::Relaxed);
        }
        true
    }
}
