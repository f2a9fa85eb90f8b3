// SPDX-License-Identifier: GPL-2.0

//! Memory of a process, or that it has from a driver or the device, in its place for as long as peers may reach it.

use core::ptr::NonNull;

use kernel::{
    bindings as core_bindings,
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*,
    sync::{aref::ARef, Arc},
};

use crate::{
    abi::mmap::SharedMemory,
    bindings,
    device::IbDevice,
    memory::{
        dm::DeviceMemory, dma_buf::DmaBuf, extent::for_each_extent, is_current_mm, span::Span,
    },
    support::error::unsupported,
    verbs::mr::Access,
};

/// A pinned range of a process's memory, of a buffer that a driver exports, or of device memory.
///
/// # Invariants
///
/// `blocks` are the addresses of all blocks of the range, in order; a block is 2^`shift` bytes, aligned
/// to its size. The first byte of the range is `first` bytes into the first block, and the range is
/// `len` bytes, all within these blocks, and valid for reads, and for writes if `writable`, while `source`
/// exists. The process may change them at any time.
pub struct UserMemory {
    source: Source,
    device: ARef<IbDevice>,
    blocks: KVVec<NonNull<u8>>,
    shift: u32,
    first: usize,
    len: usize,
    writable: bool,
}

/// What keeps the pages in their place.
enum Source {
    Process(Umem),
    Exported(DmaBuf),
    /// A range of it, that many bytes from its beginning.
    Device {
        memory: Arc<SharedMemory>,
        start: usize,
    },
}

/// Pinned pages.
///
/// # Invariants
///
/// It is valid, and released once: when this is dropped.
struct Umem(NonNull<bindings::ib_umem>);

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; the pages are not accessed any more.
        unsafe { bindings::ib_umem_release(self.0.as_ptr()) };
    }
}

/// The largest block, log₂ of bytes: what the direct mapping of the kernel is aligned to.
const MAX_SHIFT: u32 = 30;

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
    pub(crate) fn pin(device: &IbDevice, start: u64, len: u64, access: Access) -> Result<Self> {
        let (start, len) = (usize::try_from(start)?, usize::try_from(len)?);
        if len == 0 || start.checked_add(len).is_none() {
            return Err(EINVAL);
        }
        let access = access.as_raw();
        // SAFETY: The device is valid; the range is checked by the callee.
        let umem = unsafe { bindings::ib_umem_get_va(device.as_raw(), start, len, access) };
        // INVARIANT: It was just made.
        let umem = Umem(NonNull::new(from_err_ptr(umem)?).ok_or(ENOMEM)?);
        Self::new(device, Source::Process(umem), start, len)
    }

    /// Takes `len` bytes at `start` of the buffer that the calling process has as file `fd`.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such file, `EINVAL` if it isn't a buffer or the range is empty or beyond it,
    /// `EACCES` for a right to write to what may only be read, `EOPNOTSUPP` if it isn't made of pages,
    /// `ENOMEM`, and what the buffer's exporter returns.
    pub(crate) fn export(
        device: &IbDevice,
        fd: i32,
        start: u64,
        len: u64,
        access: Access,
    ) -> Result<Self> {
        let buffer = DmaBuf::new(device, fd, start, len, access.writes())?;
        let (start, len) = (usize::try_from(start)?, usize::try_from(len)?);
        Self::new(device, Source::Exported(buffer), start, len)
    }

    /// Takes `len` bytes at `start` of device memory, which stays until this is dropped.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range beyond the memory, `ENOMEM`.
    pub(crate) fn of_device(
        device: &IbDevice,
        memory: &DeviceMemory,
        start: u64,
        len: u64,
    ) -> Result<Self> {
        if !memory.contains(start, len) {
            return Err(EINVAL);
        }
        let (start, len) = (usize::try_from(start)?, usize::try_from(len)?);
        let memory = memory.shared().clone();
        Self::new(device, Source::Device { memory, start }, start, len)
    }

    fn new(device: &IbDevice, source: Source, start: usize, len: usize) -> Result<Self> {
        let writable = match &source {
            // SAFETY: `umem` is valid until it is released.
            Source::Process(Umem(umem)) => unsafe { (*umem.as_ptr()).writable() != 0 },
            Source::Exported(buffer) => buffer.is_writable(),
            Source::Device { .. } => true,
        };
        // INVARIANT: Still without blocks, of which an empty range has none; else `collect` finds them, or the value
        // is dropped.
        let mut memory = Self {
            source,
            writable,
            device: device.into(),
            blocks: KVVec::new(),
            shift: PAGE_SIZE.trailing_zeros(),
            first: start % PAGE_SIZE,
            len,
        };
        if len != 0 {
            memory.collect()?;
        }
        Ok(memory)
    }

    /// Pins the same range of the calling process again, for another access.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is another process's range, `EOPNOTSUPP` if it is none, and those of [`Self::pin`].
    pub(crate) fn pin_again(&self, access: Access) -> Result<Self> {
        let Source::Process(Umem(umem)) = &self.source else {
            return Err(unsupported());
        };
        // SAFETY: `umem` is valid until it is released.
        let (start, owner) = unsafe { ((*umem.as_ptr()).address, (*umem.as_ptr()).owning_mm) };
        if !is_current_mm(owner) {
            return Err(EINVAL);
        }
        Self::pin(&self.device, start as u64, self.len as u64, access)
    }

    /// Whether it was pinned for being written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Notes the addresses of all blocks, the largest that the pages make up.
    fn collect(&mut self) -> Result {
        let mut size = 0usize;
        let mut edges = 0usize;
        let mut end = None;
        let mut start = None;
        self.for_each_extent(|address, bytes| {
            // All edges but the outermost must be those of blocks.
            edges |= end.map_or(0, |end| end | address);
            end = Some(address.wrapping_add(bytes));
            start = start.or(Some(address));
            size = size.saturating_add(bytes);
            Ok(())
        })?;
        let start = start.ok_or(EFAULT)?;
        if size < self.first.saturating_add(self.len) {
            return Err(EFAULT);
        }
        let shift = edges.trailing_zeros().min(MAX_SHIFT);
        let block = 1usize.wrapping_shl(shift);
        let before = start & block.wrapping_sub(1);
        let count = before.saturating_add(size).div_ceil(block);
        let mut blocks = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        self.for_each_extent(|address, bytes| {
            let mut at = address & !block.wrapping_sub(1);
            while at < address.saturating_add(bytes) {
                blocks.push(
                    NonNull::new(at as *mut u8).ok_or(EFAULT)?,
                    GFP_KERNEL_ACCOUNT,
                )?;
                at = at.saturating_add(block);
            }
            Ok(())
        })?;
        // INVARIANT: As was just found out; the edges between extents are those of blocks.
        self.blocks = blocks;
        self.shift = shift;
        self.first = self.first.wrapping_add(before);
        Ok(())
    }

    /// Calls `visit` with address and bytes of each stretch of pages that lie one behind the other.
    fn for_each_extent(&self, mut visit: impl FnMut(usize, usize) -> Result) -> Result {
        let umem = match &self.source {
            Source::Process(Umem(umem)) => umem,
            Source::Exported(buffer) => return buffer.for_each_extent(visit),
            Source::Device { memory, start } => {
                let first = memory.start().as_ptr() as usize;
                // SAFETY: The range is within `memory`, as `of_device` checked; `new` asks for no empty one.
                return unsafe { for_each_extent(first.wrapping_add(*start), self.len, visit) };
            }
        };
        // SAFETY: `umem` is valid until it is released.
        let mut entry = unsafe { (*umem.as_ptr()).sgt_append.sgt.sgl };
        while !entry.is_null() {
            // SAFETY: `entry` is in the list of `umem`, whose entries have pages.
            let page = unsafe { bindings::sg_page(entry) };
            // SAFETY: `page` is pinned; user memory is in the direct map (64 bit only).
            let address = unsafe { bindings::page_address(page) } as usize;
            // SAFETY: As above.
            visit(address, unsafe { (*entry).length } as usize)?;
            // SAFETY: `entry` is in a list of entries.
            entry = unsafe { core_bindings::sg_next(entry.cast()) }.cast();
        }
        Ok(())
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
        // The sum is within the blocks by the invariant, so it does not wrap.
        within.then(|| {
            let start = self.first.wrapping_add(offset);
            // SAFETY: By the type invariant; the bytes are valid as long as `self.source` exists.
            unsafe { Span::new(&self.blocks, self.shift, start, len, self.writable) }
        })
    }
}
