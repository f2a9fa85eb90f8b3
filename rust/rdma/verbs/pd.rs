// SPDX-License-Identifier: GPL-2.0

//! Operations on protection domains (`struct ib_pd`).

use kernel::{error::from_result, ffi::c_int};

use crate::{
    bindings,
    device::of,
    provider::Provider,
    verbs::{
        object::Object,
        udata::{require_zero_udata, UserCall},
    },
};

/// Implements `alloc_pd` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { require_zero_udata(udata) }?;
        // SAFETY: ib_core sets the device before it calls.
        let device = unsafe { of::<P>((*pd).device) };
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::of_creation(udata) }?;
        let inner = P::alloc_pd(device, call.as_ref().map(UserCall::context))?;
        // SAFETY: This is the creation operation, and the object has the size that the table of
        // operations (`ops::table`) states.
        unsafe { Object::<P, _>::store(pd, inner) };
        Ok(0)
    })
}

/// Implements `dealloc_pd` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a protection domain of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(
    pd: *mut bindings::ib_pd,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: This is the destruction operation, past the point where it can fail.
        drop(unsafe { Object::<P, _>::take(pd) });
        Ok(0)
    })
}
