// SPDX-License-Identifier: GPL-2.0

//! User contexts (`struct ib_ucontext`): one for each open of a device by a process.
//!
//! A context contains [`MmapEntries`], the memory that the process may map, and the driver's own
//! context. A provider library may negotiate features when it creates a context (`abi::features`).

use core::ptr::NonNull;
use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    abi::{
        doorbell::PageReply,
        features::{self, Arming, RequestedFeatures},
        mmap::MmapEntries,
    },
    bindings,
    device::of as device_of,
    provider::Provider,
    verbs::{object::Object, udata::Udata},
};

/// Arguments of a context's creation.
pub struct ContextInit<'a> {
    /// Memory that the process may map.
    pub mmap_entries: &'a Arc<MmapEntries>,
    /// Features that the process's library requests.
    pub requested: RequestedFeatures,
}

/// Results of a context's creation.
pub struct ContextCreated<C> {
    /// The driver's context.
    pub context: Arc<C>,
    /// Location of the process's doorbell page, if it was granted one.
    pub doorbells: Option<PageReply>,
    /// Granted ways to arm CQs without a system call.
    pub arming: Arming,
}

/// Driver's object behind a `struct ib_ucontext`.
pub(crate) struct UserContext<C> {
    /// Memory that the process may map.
    pub(crate) mmap_entries: Arc<MmapEntries>,
    /// The driver's context.
    pub(crate) driver: Arc<C>,
    /// Whether the process's library can map device memory.
    pub(crate) device_memory: bool,
}

type ContextObject<P> = Object<P, bindings::ib_ucontext>;

/// Number of bytes that ib_core must allocate for a context of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    ContextObject::<P>::SIZE
}

/// Returns the object behind a process's context.
///
/// # Safety
///
/// `context` must be a context of a device of `P`, created and not yet destroyed, for all of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(
    context: *mut bindings::ib_ucontext,
) -> &'a UserContext<P::Context> {
    // SAFETY: The caller guarantees that `context` is a context of `P`, created and not yet
    // destroyed.
    unsafe { ContextObject::<P>::get(context) }
}

/// Implements `alloc_ucontext` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    context: *mut bindings::ib_ucontext,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are valid during the call.
        let udata = unsafe { Udata::from_raw(udata) }.ok_or(EINVAL)?;
        let requested = features::requested(&udata)?;
        let valid = NonNull::new(context).ok_or(EINVAL)?;
        // SAFETY: `context` is valid until this creation has failed or `dealloc` has returned. Both
        // call `MmapEntries::close` before.
        let mmap_entries = unsafe { MmapEntries::new(valid) }?;
        let device_memory = requested.is_some_and(|requested| requested.device_memory);
        let init = ContextInit {
            mmap_entries: &mmap_entries,
            requested: requested.unwrap_or_default(),
        };
        // SAFETY: ib_core sets the device before it calls.
        let device = unsafe { device_of::<P>((*context).device) };
        let driver = make::<P>(device, init, requested.as_ref(), &udata)
            .inspect_err(|_| mmap_entries.close())?;
        let made = Arc::new(
            UserContext {
                mmap_entries: mmap_entries.clone(),
                driver: driver.clone(),
                device_memory,
            },
            GFP_KERNEL_ACCOUNT,
        )
        .inspect_err(|_| {
            P::close_context(&driver);
            mmap_entries.close();
        })?;
        // SAFETY: This is the creation operation, and the object has the size that the table of
        // operations (`ops::table`) states.
        unsafe { ContextObject::<P>::store(context, made) };
        Ok(0)
    })
}

/// Creates the driver's context. Sends the granted features to a library that negotiates
/// (`requested`), and an empty response to any other. Closes the context if that fails.
fn make<P: Provider>(
    device: &Arc<P::Device>,
    init: ContextInit<'_>,
    requested: Option<&RequestedFeatures>,
    udata: &Udata<'_>,
) -> Result<Arc<P::Context>> {
    let created = P::alloc_context(device, init)?;
    let told = match requested {
        Some(requested) => {
            let (page, arming) = (created.doorbells, created.arming);
            udata.respond(&features::granted(page, arming, requested))
        }
        None => udata.respond(&[]),
    };
    if let Err(error) = told {
        P::close_context(&created.context);
        return Err(error);
    }
    Ok(created.context)
}

/// Implements `query_ucontext` of `struct ib_device_ops`. It reports driver data to a process that
/// received the context of another process. This driver has no such data.
///
/// # Safety
///
/// Must be called only by ib_core.
pub(crate) unsafe extern "C" fn query(
    _context: *mut bindings::ib_ucontext,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    0
}

/// Implements `dealloc_ucontext` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(context: *mut bindings::ib_ucontext) {
    // SAFETY: This is the destruction operation, which can't fail.
    let context = unsafe { ContextObject::<P>::take(context) };
    P::close_context(&context.driver);
    context.mmap_entries.close();
}

/// Implements `disassociate_ucontext` of `struct ib_device_ops`. Without this operation ib_core
/// could not take a device away from running processes. The operation has nothing to do: ib_core
/// destroys their objects itself, and mapped rings are ordinary memory, which the processes keep.
///
/// # Safety
///
/// Must be called only by ib_core.
pub(crate) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}
