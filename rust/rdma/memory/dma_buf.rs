// SPDX-License-Identifier: GPL-2.0

//! Buffers that other drivers export (dma-buf, `struct dma_buf`), accessed by the CPUs.
//!
//! A software device has no DMA device for which an exporter could map a buffer, so the
//! buffer is mapped into the kernel. A mapping alone does not keep the pages in place: the
//! exporters of graphics drivers move a mapped buffer to video memory, or swap it out
//! (`ttm_bo_vmap()`, drivers/gpu/drm/ttm/ttm_bo_util.c). A pinned attachment keeps the pages
//! in place.

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

/// Name of the exporter module whose buffers are refused. In vmwgfx, a pin is a flag and not a
/// count: another importer that attaches to a buffer and detaches again clears the pin
/// (`vmw_bo_pin_reserved()`, drivers/gpu/drm/vmwgfx/vmwgfx_bo.c).
const UNPINNABLE: &CStr = c"vmwgfx";
/// Exporter name of each buffer whose exporter is built into the kernel. If vmwgfx is built in, all
/// buffers with this name are refused.
const BUILT_IN: &CStr = c"kernel";

/// Returns whether the exporter named `name` counts pins, so that a pinned buffer stays in place
/// when another importer unpins it.
fn counts_pins(name: &CStr) -> bool {
    name != UNPINNABLE && (name != BUILT_IN || !cfg!(CONFIG_DRM_VMWGFX = "y"))
}

/// Reference to an exported buffer.
///
/// # Invariants
///
/// The pointer is a counted reference to a `struct dma_buf`.
struct Buffer(NonNull<bindings::dma_buf>);

impl Buffer {
    fn as_raw(&self) -> *mut bindings::dma_buf {
        self.0.as_ptr()
    }

    /// Returns the size of the buffer in bytes.
    fn len(&self) -> usize {
        // SAFETY: The pointer is a counted reference by the type invariant, so the buffer is valid.
        unsafe { bindings::dma_buf_size(self.as_raw()) }
    }

    /// Returns whether a pin that this module takes keeps the buffer in place.
    fn can_be_pinned(&self) -> bool {
        // SAFETY: The pointer is a counted reference by the type invariant, so the buffer is valid.
        // The buffer holds a count of its owner module, and with it the name, until the buffer is
        // freed (`dma_buf_export()`, `dma_buf_release()`, drivers/dma-buf/dma-buf.c).
        counts_pins(unsafe { CStr::from_char_ptr(bindings::dma_buf_owner_name(self.as_raw())) })
    }

    /// Returns whether the file of the buffer was opened for writing. Otherwise the process may not
    /// map the buffer for writing, either.
    fn is_writable(&self) -> bool {
        // SAFETY: The pointer is a counted reference by the type invariant, so the buffer is valid.
        unsafe { bindings::dma_buf_is_writable(self.as_raw()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: The counted reference of the type invariant is given up once, here.
        unsafe { bindings::dma_buf_put(self.as_raw()) };
    }
}

/// Attachment operations without a callback for moves. The owner of the attachment pins the buffer,
/// so the buffer does not move.
static PINNED: bindings::dma_buf_attach_ops = bindings::dma_buf_attach_ops {
    allow_peer2peer: false,
    invalidate_mappings: None,
};

/// Attachment of an RDMA device to a buffer (`struct dma_buf_attachment`).
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
    /// Attaches `device` to `buffer`. Process context; sleeps.
    fn new(buffer: Buffer, device: &IbDevice) -> Result<Self> {
        let dev = device.embedded();
        // SAFETY: Buffer and device are valid: the result holds a count of each. Exporters only
        // read the operations, which are static.
        let raw = unsafe {
            bindings::dma_buf_dynamic_attach(buffer.as_raw(), dev, &PINNED, ptr::null_mut())
        };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(ENOMEM)?;
        // INVARIANT: `dma_buf_dynamic_attach()` just attached `device` to `buffer`.
        Ok(Self {
            raw,
            buffer,
            _device: device.into(),
        })
    }

    /// Calls `f` with the lock of the buffer's reservation object (`dma_resv`) held. Process
    /// context; sleeps.
    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        let buffer = self.buffer.as_raw();
        // SAFETY: The buffer is valid. The exporter's reservation object exists as long as the
        // buffer. Taking the lock without an acquire context cannot fail (`ww_mutex_lock()`,
        // kernel/locking/mutex.c).
        unsafe { bindings::dma_buf_lock(buffer) };
        let result = f();
        // SAFETY: This function took the lock above.
        unsafe { bindings::dma_buf_unlock(buffer) };
        result
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `raw` is an attachment to `buffer`. It is detached once,
        // here.
        unsafe { bindings::dma_buf_detach(self.buffer.as_raw(), self.raw.as_ptr()) };
    }
}

/// Pinned buffer: the exporter keeps it in place.
///
/// # Invariants
///
/// The attachment is pinned.
struct Pin(Attachment);

impl Pin {
    /// Pins the buffer of `attachment`. Process context; sleeps.
    fn new(attachment: Attachment) -> Result<Self> {
        let raw = attachment.raw.as_ptr();
        // SAFETY: The attachment is valid and has operations, and `locked` holds the lock.
        to_result(attachment.locked(|| unsafe { bindings::dma_buf_pin(raw) }))?;
        // INVARIANT: `dma_buf_pin()` just pinned the attachment. The exporter keeps a pinned buffer
        // in its place.
        Ok(Self(attachment))
    }

    fn buffer(&self) -> &Buffer {
        &self.0.buffer
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let raw = self.0.raw.as_ptr();
        // SAFETY: The attachment is pinned by the type invariant. It is unpinned once, here, with
        // the lock held.
        self.0.locked(|| unsafe { bindings::dma_buf_unpin(raw) });
    }
}

/// Buffer that is mapped into the kernel.
///
/// # Invariants
///
/// `map` maps the whole buffer of `pin`.
struct Mapping {
    map: bindings::iosys_map,
    pin: Pin,
}

impl Mapping {
    /// Maps the buffer of `pin` into the kernel. Process context; sleeps.
    fn new(pin: Pin) -> Result<Self> {
        let mut map = bindings::iosys_map::default();
        let raw = pin.buffer().as_raw();
        // SAFETY: The buffer is valid. `map` is valid for writes during the call.
        to_result(unsafe { bindings::dma_buf_vmap_unlocked(raw, &mut map) })?;
        // INVARIANT: `dma_buf_vmap_unlocked()` just mapped the whole buffer.
        Ok(Self { map, pin })
    }

    fn as_raw(&self) -> *mut bindings::dma_buf {
        self.pin.buffer().as_raw()
    }

    /// Returns the kernel address of the first byte of the buffer.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for I/O memory, and for memory that does not start at a page boundary: a region
    /// is divided into blocks at page boundaries.
    fn address(&self) -> Result<usize> {
        if self.map.is_iomem {
            return Err(unsupported());
        }
        // SAFETY: The mapping is no I/O memory, so `vaddr` is the union member that is set.
        let address = unsafe { self.map.__bindgen_anon_1.vaddr } as usize;
        match address % PAGE_SIZE {
            0 => Ok(address),
            _ => Err(unsupported()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `map` maps the buffer. It is unmapped once, here.
        unsafe { bindings::dma_buf_vunmap_unlocked(self.as_raw(), &mut self.map) };
    }
}

/// Range of a buffer that the CPUs may access.
///
/// # Invariants
///
/// The range is within the buffer, and CPU access in `direction` has begun
/// (`dma_buf_begin_cpu_access()`).
pub(crate) struct DmaBuf {
    mapping: Mapping,
    start: usize,
    len: usize,
    direction: bindings::dma_data_direction,
}

impl DmaBuf {
    /// Pins and maps the buffer that the calling process has open as file `fd`, for `device`.
    /// Begins CPU access to `len` bytes at `start` (in bytes), for reading, and for writing if
    /// `writes`. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// - `EBADF` if the file `fd` does not exist.
    /// - `EINVAL` if the file is no dma-buf, if its exporter cannot map it, or if the range is
    ///   empty or beyond the buffer.
    /// - `EACCES` if `writes`, and the process opened the file for reading only.
    /// - `EOPNOTSUPP` if the buffer is I/O memory, does not start at a page boundary, or cannot be
    ///   pinned.
    /// - `ENOMEM`, and the errors of the exporter.
    pub(crate) fn new(
        device: &IbDevice,
        fd: i32,
        start: u64,
        len: u64,
        writes: bool,
    ) -> Result<Self> {
        let (start, len) = (usize::try_from(start)?, usize::try_from(len)?);
        // SAFETY: The callee checks the file number.
        let buffer = from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?;
        // INVARIANT: `dma_buf_get()` took the reference that this value owns.
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
        // SAFETY: `mapping` holds a reference to the buffer, so the buffer is valid.
        to_result(unsafe { bindings::dma_buf_begin_cpu_access(raw, direction) })?;
        // INVARIANT: The range was checked against the size of the buffer, and CPU access has
        // begun.
        Ok(Self {
            mapping,
            start,
            len,
            direction,
        })
    }

    /// Returns whether CPU access for writing has begun.
    pub(crate) fn is_writable(&self) -> bool {
        self.direction == bindings::dma_data_direction_DMA_BIDIRECTIONAL
    }

    /// Calls `visit` with the address (in the kernel's direct mapping) and the length in bytes of
    /// each run of contiguous pages of the range, in order.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if a page of the range is no readable memory of the direct mapping; `EINTR` if
    /// the process was killed; the errors of `visit`.
    pub(crate) fn for_each_extent(&self, visit: impl FnMut(usize, usize) -> Result) -> Result {
        let base = self.mapping.address()?;
        // SAFETY: By the type invariants the range is within the buffer, which `self.mapping` maps.
        // The range is not empty: `new` refuses empty ranges.
        unsafe { for_each_extent(base.wrapping_add(self.start), self.len, visit) }
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        let buffer = self.mapping.as_raw();
        // SAFETY: The buffer is valid. By the type invariant CPU access has begun; it ends once,
        // here. A destructor cannot return the error.
        let _ = unsafe { bindings::dma_buf_end_cpu_access(buffer, self.direction) };
    }
}

#[kunit_tests(rrxe_dma_buf)]
mod tests {
    use super::*;

    #[test]
    fn exporters_that_do_not_count_pins_are_refused() {
        assert!(!counts_pins(c"vmwgfx"));
        assert!(counts_pins(c"radeon") && counts_pins(c"udmabuf"));
        assert_eq!(counts_pins(c"kernel"), !cfg!(CONFIG_DRM_VMWGFX = "y"));
    }
}
