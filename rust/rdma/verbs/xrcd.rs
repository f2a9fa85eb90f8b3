// SPDX-License-Identifier: GPL-2.0

//! XRC domains: the operations on `ib_xrcd`.

use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    bindings,
    device::of as device_of,
    provider::Provider,
    verbs::{
        object::Object,
        udata::{refuse_payload, UserCall},
    },
};

type XrcdObject<P> = Object<P, bindings::ib_xrcd>;

/// Bytes that ib_core is to allocate for an XRC domain of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    XrcdObject::<P>::SIZE
}

/// The driver's domain behind `base`, if there is one.
///
/// # Safety
///
/// `base` must be null or an XRC domain of `P` that exists for ib_core during `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(base: *mut bindings::ib_xrcd) -> Option<&'a Arc<P::Xrcd>> {
    if base.is_null() {
        return None;
    }
    // SAFETY: The caller's promise.
    Some(unsafe { XrcdObject::<P>::get(base) })
}

/// Implements `alloc_xrcd`.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    base: *mut bindings::ib_xrcd,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // uverbs holds the lock of all XRC domains of the device (`ib_uverbs_open_xrcd()`, uverbs_cmd.c), and takes it when a
        // process ends, too.
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { refuse_payload(payload) }?;
        // SAFETY: ib_core sets the device before it calls.
        let device = unsafe { device_of::<P>((*base).device) };
        // SAFETY: ib_core sets it before it calls.
        let shared = unsafe { !(*base).inode.is_null() };
        // Only processes make XRC domains.
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::from_raw(payload) }.ok_or(EINVAL)?;
        let inner = P::alloc_xrcd(device, call.context(), shared)?;
        // SAFETY: This is the creation, of the size that the operations table says.
        unsafe { XrcdObject::<P>::store(base, inner) };
        Ok(0)
    })
}

/// Implements `dealloc_xrcd`. Nothing uses the domain any more.
///
/// # Safety
///
/// To be called by ib_core, on an XRC domain of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(
    base: *mut bindings::ib_xrcd,
    _payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: This is the destruction, past the point where it can fail.
        drop(unsafe { XrcdObject::<P>::take(base) });
        Ok(0)
    })
}
