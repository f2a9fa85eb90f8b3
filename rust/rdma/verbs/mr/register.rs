// SPDX-License-Identifier: GPL-2.0

//! Registration of memory: the ranges that can be registered, and the operations that register
//! them.

use core::ptr::null_mut;

use kernel::{error::Error, ffi::c_int, prelude::*, sync::Arc};

use super::{Access, MrMemory};
use crate::{
    bindings,
    device::IbDevice,
    memory::{
        dm::{self, DeviceMemory},
        odp::{NewPermit, OnDemand, Owners},
        umem::UserMemory,
        RegionMemory,
    },
    provider::Provider,
    support::error::unsupported,
    verbs::{object::Object, udata},
};

/// A range of memory to be registered.
pub struct UserRange<'a> {
    device: &'a IbDevice,
    origin: Origin<'a>,
    /// Start of the range: a virtual address of the process, or an offset in bytes for other
    /// memory.
    start: u64,
    length: u64,
    /// Address by which work requests and peers name the first byte, unless the region is
    /// zero-based.
    iova: u64,
}

/// Origin of a range's memory.
enum Origin<'a> {
    /// Memory of the calling process.
    Process,
    /// DMA buffer that a driver exports. The process has it as this file descriptor.
    Exported(c_int),
    /// Device memory of this device.
    Device(&'a DeviceMemory),
}

impl<'a> UserRange<'a> {
    /// Creates a range of memory of `origin`.
    ///
    /// # Safety
    ///
    /// [`crate::device::Unregistered::new`] must have created `device`, which must be valid during
    /// `'a`.
    unsafe fn new(
        device: *mut bindings::ib_device,
        origin: Origin<'a>,
        start: u64,
        length: u64,
        iova: u64,
    ) -> Self {
        Self {
            // SAFETY: The caller guarantees that `Unregistered::new` created `device`, and that it
            // is valid for `'a`.
            device: unsafe { IbDevice::from_raw(device) },
            origin,
            start,
            length,
            iova,
        }
    }

    /// Creates a range of the calling process's memory.
    ///
    /// # Safety
    ///
    /// [`crate::device::Unregistered::new`] must have created `device`, which must be valid during
    /// `'a`.
    pub(super) unsafe fn of_process(
        device: *mut bindings::ib_device,
        start: u64,
        length: u64,
        iova: u64,
    ) -> Self {
        // SAFETY: The caller guarantees that `Unregistered::new` created `device`, and that it is
        // valid for `'a`.
        unsafe { Self::new(device, Origin::Process, start, length, iova) }
    }

    /// Returns the address of the first byte of a region with the rights `access`.
    pub fn iova(&self, access: Access) -> u64 {
        if access.is_zero_based() {
            0
        } else {
            self.iova
        }
    }

    /// Pins the memory. If `access` says so, prepares a process's memory for on-demand paging
    /// instead. For on-demand paging the process gets an entry in `owners`, with a thread permit
    /// that `threads` creates, unless it already has one. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for device memory on demand, and those of [`UserMemory::pin`],
    /// [`UserMemory::import_dma_buf`], [`UserMemory::of_device`] and [`OnDemand::new`].
    pub fn pin(
        &self,
        access: Access,
        owners: &Arc<Owners>,
        threads: NewPermit<'_>,
    ) -> Result<RegionMemory> {
        let Self {
            device,
            start,
            length,
            ..
        } = *self;
        let pinned = match self.origin {
            Origin::Process if access.is_on_demand() => {
                let memory = OnDemand::new(owners, threads, device, start, length, access)?;
                return Ok(RegionMemory::OnDemand(memory));
            }
            Origin::Process => UserMemory::pin(device, start, length, access)?,
            Origin::Exported(fd) => UserMemory::import_dma_buf(device, fd, start, length, access)?,
            Origin::Device(_) if access.is_on_demand() => return Err(EINVAL),
            Origin::Device(memory) => UserMemory::of_device(device, memory, start, length)?,
        };
        Ok(RegionMemory::Pinned(pinned))
    }
}

/// Implements `reg_user_mr` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a protection domain of `P`.
pub(crate) unsafe extern "C" fn user<P: Provider>(
    pd: *mut bindings::ib_pd,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    hints: *mut bindings::ib_dmah,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    // SAFETY: ib_core's buffers are null or valid during the call.
    if let Err(error) = unsafe { udata::require_zero_udata(udata) } {
        return error.to_ptr();
    }
    // SAFETY: `pd` is valid during the call, and so is its device. `Unregistered::new` created the
    // device, because this is an operation of this driver.
    let range = unsafe { UserRange::of_process((*pd).device, start, length, iova) };
    // SAFETY: The caller guarantees that `pd` is a protection domain of `P`, which exists during
    // the call.
    unsafe { register::<P>(pd, &range, access, hints) }
}

/// Implements `reg_user_mr_dmabuf` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a protection domain of `P`.
pub(crate) unsafe extern "C" fn exported<P: Provider>(
    pd: *mut bindings::ib_pd,
    offset: u64,
    length: u64,
    iova: u64,
    fd: c_int,
    access: c_int,
    hints: *mut bindings::ib_dmah,
    _attributes: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_mr {
    let origin = Origin::Exported(fd);
    // SAFETY: `pd` is valid during the call, and so is its device. `Unregistered::new` created the
    // device, because this is an operation of this driver.
    let range = unsafe { UserRange::new((*pd).device, origin, offset, length, iova) };
    // SAFETY: The caller guarantees that `pd` is a protection domain of `P`, which exists during
    // the call.
    unsafe { register::<P>(pd, &range, access, hints) }
}

/// Implements `reg_dm_mr` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a protection domain and device memory of `P`.
pub(crate) unsafe extern "C" fn device<P: Provider>(
    pd: *mut bindings::ib_pd,
    memory: *mut bindings::ib_dm,
    attr: *mut bindings::ib_dm_mr_attr,
    _attributes: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_mr {
    // SAFETY: ib_core passes valid attributes.
    let attr = unsafe { &*attr };
    // SAFETY: The caller guarantees that `memory` is device memory of `P`, which exists during the
    // call.
    let origin = Origin::Device(unsafe { dm::of::<P>(memory) });
    // SAFETY: `pd` is valid during the call, and so is its device. `Unregistered::new` created the
    // device, because this is an operation of this driver.
    let range = unsafe { UserRange::new((*pd).device, origin, attr.offset, attr.length, 0) };
    let access = attr.access_flags as c_int;
    // SAFETY: The caller guarantees that `pd` is a protection domain of `P`, which exists during
    // the call.
    unsafe { register::<P>(pd, &range, access, null_mut()) }
}

/// Registers `range`. TLP processing hints (`hints`) are not supported and must be null. Returns
/// the region, or the errno as a pointer.
///
/// # Safety
///
/// `pd` must be a protection domain of a device of `P`, created and not yet destroyed, during the
/// call.
unsafe fn register<P: Provider>(
    pd: *mut bindings::ib_pd,
    range: &UserRange<'_>,
    access: c_int,
    hints: *mut bindings::ib_dmah,
) -> *mut bindings::ib_mr {
    let register = || {
        if !hints.is_null() {
            return Err(unsupported());
        }
        let access = Access::from_raw(access);
        if !access.is_consistent() {
            return Err(EINVAL);
        }
        let object = MrMemory::<P>::new()?;
        // SAFETY: The caller guarantees that `pd` is a protection domain of `P`, created and not
        // yet destroyed.
        let pd = unsafe { Object::<P, _>::get(pd) };
        let mr = P::reg_user_mr(pd, range, access)?;
        object.create_ib_mr(mr, range.iova(access), range.length)
    };
    register().unwrap_or_else(|error: Error| error.to_ptr())
}
