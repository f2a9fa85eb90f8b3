// SPDX-License-Identifier: GPL-2.0

//! Memory of a process, pinned for as long as peers may reach it.

use core::ptr::NonNull;

use kernel::{
    bindings as core_bindings, error::from_err_ptr, page::PAGE_SIZE, prelude::*, sync::aref::ARef,
};

use crate::{bindings, device::IbDevice, mr::Access, span::Span};

/// A pinned range of a process's memory.
///
/// # Invariants
///
/// `pages` are the addresses of all pages of the range, in order, each valid for reads and writes
/// of a page while `umem` is not released; the first byte of the range is `first` bytes into the
/// first page, and the range is `len` bytes, all within these pages. The process may change the
/// pages at any time. They are writable for the kernel whatever the access granted; a caller writes
/// only where the access allows.
pub struct UserMemory {
    umem: NonNull<bindings::ib_umem>,
    /// `umem` points to it.
    _device: ARef<IbDevice>,
    pages: KVVec<NonNull<u8>>,
    first: usize,
    len: usize,
}

// SAFETY: Pinned pages are reachable from every thread, and may be unpinned by any.
unsafe impl Send for UserMemory {}
// SAFETY: All accesses to the pages are raw copies and atomics.
unsafe impl Sync for UserMemory {}

impl UserMemory {
    /// Pins `len` bytes at `start` of the calling process, for `access`.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty or wrapping range, `EFAULT` for one that isn't mapped so, `EPERM` and
    /// `ENOMEM` for the limits of locked memory, `ENOMEM`.
    pub fn pin(device: &IbDevice, start: u64, len: u64, access: Access) -> Result<Self> {
        let (start, len) = (usize::try_from(start)?, usize::try_from(len)?);
        if len == 0 || start.checked_add(len).is_none() {
            return Err(EINVAL);
        }
        let access = access.as_raw();
        // SAFETY: The device is valid; the range is checked by the callee.
        let umem = unsafe { bindings::ib_umem_get_va(device.as_raw(), start, len, access) };
        let umem = NonNull::new(from_err_ptr(umem)?).ok_or(ENOMEM)?;
        let first = start % PAGE_SIZE;
        // INVARIANT: Still without pages; `collect_pages` finds them, or the value is dropped.
        let mut memory = Self {
            umem,
            _device: device.into(),
            pages: KVVec::new(),
            first,
            len,
        };
        let count = first.saturating_add(len).div_ceil(PAGE_SIZE);
        memory.pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        memory.collect_pages(count)?;
        Ok(memory)
    }

    /// Notes the addresses of all `count` pages.
    fn collect_pages(&mut self, count: usize) -> Result {
        // SAFETY: `umem` is valid until it is released.
        let mut entry = unsafe { (*self.umem.as_ptr()).sgt_append.sgt.sgl };
        while !entry.is_null() && self.pages.len() < count {
            // SAFETY: `entry` is in the list of `umem`, whose entries have pages.
            let page = unsafe { bindings::sg_page(entry) };
            // SAFETY: `page` is pinned; user memory is in the direct map (64 bit only).
            let address: *mut u8 = unsafe { bindings::page_address(page) }.cast();
            // SAFETY: As above.
            let bytes = unsafe { (*entry).length } as usize;
            for offset in (0..bytes).step_by(PAGE_SIZE) {
                // An entry's pages are physically, hence here also virtually, contiguous.
                let address = NonNull::new(address.wrapping_add(offset)).ok_or(EFAULT)?;
                self.pages.push(address, GFP_KERNEL_ACCOUNT)?;
            }
            // SAFETY: `entry` is in a list of entries.
            entry = unsafe { core_bindings::sg_next(entry.cast()) }.cast();
        }
        (self.pages.len() == count).then_some(()).ok_or(EFAULT)
    }

    /// Bytes in the range.
    pub fn length(&self) -> u64 {
        self.len as u64
    }

    /// `len` bytes at `offset`, if they are within the range. O(1).
    #[inline]
    pub fn span(&self, offset: u64, len: u32) -> Option<Span<'_>> {
        let (offset, len) = (usize::try_from(offset).ok()?, len as usize);
        let within = offset <= self.len && len <= self.len.wrapping_sub(offset);
        // The sum is within the pages by the invariant, so it does not wrap.
        within.then(|| Span::new(&self.pages, self.first.wrapping_add(offset), len))
    }
}

impl Drop for UserMemory {
    fn drop(&mut self) {
        // SAFETY: `umem` is released once, here; the pages are not accessed any more.
        unsafe { bindings::ib_umem_release(self.umem.as_ptr()) };
    }
}
