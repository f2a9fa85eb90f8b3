// SPDX-License-Identifier: GPL-2.0

//! Device memory: what a process has of the device's own. A software device's is pages of the kernel, which the
//! process maps at a place that follows from the handle (`include/uapi/rdma/rrxe-abi.h`).

use kernel::{
    error::{from_result, Error},
    ffi::c_int,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
};

use crate::{
    abi::mmap::{Mapping, Mappings, SharedMemory},
    bindings,
    device::of as device_of,
    provider::Provider,
    support::error::unsupported,
    verbs::{object::Object, ucontext},
};

/// The device memory that a process asks for.
pub struct DmInit<'a> {
    mappings: &'a Arc<Mappings>,
    /// Names it in the process's context, and tells where it is mapped.
    handle: u32,
    length: u64,
}

impl DmInit<'_> {
    /// How much is asked for, in bytes: from 1 to [`DeviceMemory::MAX`].
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of memory that this takes: whole pages.
    pub fn size(&self) -> u64 {
        self.length.next_multiple_of(PAGE_SIZE as u64)
    }
}

/// Device memory: zeroed, charged to its process's memory cgroup, and mapped by the process if it wants to.
///
/// It can't be mapped any more when this is dropped; regions and mappings that were made of it keep the pages.
pub struct DeviceMemory {
    memory: Arc<SharedMemory>,
    length: u64,
    _mapping: Mapping,
}

impl DeviceMemory {
    /// The most bytes in one piece.
    pub const MAX: u64 = bindings::RRXE_DM_STRIDE as u64;

    /// Allocates it.
    ///
    /// # Context
    ///
    /// Process; sleeps, and so does dropping it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the context is going away.
    pub fn new(init: &DmInit<'_>) -> Result<Self> {
        let memory = Arc::new(SharedMemory::new(init.length as usize)?, GFP_KERNEL_ACCOUNT)?;
        let place = u64::from(init.handle)
            .checked_mul(Self::MAX)
            .and_then(|place| place.checked_add(bindings::RRXE_DM_OFFSET))
            .ok_or(ENOMEM)?;
        Ok(Self {
            _mapping: Mapping::at(init.mappings, memory.clone(), place)?,
            memory,
            length: init.length,
        })
    }

    /// Whether `len` bytes at `offset` are within it.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        let room = self.length.checked_sub(offset);
        room.is_some_and(|room| len <= room)
    }

    /// Its pages.
    pub(crate) fn shared(&self) -> &Arc<SharedMemory> {
        &self.memory
    }
}

type DmObject<P> = Object<P, bindings::ib_dm>;

/// The device memory behind ib_core's.
///
/// # Safety
///
/// `memory` must be device memory of `P` that exists for ib_core during all of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(memory: *mut bindings::ib_dm) -> &'a DeviceMemory {
    // SAFETY: As the caller promises.
    P::dm_memory(unsafe { DmObject::<P>::get(memory) })
}

/// Implements `alloc_dm`, for contexts that were granted it.
///
/// # Safety
///
/// To be called by ib_core, on a device and a context of `P`, by the method that makes device memory.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    device: *mut bindings::ib_device,
    context: *mut bindings::ib_ucontext,
    attr: *mut bindings::ib_dm_alloc_attr,
    attributes: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_dm {
    let make = || {
        // SAFETY: As the caller promises.
        let context = unsafe { ucontext::of::<P>(context) };
        if !context.device_memory {
            return Err(unsupported());
        }
        // SAFETY: ib_core passes valid attributes.
        let attr = unsafe { &*attr };
        if attr.length == 0 || attr.length > DeviceMemory::MAX {
            return Err(EINVAL);
        }
        // It begins with a page. log₂ is asked for.
        if attr.alignment > PAGE_SIZE.trailing_zeros() {
            return Err(EINVAL);
        }
        let id = bindings::uverbs_attrs_alloc_dm_cmd_attr_ids_UVERBS_ATTR_ALLOC_DM_HANDLE;
        // SAFETY: The method can't be called without this attribute.
        let handle = unsafe { bindings::uverbs_attr_handle(attributes, id as u16) };
        let init = DmInit {
            mappings: &context.mappings,
            handle,
            length: attr.length,
        };
        let room = DmObject::<P>::room()?;
        // SAFETY: The device is alive while ib_core calls its operations.
        let memory = P::alloc_dm(unsafe { device_of::<P>(device) }, &context.driver, &init)?;
        Ok(DmObject::<P>::make(room, memory))
    };
    make().unwrap_or_else(|error: Error| error.to_ptr())
}

/// Implements `dealloc_dm`. No region is registered of it any more.
///
/// # Safety
///
/// To be called by ib_core, on device memory of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(
    memory: *mut bindings::ib_dm,
    _attributes: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: This is the destruction, past the point where it can fail.
        drop(unsafe { DmObject::<P>::unmake(memory) });
        Ok(0)
    })
}
