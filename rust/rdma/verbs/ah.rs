// SPDX-License-Identifier: GPL-2.0

//! Operations on address handles (`struct ib_ah`).

use core::ptr;

use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    abi::replies::AH_REPLY,
    bindings,
    provider::Provider,
    verbs::{av::Av, object::Object, udata::Udata},
};

/// Creates the driver's address handle for `ah`. `user` says whether a process creates it.
///
/// # Safety
///
/// The arguments must be those that ib_core passes to the creation operation, on a device of `P`.
unsafe fn make<P: Provider>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    user: bool,
) -> Result<Arc<P::Ah>> {
    // SAFETY: ib_core passes valid attributes.
    let attr = unsafe { &*(*init).ah_attr };
    // SAFETY: The attributes are those of this operation, and the call is running.
    let av = unsafe { Av::from_attr(attr) }?;
    // SAFETY: ib_core sets the protection domain before it calls.
    let pd = unsafe { Object::<P, _>::get((*ah).pd) };
    P::create_ah(pd, av, user)
}

/// Implements `create_ah` of `struct ib_device_ops`, for in-kernel consumers. Any context.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create<P: Provider>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: The caller guarantees that these are the arguments of a creation on a device of
        // `P`.
        let inner = unsafe { make::<P>(ah, init, false) }?;
        // SAFETY: This is the creation operation, and the object has the size that the table of
        // operations (`ops::table`) states.
        unsafe { Object::<P, _>::store(ah, inner) };
        Ok(0)
    })
}

/// Implements `create_user_ah` of `struct ib_device_ops`. The response is the number of the handle.
/// A library whose response buffer has no room for the number puts the address vector into its work
/// requests instead.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create_user<P: Provider>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are valid during the call.
        let udata = unsafe { Udata::from_raw(udata) }.ok_or(EINVAL)?;
        udata.require_zero_request()?;
        // SAFETY: The caller guarantees that these are the arguments of a creation on a device of
        // `P`.
        let inner = unsafe { make::<P>(ah, init, true) }?;
        let mut reply = [0; AH_REPLY];
        if let Some(number) = reply.first_chunk_mut() {
            *number = P::ah_number(&inner).to_ne_bytes();
        }
        if let Err(error) = udata.respond(&reply) {
            P::destroy_ah(&inner);
            return Err(error);
        }
        // SAFETY: The caller guarantees that a process creates `ah`.
        unsafe { put_gid(ah) };
        // SAFETY: This is the creation operation, and the object has the size that the table of
        // operations (`ops::table`) states.
        unsafe { Object::<P, _>::store(ah, inner) };
        Ok(0)
    })
}

/// Drops the reference of a process's address handle to an entry of the GID table. As long as the
/// handle has the reference, the entry occupies its place in the table even after its address is
/// gone. A default GID, which has one place only, could not be added again meanwhile.
///
/// # Safety
///
/// `ah` must be an address handle that ib_core is creating for a process.
unsafe fn put_gid(ah: *mut bindings::ib_ah) {
    // SAFETY: The caller guarantees that `ah` is valid and is being created. ib_core drops the
    // reference in this field when the creation fails or the handle is destroyed, unless the field
    // is null. `rdma_modify_ah()` replaces the reference, but uverbs has no command that calls this
    // function.
    let kept = unsafe { core::mem::replace(&mut (*ah).sgid_attr, ptr::null()) };
    if !kept.is_null() {
        // SAFETY: `kept` is the reference of the handle, which the handle no longer has.
        unsafe { bindings::rdma_put_gid_attr(kept) };
    }
}

/// Implements `modify_ah` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on an address handle of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    ah: *mut bindings::ib_ah,
    attr: *mut bindings::rdma_ah_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core passes valid attributes.
        let attr = unsafe { &*attr };
        // SAFETY: The attributes are those of this operation, and the call is running.
        let av = unsafe { Av::from_attr(attr) }?;
        // SAFETY: The address handle is alive while ib_core calls its operations.
        P::modify_ah(unsafe { Object::<P, _>::get(ah) }, av);
        Ok(0)
    })
}

/// Implements `query_ah` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on an address handle of `P`.
pub(crate) unsafe extern "C" fn query<P: Provider>(
    ah: *mut bindings::ib_ah,
    attr: *mut bindings::rdma_ah_attr,
) -> c_int {
    // SAFETY: The address handle is alive while ib_core calls its operations.
    let av = P::query_ah(unsafe { Object::<P, _>::get(ah) });
    // SAFETY: ib_core passes valid memory for the attributes.
    unsafe { attr.write(av.to_attr()) };
    0
}

/// Implements `destroy_ah` of `struct ib_device_ops`. Any context for handles of in-kernel
/// consumers.
///
/// # Safety
///
/// Must be called only by ib_core, on an address handle of `P`.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(
    ah: *mut bindings::ib_ah,
    _flags: u32,
) -> c_int {
    // SAFETY: This is the destruction operation, which can't fail.
    let inner = unsafe { Object::<P, _>::take(ah) };
    P::destroy_ah(&inner);
    0
}
