// SPDX-License-Identifier: GPL-2.0

//! Buffers that drivers export (dma-buf), as the CPUs see them.
//!
//! There is no DMA device here that an exporter could map a buffer for, so it is mapped into the kernel.
//! The exporter keeps a buffer in its place as long as it is mapped so; nothing is ever revoked.

use core::ptr::NonNull;

use kernel::{error::from_err_ptr, error::to_result, page::PAGE_SIZE, prelude::*};

use crate::{bindings, error::unsupported, extent::for_each_extent};

/// A buffer.
///
/// # Invariants
///
/// A counted reference to a `struct dma_buf`.
struct Buffer(NonNull<bindings::dma_buf>);

impl Buffer {
    fn as_raw(&self) -> *mut bindings::dma_buf {
        self.0.as_ptr()
    }

    fn len(&self) -> usize {
        // SAFETY: It is valid by the type invariant.
        unsafe { bindings::dma_buf_size(self.as_raw()) }
    }

    /// Whether its file was opened for writing, without which the process may not map it so either.
    fn is_writable(&self) -> bool {
        // SAFETY: It is valid by the type invariant.
        unsafe { bindings::dma_buf_is_writable(self.as_raw()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: The reference is given up once, here.
        unsafe { bindings::dma_buf_put(self.as_raw()) };
    }
}

/// A buffer that is mapped.
///
/// # Invariants
///
/// `map` is a mapping of all of `buffer`.
struct Mapping {
    map: bindings::iosys_map,
    buffer: Buffer,
}

impl Mapping {
    fn new(buffer: Buffer) -> Result<Self> {
        let mut map = bindings::iosys_map::default();
        // SAFETY: The buffer is valid, and `map` during the call.
        to_result(unsafe { bindings::dma_buf_vmap_unlocked(buffer.as_raw(), &mut map) })?;
        // INVARIANT: It was just mapped.
        Ok(Self { map, buffer })
    }

    /// Where it begins, if it is ordinary memory.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for I/O memory, and for memory that doesn't begin with a page: regions are cut at the edges of
    /// pages.
    fn address(&self) -> Result<usize> {
        if self.map.is_iomem {
            return Err(unsupported());
        }
        // SAFETY: It is no I/O memory, so this is the member that is set.
        let address = unsafe { self.map.__bindgen_anon_1.vaddr } as usize;
        match address % PAGE_SIZE {
            0 => Ok(address),
            _ => Err(unsupported()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: It is unmapped once, here.
        unsafe { bindings::dma_buf_vunmap_unlocked(self.buffer.as_raw(), &mut self.map) };
    }
}

/// A range of a buffer that the CPUs may use.
///
/// # Invariants
///
/// The range is within the buffer, and CPU access in `direction` has begun.
pub(crate) struct DmaBuf {
    mapping: Mapping,
    start: usize,
    len: usize,
    direction: bindings::dma_data_direction,
}

impl DmaBuf {
    /// Maps `len` bytes at `start` of the buffer that the calling process has as file `fd`, for being
    /// written or only read. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such file, `EINVAL` if it isn't a buffer, one that its exporter can't map or
    /// shorter; `EACCES` for writing to one that the process has for reading only; `EOPNOTSUPP` if it
    /// isn't ordinary memory; and what its exporter returns.
    pub(crate) fn new(fd: i32, start: u64, len: u64, writes: bool) -> Result<Self> {
        let (start, len) = (usize::try_from(start)?, usize::try_from(len)?);
        // SAFETY: The callee checks the number.
        let buffer = from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?;
        // INVARIANT: The callee has counted the reference.
        let buffer = Buffer(NonNull::new(buffer).ok_or(EBADF)?);
        let end = start.checked_add(len).ok_or(EINVAL)?;
        if len == 0 || end > buffer.len() {
            return Err(EINVAL);
        }
        if writes && !buffer.is_writable() {
            return Err(EACCES);
        }
        let mapping = Mapping::new(buffer)?;
        mapping.address()?;
        let direction = match writes {
            true => bindings::dma_data_direction_DMA_BIDIRECTIONAL,
            false => bindings::dma_data_direction_DMA_FROM_DEVICE,
        };
        let raw = mapping.buffer.as_raw();
        // SAFETY: The buffer is valid.
        to_result(unsafe { bindings::dma_buf_begin_cpu_access(raw, direction) })?;
        // INVARIANT: As was just checked and done.
        Ok(Self {
            mapping,
            start,
            len,
            direction,
        })
    }

    /// It was mapped for being written.
    pub(crate) fn is_writable(&self) -> bool {
        self.direction == bindings::dma_data_direction_DMA_BIDIRECTIONAL
    }

    /// Calls `visit` with address, in the kernel's direct mapping, and bytes of each stretch of its pages
    /// that lie one behind the other.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for what isn't made of pages; what `visit` returns.
    pub(crate) fn for_each_extent(&self, visit: impl FnMut(usize, usize) -> Result) -> Result {
        let base = self.mapping.address()?;
        // SAFETY: By the type invariants the range is within the buffer, which `self.mapping` maps; `new` refused an empty
        // range.
        unsafe { for_each_extent(base.wrapping_add(self.start), self.len, visit) }
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        let buffer = self.mapping.buffer.as_raw();
        // SAFETY: The buffer is valid; the access that began ends once, here. Nobody could be told of an
        // error.
        let _ = unsafe { bindings::dma_buf_end_cpu_access(buffer, self.direction) };
    }
}
