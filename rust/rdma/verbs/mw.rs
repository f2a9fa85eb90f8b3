// SPDX-License-Identifier: GPL-2.0

//! Memory windows: the operations on `struct ib_mw`.

use kernel::{error::from_result, ffi::c_int, prelude::*};

use crate::{
    bindings, device,
    provider::Provider,
    verbs::{object::Object, udata::require_zero_udata},
};

/// The type of a memory window (IBTA 1.x §10.6.7.2; `enum ib_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwKind {
    /// A window that a verb binds. Peers access it through any QP of its protection domain.
    Type1,
    /// A window that a work request binds. Peers access it only through the QP that executed the
    /// work request. The window's owner chooses the low byte of the key.
    Type2B,
}

/// Implements `alloc_mw` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    mw: *mut bindings::ib_mw,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { require_zero_udata(udata) }?;
        // SAFETY: During the creation no other code accesses the object.
        let c_part = unsafe { &mut *mw };
        let kind = match c_part.type_ {
            bindings::ib_mw_type_IB_MW_TYPE_1 => MwKind::Type1,
            bindings::ib_mw_type_IB_MW_TYPE_2 => MwKind::Type2B,
            _ => return Err(EINVAL),
        };
        // SAFETY: ib_core sets the protection domain before it calls, and holds it during the call.
        let pd = unsafe { Object::<P, _>::get(c_part.pd) };
        let inner = P::alloc_mw(pd, kind)?;
        c_part.rkey = P::mw_rkey(&inner).0;
        // SAFETY: This is the creation operation, and the object has the size that the table of
        // operations (`ops::table`) states.
        unsafe { Object::<P, _>::store(mw, inner) };
        Ok(0)
    })
}

/// Implements `dealloc_mw` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a window of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(mw: *mut bindings::ib_mw) -> c_int {
    // SAFETY: This is the destruction operation, which can't fail.
    let inner = unsafe { Object::<P, _>::take(mw) };
    // SAFETY: The device is alive while it has windows.
    P::dealloc_mw(unsafe { device::of::<P>((*mw).device) }, &inner);
    0
}
