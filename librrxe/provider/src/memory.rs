// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Memory that the kernel shares with the process, in the form that `rrxe_rings` expects.

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

/// Mapping of shared memory. It is unmapped when this is dropped.
///
/// # Invariants
///
/// `length` bytes from `place` on are mapped for reading and writing until this is dropped. `place`
/// is the start of a page.
pub(crate) struct Mapping {
    place: NonNull<c_void>,
    length: usize,
}

// SAFETY: The methods access the memory by atomic operations only, which any thread may execute.
unsafe impl Send for Mapping {}
// SAFETY: The methods access the memory by atomic operations only, which any thread may execute.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of the device file `fd` at the mmap offset `offset`.
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

    /// Maps the ring whose offset and size the kernel reported.
    ///
    /// # Errors
    ///
    /// errno of the mapping; `EINVAL` if the memory holds no valid ring.
    pub(crate) fn ring(fd: c_int, place: &mminfo) -> Result<Ring<Self>, c_int> {
        let mapping = Self::new(fd, place.offset, place.size as usize)?;
        Ring::new(mapping).ok_or(EINVAL)
    }

    /// Returns the address of the first byte.
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
        // SAFETY: The check above shows that the word is within the mapping and aligned. All
        // threads and the kernel access it atomically.
        Some(unsafe { self.place.byte_add(offset).cast::<AtomicU32>().as_ref() })
    }

    fn longs(&self, offset: usize) -> &[AtomicU64] {
        if offset > self.length || offset % align_of::<AtomicU64>() != 0 {
            return &[];
        }
        let count = (self.length - offset) / size_of::<AtomicU64>();
        // SAFETY: `count` words from `offset` on are within the mapping and aligned. All threads of
        // the process access them atomically.
        unsafe { slice::from_raw_parts(self.place.byte_add(offset).cast().as_ptr(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `length` bytes at `place` are mapped. References into the
        // mapping borrow `self`, so none exists any more.
        unsafe { system::unmap(self.place, self.length) };
    }
}
