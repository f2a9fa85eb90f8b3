// SPDX-License-Identifier: GPL-2.0

//! User contexts: one for each time that a process opens a device.
//!
//! A context holds what the process may map: [`Mappings`].

use core::ptr::NonNull;
use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    bindings,
    mmap::Mappings,
    object::Object,
    udata, //
};

type UserContext = Object<bindings::ib_ucontext, Mappings>;

/// What to ask ib_core to allocate.
pub(crate) const SIZE: usize = UserContext::SIZE;

/// The mappings of a process's context.
///
/// # Safety
///
/// `context` must be a context that exists for ib_core during all of `'a`.
pub(crate) unsafe fn mappings<'a>(context: *mut bindings::ib_ucontext) -> &'a Arc<Mappings> {
    // SAFETY: As the caller promises.
    unsafe { UserContext::get(context) }
}

/// Implements `alloc_ucontext`.
///
/// # Safety
///
/// To be called by ib_core.
pub(crate) unsafe extern "C" fn alloc(
    context: *mut bindings::ib_ucontext,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are valid during the call.
        unsafe { udata::no_payload(payload) }?;
        let valid = NonNull::new(context).ok_or(EINVAL)?;
        // SAFETY: `dealloc` closes the mappings before the context is freed.
        let mappings = unsafe { Mappings::new(valid) }?;
        // SAFETY: This is the creation, of the size that the operations table says.
        unsafe { UserContext::store(context, mappings) };
        Ok(0)
    })
}

/// Implements `query_ucontext`: what a process learns that was given another's context. Of this driver
/// there is nothing to be told.
///
/// # Safety
///
/// To be called by ib_core.
pub(crate) unsafe extern "C" fn query(
    _context: *mut bindings::ib_ucontext,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    0
}

/// Implements `dealloc_ucontext`.
///
/// # Safety
///
/// To be called by ib_core.
pub(crate) unsafe extern "C" fn dealloc(context: *mut bindings::ib_ucontext) {
    // SAFETY: This is the destruction, which can't fail.
    unsafe { UserContext::take(context) }.close();
}

/// Implements `disassociate_ucontext`: that it exists lets ib_core take a device away from running
/// processes. Nothing is to be done: ib_core destroys their objects itself, and mapped rings are
/// ordinary memory, which stays theirs.
///
/// # Safety
///
/// To be called by ib_core.
pub(crate) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}
