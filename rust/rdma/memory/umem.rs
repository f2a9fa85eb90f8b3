// SPDX-License-Identifier: GPL-2.0

//! Pinned memory of a region: pages of a process, of an exported buffer (dma-buf) or of device
//! memory that stay in place as long as peers may access them. Wraps `struct ib_umem`.

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

/// Pinned range of a process's memory, of an exported buffer or of device memory.
///
/// # Invariants
///
/// `blocks` holds the addresses of all blocks of the range, in order. A block is 2^`shift` bytes
/// and is aligned to its size. The range starts `first` bytes after the start of the first block
/// and is `len` bytes long. All its bytes are within the blocks. They are valid for reads, and for
/// writes if `writable`, while `source` exists. The process may change the bytes at any time.
pub struct UserMemory {
    source: Source,
    device: ARef<IbDevice>,
    blocks: KVVec<NonNull<u8>>,
    shift: u32,
    first: usize,
    len: usize,
    writable: bool,
}

/// Object that keeps the pages in place.
enum Source {
    Process(Umem),
    Exported(DmaBuf),
    /// Range of device memory that starts `start` bytes after the beginning of `memory`.
    Device {
        memory: Arc<SharedMemory>,
        start: usize,
    },
}

/// Pages of a process, pinned by ib_core.
///
/// # Invariants
///
/// The pointer is valid. It is released once, when this is dropped.
struct Umem(NonNull<bindings::ib_umem>);

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: The pointer is valid by the type invariant and is released once, here. The pages
        // are not accessed any more, as the owner of this value is being dropped.
        unsafe { bindings::ib_umem_release(self.0.as_ptr()) };
    }
}

/// Largest size of a block, log₂ of bytes (1 GiB). The kernel's direct mapping is aligned to this
/// size.
const MAX_SHIFT: u32 = 30;

// SAFETY: Pinned pages are accessible from every thread. Any thread may unpin them.
unsafe impl Send for UserMemory {}
// SAFETY: All accesses to the pages are raw copies and atomics.
unsafe impl Sync for UserMemory {}

impl UserMemory {
    /// Pins `len` bytes at the address `start` of the calling process, for the rights `access`
    /// (`ib_umem_get_va()`).
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is empty or wraps.
    /// - `EFAULT` if the range is not mapped with the rights that `access` needs.
    /// - `EPERM` or `ENOMEM` if the limit of locked memory is exceeded.
    /// - `EOPNOTSUPP` if the range is mapped from a file of a DAX file system.
    /// - `EINTR` if the process was killed; `ENOMEM` if memory is short.
    pub(crate) fn pin(device: &IbDevice, start: u64, len: u64, access: Access) -> Result<Self> {
        let (start, len) = (usize::try_from(start)?, usize::try_from(len)?);
        if len == 0 || start.checked_add(len).is_none() {
            return Err(EINVAL);
        }
        let access = access.as_raw();
        // SAFETY: `device` is borrowed, so it is valid. The callee checks the range.
        let umem = unsafe { bindings::ib_umem_get_va(device.as_raw(), start, len, access) };
        // INVARIANT: `ib_umem_get_va()` just created the object, and this value alone owns it.
        let umem = Umem(NonNull::new(from_err_ptr(umem)?).ok_or(ENOMEM)?);
        Self::new(device, Source::Process(umem), start, len)
    }

    /// Pins `len` bytes at `start` (in bytes) of the dma-buf that the calling process has open as
    /// file `fd`.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// - `EBADF` if the file `fd` does not exist.
    /// - `EINVAL` if the file is no dma-buf, or the range is empty or beyond the buffer.
    /// - `EACCES` if `access` includes writing, and the process opened the file for reading only.
    /// - `EOPNOTSUPP` if the buffer cannot be pinned, does not start at a page boundary, or has a
    ///   page in the range that is no readable memory of the direct mapping.
    /// - `EINTR` if the process was killed.
    /// - `ENOMEM`, and the errors of the buffer's exporter.
    pub(crate) fn import_dma_buf(
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

    /// Takes `len` bytes at `start` (in bytes) of device memory. The pages stay allocated until the
    /// result is dropped.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is beyond the device memory; `EINTR` if the process was killed;
    /// `ENOMEM`.
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

    /// Creates the memory of a range of `source`. `start` is the address or the offset of the
    /// range; only its position within a page matters.
    fn new(device: &IbDevice, source: Source, start: usize, len: usize) -> Result<Self> {
        let writable = match &source {
            // SAFETY: `umem` is valid until it is released (invariant of `Umem`).
            Source::Process(Umem(umem)) => unsafe { (*umem.as_ptr()).writable() != 0 },
            Source::Exported(buffer) => buffer.is_writable(),
            Source::Device { .. } => true,
        };
        // INVARIANT: An empty range has no blocks. For any other range `collect` finds the blocks
        // below; if it fails, the value is dropped without being used.
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

    /// Pins the same range of the calling process again, for the rights `access`.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range belongs to another process; `EOPNOTSUPP` if the memory is a dma-buf or
    /// device memory; the errors of [`Self::pin`].
    pub(crate) fn pin_again(&self, access: Access) -> Result<Self> {
        let Source::Process(Umem(umem)) = &self.source else {
            return Err(unsupported());
        };
        // SAFETY: `umem` is valid until it is released (invariant of `Umem`).
        let (start, owner) = unsafe { ((*umem.as_ptr()).address, (*umem.as_ptr()).owning_mm) };
        if !is_current_mm(owner) {
            return Err(EINVAL);
        }
        Self::pin(&self.device, start as u64, self.len as u64, access)
    }

    /// Returns whether the memory is pinned for writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Stores the addresses of all blocks. The block size is the largest that the layout of the
    /// pages allows.
    fn collect(&mut self) -> Result {
        let mut size = 0usize;
        let mut edges = 0usize;
        let mut end = None;
        let mut start = None;
        self.for_each_extent(|address, bytes| {
            // Each boundary between two runs of pages must be a multiple of the block size. The
            // start of the first run and the end of the last run need not be.
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
        // INVARIANT: `blocks` covers the runs from the first to the last, and each boundary between
        // two runs is a multiple of the block size. The size of all runs is at least `first + len`.
        self.blocks = blocks;
        self.shift = shift;
        self.first = self.first.wrapping_add(before);
        Ok(())
    }

    /// Calls `visit` with the address and the length in bytes of each run of contiguous pages, in
    /// order.
    fn for_each_extent(&self, mut visit: impl FnMut(usize, usize) -> Result) -> Result {
        let umem = match &self.source {
            Source::Process(Umem(umem)) => umem,
            Source::Exported(buffer) => return buffer.for_each_extent(visit),
            Source::Device { memory, start } => {
                let first = memory.start().as_ptr() as usize;
                // SAFETY: `of_device` checked that the range is within `memory`, which is mapped.
                // `new` does not call this for an empty range.
                return unsafe { for_each_extent(first.wrapping_add(*start), self.len, visit) };
            }
        };
        // SAFETY: `umem` is valid until it is released (invariant of `Umem`).
        let mut entry = unsafe { (*umem.as_ptr()).sgt_append.sgt.sgl };
        while !entry.is_null() {
            // SAFETY: `entry` is in the scatterlist of `umem`, and each entry of it has a page.
            let page = unsafe { bindings::sg_page(entry) };
            // SAFETY: `page` is pinned. Memory of processes that can be pinned is in the direct
            // mapping (64 bit only).
            let address = unsafe { bindings::page_address(page) } as usize;
            // SAFETY: `entry` is in the scatterlist of `umem`, so it is valid.
            visit(address, unsafe { (*entry).length } as usize)?;
            // SAFETY: `entry` is in the scatterlist of `umem`, which has an end marker.
            entry = unsafe { core_bindings::sg_next(entry.cast()) }.cast();
        }
        Ok(())
    }

    /// Returns the length of the range in bytes.
    pub fn length(&self) -> u64 {
        self.len as u64
    }

    /// Returns the span of `len` bytes at `offset` (in bytes), or `None` if they are not within the
    /// range. Takes constant time. Any context.
    #[inline]
    pub fn span(&self, offset: u64, len: u32) -> Option<Span<'_>> {
        let (offset, len) = (usize::try_from(offset).ok()?, len as usize);
        let within = offset <= self.len && len <= self.len.wrapping_sub(offset);
        // The sum is within the blocks by the type invariant, so it does not overflow.
        within.then(|| {
            let start = self.first.wrapping_add(offset);
            // SAFETY: By the type invariant the bytes are within the blocks, and are valid as long
            // as `self.source` exists, which the result borrows.
            unsafe { Span::new(&self.blocks, self.shift, start, len, self.writable) }
        })
    }
}
