// SPDX-License-Identifier: GPL-2.0

//! Operations on address handles.

use core::ptr;

use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    bindings,
    provider::Provider,
    verbs::{av::Av, object::Object, udata::Udata},
};

/// Bytes of `struct rxe_create_ah_resp`: the number, and a reserved word.
const REPLY: usize = 8;

/// Makes the driver's object.
///
/// # Safety
///
/// The arguments must be ib_core's, of a creation.
unsafe fn make<P: Provider>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    user: bool,
) -> Result<Arc<P::Ah>> {
    // SAFETY: ib_core passes valid attributes.
    let attr = unsafe { &*(*init).ah_attr };
    // SAFETY: They are those of this operation.
    let av = unsafe { Av::from_attr(attr) }?;
    // SAFETY: ib_core sets the protection domain before it calls.
    let pd = unsafe { Object::<P, _>::get((*ah).pd) };
    P::create_ah(pd, av, user)
}

/// Implements `create_ah`, for the kernel. Any context.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create<P: Provider>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    _payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: As the caller promises.
        let inner = unsafe { make::<P>(ah, init, false) }?;
        // SAFETY: This is the creation, of the size that the operations table says.
        unsafe { Object::<P, _>::store(ah, inner) };
        Ok(0)
    })
}

/// Implements `create_user_ah`. A library that leaves no room for the number puts the address into
/// its work requests instead.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create_user<P: Provider>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are valid during the call.
        let udata = unsafe { Udata::from_raw(payload) }.ok_or(EINVAL)?;
        udata.refuse_request()?;
        // SAFETY: As the caller promises.
        let inner = unsafe { make::<P>(ah, init, true) }?;
        let mut reply = [0; REPLY];
        if let Some(number) = reply.first_chunk_mut() {
            *number = P::ah_number(&inner).to_ne_bytes();
        }
        if let Err(error) = udata.respond(&reply) {
            P::destroy_ah(&inner);
            return Err(error);
        }
        // SAFETY: As the caller promises.
        unsafe { put_gid(ah) };
        // SAFETY: This is the creation, of the size that the operations table says.
        unsafe { Object::<P, _>::store(ah, inner) };
        Ok(0)
    })
}

/// Gives up the reference to an entry of the GID table that a process's address handle has. While there is a reference the
/// entry keeps its place in the table after its address is gone, and the default GID has one place only.
///
/// # Safety
///
/// `ah` must be one that ib_core makes for a process.
unsafe fn put_gid(ah: *mut bindings::ib_ah) {
    // SAFETY: The caller's promise. ib_core puts the entry when it destroys the handle, and looks at it for nothing else.
    let kept = unsafe { core::mem::replace(&mut (*ah).sgid_attr, ptr::null()) };
    if !kept.is_null() {
        // SAFETY: The reference was the handle's.
        unsafe { bindings::rdma_put_gid_attr(kept) };
    }
}

/// Implements `modify_ah`.
///
/// # Safety
///
/// To be called by ib_core, on an address handle of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    ah: *mut bindings::ib_ah,
    attr: *mut bindings::rdma_ah_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core passes valid attributes.
        let attr = unsafe { &*attr };
        // SAFETY: They are those of this operation.
        let av = unsafe { Av::from_attr(attr) }?;
        // SAFETY: The address handle is alive while ib_core calls its operations.
        P::modify_ah(unsafe { Object::<P, _>::get(ah) }, av);
        Ok(0)
    })
}

/// Implements `query_ah`.
///
/// # Safety
///
/// To be called by ib_core, on an address handle of `P`.
pub(crate) unsafe extern "C" fn query<P: Provider>(
    ah: *mut bindings::ib_ah,
    attr: *mut bindings::rdma_ah_attr,
) -> c_int {
    // SAFETY: The address handle is alive while ib_core calls its operations.
    let av = P::query_ah(unsafe { Object::<P, _>::get(ah) });
    // SAFETY: ib_core passes attributes to fill.
    unsafe { attr.write(av.to_attr()) };
    0
}

/// Implements `destroy_ah`. Any context for the kernel's.
///
/// # Safety
///
/// To be called by ib_core, on an address handle of `P`.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(
    ah: *mut bindings::ib_ah,
    _flags: u32,
) -> c_int {
    // SAFETY: This is the destruction, which can't fail.
    let inner = unsafe { Object::<P, _>::take(ah) };
    P::destroy_ah(&inner);
    0
}
