// SPDX-License-Identifier: GPL-2.0

//! Buffers that drivers export (dma-buf), as the CPUs see them.
//!
//! rrxe has no DMA device that an exporter could map a buffer for, so the buffer is mapped into the kernel.
//! A mapping alone doesn't keep the pages: the exporters of graphics drivers move a buffer that is mapped so to video memory, or
//! swap it out (`ttm_bo_vmap()`, drivers/gpu/drm/ttm/ttm_bo_util.c). An attachment that is pinned does.

use core::ptr::{self, NonNull};

use kernel::{
    error::{from_err_ptr, to_result},
    page::PAGE_SIZE,
    prelude::*,
    sync::aref::ARef,
};

use crate::{
    bindings, device::IbDevice, memory::extent::for_each_extent, support::error::unsupported,
};

/// The module whose buffers are refused. A pin is a flag there, and no count: whoever else attaches to a buffer and detaches
/// again unpins it (`vmw_bo_pin_reserved()`, drivers/gpu/drm/vmwgfx/vmwgfx_bo.c).
const UNPINNABLE: &CStr = c"vmwgfx";
/// The name that buffers of all exporters have that are no modules. Where the driver above is none, all of them are refused.
const BUILT_IN: &CStr = c"kernel";

/// Whether the exporter of this name keeps a buffer in its place that others unpin.
fn counts_pins(name: &CStr) -> bool {
    name != UNPINNABLE && (name != BUILT_IN || !cfg!(CONFIG_DRM_VMWGFX = "y"))
}

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

    /// Whether a pin of ours keeps it in its place.
    fn can_be_pinned(&self) -> bool {
        // SAFETY: It is valid by the type invariant. It counts its owner, which keeps the name, until it is freed
        // (`dma_buf_export()`, `dma_buf_release()`, drivers/dma-buf/dma-buf.c).
        counts_pins(unsafe { CStr::from_char_ptr(bindings::dma_buf_owner_name(self.as_raw())) })
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

/// The operations of an attachment whose owner pins the buffer, so that nobody needs to tell it of a move.
static PINNED: bindings::dma_buf_attach_ops = bindings::dma_buf_attach_ops {
    allow_peer2peer: false,
    invalidate_mappings: None,
};

/// The attachment of an RDMA device to a buffer.
///
/// # Invariants
///
/// `raw` is an attachment of `device` to `buffer`.
struct Attachment {
    raw: NonNull<bindings::dma_buf_attachment>,
    buffer: Buffer,
    _device: ARef<IbDevice>,
}

impl Attachment {
    fn new(buffer: Buffer, device: &IbDevice) -> Result<Self> {
        let dev = device.embedded();
        // SAFETY: Buffer and device are valid: the attachment holds a count of each. Exporters only read the operations, which
        // are static.
        let raw = unsafe {
            bindings::dma_buf_dynamic_attach(buffer.as_raw(), dev, &PINNED, ptr::null_mut())
        };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(ENOMEM)?;
        // INVARIANT: It was just made.
        Ok(Self {
            raw,
            buffer,
            _device: device.into(),
        })
    }

    /// Calls `f` with the lock of the buffer's reservation object. Process context; sleeps.
    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        let buffer = self.buffer.as_raw();
        // SAFETY: The buffer is valid. The exporter's reservation object exists as long as the buffer. Taking the lock without
        // an acquire context can't fail (`ww_mutex_lock()`, kernel/locking/mutex.c).
        unsafe { bindings::dma_buf_lock(buffer) };
        let result = f();
        // SAFETY: It was locked here.
        unsafe { bindings::dma_buf_unlock(buffer) };
        result
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: It is detached once, here.
        unsafe { bindings::dma_buf_detach(self.buffer.as_raw(), self.raw.as_ptr()) };
    }
}

/// A buffer that the exporter keeps in its place.
///
/// # Invariants
///
/// The attachment is pinned.
struct Pin(Attachment);

impl Pin {
    fn new(attachment: Attachment) -> Result<Self> {
        let raw = attachment.raw.as_ptr();
        // SAFETY: The attachment is valid, has operations, and the lock is held.
        to_result(attachment.locked(|| unsafe { bindings::dma_buf_pin(raw) }))?;
        // INVARIANT: It was just pinned. The exporter keeps a pinned buffer in its place.
        Ok(Self(attachment))
    }

    fn buffer(&self) -> &Buffer {
        &self.0.buffer
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let raw = self.0.raw.as_ptr();
        // SAFETY: By the type invariant; it is unpinned once, here, with the lock held.
        self.0.locked(|| unsafe { bindings::dma_buf_unpin(raw) });
    }
}

/// A buffer that is mapped.
///
/// # Invariants
///
/// `map` is a mapping of all of the buffer of `pin`.
struct Mapping {
    map: bindings::iosys_map,
    pin: Pin,
}

impl Mapping {
    fn new(pin: Pin) -> Result<Self> {
        let mut map = bindings::iosys_map::default();
        let raw = pin.buffer().as_raw();
        // SAFETY: The buffer is valid, and `map` during the call.
        to_result(unsafe { bindings::dma_buf_vmap_unlocked(raw, &mut map) })?;
        // INVARIANT: It was just mapped.
        Ok(Self { map, pin })
    }

    fn as_raw(&self) -> *mut bindings::dma_buf {
        self.pin.buffer().as_raw()
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
        unsafe { bindings::dma_buf_vunmap_unlocked(self.as_raw(), &mut self.map) };
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
    /// Pins and maps `len` bytes at `start` of the buffer that the calling process has as file `fd`, for `device`, for
    /// being written or only read. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such file, `EINVAL` if it isn't a buffer, one that its exporter can't map or
    /// shorter; `EACCES` for writing to one that the process has for reading only; `EOPNOTSUPP` if it
    /// isn't ordinary memory, or can't be pinned; and what its exporter returns.
    pub(crate) fn new(
        device: &IbDevice,
        fd: i32,
        start: u64,
        len: u64,
        writes: bool,
    ) -> Result<Self> {
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
        if !buffer.can_be_pinned() {
            return Err(unsupported());
        }
        let attachment = Attachment::new(buffer, device)?;
        let mapping = Mapping::new(Pin::new(attachment)?)?;
        mapping.address()?;
        let direction = match writes {
            true => bindings::dma_data_direction_DMA_BIDIRECTIONAL,
            false => bindings::dma_data_direction_DMA_FROM_DEVICE,
        };
        let raw = mapping.as_raw();
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
        let buffer = self.mapping.as_raw();
        // SAFETY: The buffer is valid; the access that began ends once, here. Nobody could be told of an
        // error.
        let _ = unsafe { bindings::dma_buf_end_cpu_access(buffer, self.direction) };
    }
}

#[kunit_tests(rrxe_dma_buf)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_others_unpin_are_refused() {
        assert!(!counts_pins(c"vmwgfx"));
        assert!(counts_pins(c"radeon") && counts_pins(c"udmabuf"));
        assert_eq!(counts_pins(c"kernel"), !cfg!(CONFIG_DRM_VMWGFX = "y"));
    }
}
