// SPDX-License-Identifier: GPL-2.0

//! Mapped memory of the kernel's, as `rrxe_rings` wants it.

use core::{
    ffi::{c_int, c_void},
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU32, AtomicU64},
};

use rrxe_rings::{memory::Memory, ring::Ring};

use crate::{
    bindings::mminfo,
    system::{self, EINVAL},
};

/// A mapping, taken away when this goes.
///
/// # Invariants
///
/// `length` bytes from `place` on are mapped for reading and writing, at a page's beginning, until this goes.
pub(crate) struct Mapping {
    place: NonNull<c_void>,
    length: usize,
}

// SAFETY: The memory is read and written by atomic operations only, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: As above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps what the kernel named.
    ///
    /// # Errors
    ///
    /// errno.
    pub(crate) fn new(fd: c_int, offset: u64, length: usize) -> Result<Self, c_int> {
        // INVARIANT: `map` maps whole pages.
        Ok(Self {
            place: system::map(fd, offset, length)?,
            length,
        })
    }

    /// The ring that the kernel answered with.
    ///
    /// # Errors
    ///
    /// errno; `EINVAL` if there is no ring.
    pub(crate) fn ring(fd: c_int, place: &mminfo) -> Result<Ring<Self>, c_int> {
        let mapping = Self::new(fd, place.offset, place.size as usize)?;
        Ring::new(mapping).ok_or(EINVAL)
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.place.as_ptr().cast()
    }
}

impl Memory for Mapping {
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let end = offset.checked_add(size_of::<AtomicU32>())?;
        if end > self.length || offset % align_of::<AtomicU32>() != 0 {
            return None;
        }
        // SAFETY: It lies in the mapping, as checked, is aligned, and all who write there do it atomically.
        Some(unsafe { self.place.byte_add(offset).cast::<AtomicU32>().as_ref() })
    }

    fn longs(&self, offset: usize) -> &[AtomicU64] {
        if offset > self.length || offset % align_of::<AtomicU64>() != 0 {
            return &[];
        }
        let count = (self.length - offset) / size_of::<AtomicU64>();
        // SAFETY: They lie in the mapping, as computed, are aligned, and all who write there do it atomically.
        unsafe { slice::from_raw_parts(self.place.byte_add(offset).cast().as_ptr(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; references into it borrow this.
        unsafe { system::unmap(self.place, self.length) };
    }
}
