// SPDX-License-Identifier: GPL-2.0

//! XRC domains: the operations on `struct ib_xrcd`.

use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    bindings,
    device::of as device_of,
    provider::Provider,
    verbs::{
        object::Object,
        udata::{require_no_udata, UserCall},
    },
};

type XrcdObject<P> = Object<P, bindings::ib_xrcd>;

/// Number of bytes that ib_core must allocate for an XRC domain of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    XrcdObject::<P>::SIZE
}

/// Returns the driver's domain behind `base`, or `None` if `base` is null.
///
/// # Safety
///
/// `base` must be null or an XRC domain of a device of `P`, created and not yet destroyed, for all
/// of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(base: *mut bindings::ib_xrcd) -> Option<&'a Arc<P::Xrcd>> {
    if base.is_null() {
        return None;
    }
    // SAFETY: `base` isn't null. The caller guarantees that it is a domain of `P`, created and not
    // yet destroyed.
    Some(unsafe { XrcdObject::<P>::get(base) })
}

/// Implements `alloc_xrcd` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    base: *mut bindings::ib_xrcd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // uverbs holds the lock of all XRC domains of the device during this call
        // (`ib_uverbs_open_xrcd()`, uverbs_cmd.c). It takes the same lock when a process ends. So
        // the udata is refused without a read of the process's memory, which may sleep for any
        // time.
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { require_no_udata(udata) }?;
        // SAFETY: ib_core sets the device before it calls.
        let device = unsafe { device_of::<P>((*base).device) };
        // SAFETY: ib_core sets the inode before it calls, to null for a domain that is not shared.
        let shared = unsafe { !(*base).inode.is_null() };
        // Only processes create XRC domains.
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::from_raw(udata) }.ok_or(EINVAL)?;
        let inner = P::alloc_xrcd(device, call.context(), shared)?;
        // SAFETY: This is the creation operation, and the object has the size that the table of
        // operations (`ops::table`) states.
        unsafe { XrcdObject::<P>::store(base, inner) };
        Ok(0)
    })
}

/// Implements `dealloc_xrcd` of `struct ib_device_ops`. The domain is no longer in use.
///
/// # Safety
///
/// Must be called only by ib_core, on an XRC domain of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(
    base: *mut bindings::ib_xrcd,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: This is the destruction operation, past the point where it can fail.
        drop(unsafe { XrcdObject::<P>::take(base) });
        Ok(0)
    })
}
