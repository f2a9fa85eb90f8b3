// SPDX-License-Identifier: GPL-2.0

//! Registration: what memory there is to be registered, and the operations that ask for it.

use core::ptr::null_mut;

use kernel::{error::Error, ffi::c_int, prelude::*, sync::Arc};

use super::{Access, MrRoom};
use crate::{
    bindings,
    device::IbDevice,
    memory::{
        dm::{self, DeviceMemory},
        odp::{NewThreads, OnDemand, Owners},
        umem::UserMemory,
        RegionMemory,
    },
    provider::Provider,
    support::error::unsupported,
    verbs::{object::Object, udata},
};

/// A range that is to be registered.
pub struct UserRange<'a> {
    device: &'a IbDevice,
    origin: Origin<'a>,
    /// An address of the process; of anything else, bytes from its beginning.
    start: u64,
    length: u64,
    /// The address by which work requests and peers are to name its first byte, unless they count
    /// from zero.
    iova: u64,
}

/// Whose memory a range is of.
enum Origin<'a> {
    /// The calling process's.
    Process,
    /// A buffer's that a driver exports and the process has as this file.
    Exported(c_int),
    /// The device's own.
    Device(&'a DeviceMemory),
}

impl<'a> UserRange<'a> {
    /// The range of `origin`.
    ///
    /// # Safety
    ///
    /// `device` must be valid during `'a`, and made by [`crate::device::Unregistered::new`].
    unsafe fn new(
        device: *mut bindings::ib_device,
        origin: Origin<'a>,
        start: u64,
        length: u64,
        iova: u64,
    ) -> Self {
        Self {
            // SAFETY: As the caller promises.
            device: unsafe { IbDevice::from_raw(device) },
            origin,
            start,
            length,
            iova,
        }
    }

    /// A range of the calling process's memory.
    ///
    /// # Safety
    ///
    /// `device` must be valid during `'a`, and made by [`crate::device::Unregistered::new`].
    pub(super) unsafe fn of_process(
        device: *mut bindings::ib_device,
        start: u64,
        length: u64,
        iova: u64,
    ) -> Self {
        // SAFETY: As the caller promises.
        unsafe { Self::new(device, Origin::Process, start, length, iova) }
    }

    /// The address by which the first byte of a region with these rights is named.
    pub fn iova(&self, access: Access) -> u64 {
        if access.is_zero_based() {
            0
        } else {
            self.iova
        }
    }

    /// Pins it, or doesn't, as the rights say; then its process is or becomes one of `owners`, with the share
    /// that `threads` gives. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for device memory on demand, and those of [`UserMemory::pin`], [`UserMemory::export`],
    /// [`UserMemory::of_device`] and [`OnDemand::new`].
    pub fn take(
        &self,
        access: Access,
        owners: &Arc<Owners>,
        threads: NewThreads<'_>,
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
            Origin::Exported(fd) => UserMemory::export(device, fd, start, length, access)?,
            Origin::Device(_) if access.is_on_demand() => return Err(EINVAL),
            Origin::Device(memory) => UserMemory::of_device(device, memory, start, length)?,
        };
        Ok(RegionMemory::Pinned(pinned))
    }
}

/// Implements `reg_user_mr`.
///
/// # Safety
///
/// To be called by ib_core, on a protection domain of `P`.
pub(crate) unsafe extern "C" fn user<P: Provider>(
    pd: *mut bindings::ib_pd,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    hints: *mut bindings::ib_dmah,
    payload: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    // SAFETY: ib_core's buffers are null or valid during the call.
    if let Err(error) = unsafe { udata::no_payload(payload) } {
        return error.to_ptr();
    }
    // SAFETY: `pd` is valid during the call, and so is its device, which `Unregistered::new` made: this is an operation
    // of this driver.
    let range = unsafe { UserRange::of_process((*pd).device, start, length, iova) };
    // SAFETY: As the caller promises.
    unsafe { register::<P>(pd, &range, access, hints) }
}

/// Implements `reg_user_mr_dmabuf`.
///
/// # Safety
///
/// To be called by ib_core, on a protection domain of `P`.
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
    // SAFETY: `pd` is valid during the call, and so is its device, which `Unregistered::new` made: this is an operation
    // of this driver.
    let range = unsafe { UserRange::new((*pd).device, origin, offset, length, iova) };
    // SAFETY: As the caller promises.
    unsafe { register::<P>(pd, &range, access, hints) }
}

/// Implements `reg_dm_mr`.
///
/// # Safety
///
/// To be called by ib_core, on a protection domain and device memory of `P`.
pub(crate) unsafe extern "C" fn device<P: Provider>(
    pd: *mut bindings::ib_pd,
    memory: *mut bindings::ib_dm,
    attr: *mut bindings::ib_dm_mr_attr,
    _attributes: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_mr {
    // SAFETY: ib_core passes valid attributes.
    let attr = unsafe { &*attr };
    // SAFETY: As the caller promises.
    let origin = Origin::Device(unsafe { dm::of::<P>(memory) });
    // SAFETY: `pd` is valid during the call, and so is its device, which `Unregistered::new` made: this is an operation
    // of this driver.
    let range = unsafe { UserRange::new((*pd).device, origin, attr.offset, attr.length, 0) };
    let access = attr.access_flags as c_int;
    // SAFETY: As the caller promises.
    unsafe { register::<P>(pd, &range, access, null_mut()) }
}

/// Registers `range`; there are no hints that could be followed. Returns the region, or the errno as a pointer.
///
/// # Safety
///
/// `pd` must be a protection domain of `P` that exists for ib_core during the call.
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
        let room = MrRoom::<P>::new()?;
        // SAFETY: As the caller promises.
        let pd = unsafe { Object::<P, _>::get(pd) };
        let mr = P::reg_user_mr(pd, range, access)?;
        room.expose(mr, range.iova(access), range.length)
    };
    register().unwrap_or_else(|error: Error| error.to_ptr())
}
