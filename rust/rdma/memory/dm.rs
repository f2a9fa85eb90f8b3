// SPDX-License-Identifier: GPL-2.0

//! Device memory (DM, `struct ib_dm`): memory that a process allocates on the device. This device
//! is software, so its device memory consists of pages of the kernel. The process maps them at an
//! offset that follows from the handle of the object (`abi::mmap`).

use kernel::{
    error::{from_result, Error},
    ffi::c_int,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
};

use crate::{
    abi::mmap::{self, MmapEntries, MmapEntry, SharedMemory},
    bindings,
    device::of as device_of,
    provider::Provider,
    support::error::unsupported,
    verbs::{object::Object, ucontext},
};

/// Request of a process for device memory (`struct ib_dm_alloc_attr`).
pub struct DmInit<'a> {
    mmap_entries: &'a Arc<MmapEntries>,
    /// Handle of the device memory in the process's context. It determines the mmap offset.
    handle: u32,
    length: u64,
}

impl DmInit<'_> {
    /// Returns the requested length in bytes, from 1 to [`DeviceMemory::MAX`].
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the number of bytes that the allocation occupies: the length rounded up to whole
    /// pages.
    pub fn size(&self) -> u64 {
        self.length.next_multiple_of(PAGE_SIZE as u64)
    }
}

/// Device memory (`struct ib_dm`): zeroed pages, charged to the memory cgroup of the process. The
/// process may map them.
///
/// When this is dropped, the process cannot map the memory any more. Mappings that already exist
/// keep the pages.
pub struct DeviceMemory {
    memory: Arc<SharedMemory>,
    length: u64,
    _mmap_entry: MmapEntry,
}

impl DeviceMemory {
    /// Largest length in bytes of one allocation.
    pub const MAX: u64 = mmap::DM_STRIDE;

    /// Allocates device memory, and reserves its mmap offset.
    ///
    /// # Context
    ///
    /// Process context; sleeps. Dropping the result sleeps, too.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory is short or the offset overflows; `EIO` if the context is going away.
    pub fn new(init: &DmInit<'_>) -> Result<Self> {
        let memory = Arc::new(SharedMemory::new(init.length as usize)?, GFP_KERNEL_ACCOUNT)?;
        let place = mmap::dm_offset(init.handle).ok_or(ENOMEM)?;
        Ok(Self {
            _mmap_entry: MmapEntry::at(init.mmap_entries, memory.clone(), place)?,
            memory,
            length: init.length,
        })
    }

    /// Returns whether `len` bytes at `offset` (in bytes) are within the device memory.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        let room = self.length.checked_sub(offset);
        room.is_some_and(|room| len <= room)
    }

    /// Returns the pages of the device memory.
    pub(crate) fn shared(&self) -> &Arc<SharedMemory> {
        &self.memory
    }
}

type DmObject<P> = Object<P, bindings::ib_dm>;

/// Returns the driver's object of the device memory `memory`.
///
/// # Safety
///
/// `memory` must be device memory of a device of `P`, and ib_core must not destroy it during `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(memory: *mut bindings::ib_dm) -> &'a DeviceMemory {
    // SAFETY: The caller guarantees that `memory` belongs to `P` and lives during `'a` (see `#
    // Safety`).
    P::dm_memory(unsafe { DmObject::<P>::get(memory) })
}

/// Implements `alloc_dm` of `struct ib_device_ops`. Only contexts that were granted device memory
/// may allocate it.
///
/// # Safety
///
/// To be called by ib_core only, with a device and a context of `P`, from the method
/// `UVERBS_METHOD_DM_ALLOC`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    device: *mut bindings::ib_device,
    context: *mut bindings::ib_ucontext,
    attr: *mut bindings::ib_dm_alloc_attr,
    attributes: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_dm {
    let make = || {
        // SAFETY: The caller guarantees that `context` is a context of `P` (see `# Safety`).
        let context = unsafe { ucontext::of::<P>(context) };
        if !context.device_memory {
            return Err(unsupported());
        }
        // SAFETY: ib_core passes valid attributes.
        let attr = unsafe { &*attr };
        if attr.length == 0 || attr.length > DeviceMemory::MAX {
            return Err(EINVAL);
        }
        // Device memory starts at a page boundary. `alignment` is log₂ of bytes.
        if attr.alignment > PAGE_SIZE.trailing_zeros() {
            return Err(EINVAL);
        }
        let id = bindings::uverbs_attrs_alloc_dm_cmd_attr_ids_UVERBS_ATTR_ALLOC_DM_HANDLE;
        // SAFETY: `UVERBS_ATTR_ALLOC_DM_HANDLE` is mandatory: the method is not called without it.
        let handle = unsafe { bindings::uverbs_attr_handle(attributes, id as u16) };
        let init = DmInit {
            mmap_entries: &context.mmap_entries,
            handle,
            length: attr.length,
        };
        let room = DmObject::<P>::alloc()?;
        // SAFETY: The device is alive while ib_core calls its operations.
        let memory = P::alloc_dm(unsafe { device_of::<P>(device) }, &context.driver, &init)?;
        Ok(DmObject::<P>::create(room, memory))
    };
    make().unwrap_or_else(|error: Error| error.to_ptr())
}

/// Implements `dealloc_dm` of `struct ib_device_ops`. No region over this device memory exists any
/// more.
///
/// # Safety
///
/// To be called by ib_core only, with device memory of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(
    memory: *mut bindings::ib_dm,
    _attributes: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: This operation destroys the object, and nothing after this point can fail.
        drop(unsafe { DmObject::<P>::free(memory) });
        Ok(0)
    })
}
