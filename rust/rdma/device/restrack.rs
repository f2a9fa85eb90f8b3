// SPDX-License-Identifier: GPL-2.0

//! Driver attributes of `rdma resource show -d`: the part of an object's state that ib_core doesn't
//! know itself.
//!
//! ib_core keeps the object alive while it calls a function of this module, in process context.

use core::marker::PhantomData;

use kernel::{error::to_result, ffi::c_int, prelude::*};

use crate::{
    bindings,
    provider::Provider,
    verbs::qp,
    verbs::{cq, object::Object, srq},
};

/// A netlink message to which named values are added. `rdma` prints the prefix `drv_` before each
/// name.
///
/// # Invariants
///
/// `message` is valid for `'a`, and has an open nest of driver attributes
/// (`RDMA_NLDEV_ATTR_DRIVER`).
pub struct DriverAttrs<'a> {
    message: *mut bindings::sk_buff,
    _call: PhantomData<&'a ()>,
}

impl DriverAttrs<'_> {
    /// Adds an attribute with a number.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the message is full. The caller must return this error.
    pub fn number(&mut self, name: &CStr, value: u32) -> Result {
        let name = name.as_ptr().cast();
        // SAFETY: `message` is valid by the type invariant, and `name` is a string.
        to_result(unsafe { bindings::rdma_nl_put_driver_u32(self.message, name, value) })
    }

    /// Adds an attribute with a number that `rdma` prints in hexadecimal.
    ///
    /// # Errors
    ///
    /// Those of [`Self::number`].
    pub fn hex(&mut self, name: &CStr, value: u64) -> Result {
        let name = name.as_ptr().cast();
        // SAFETY: `message` is valid by the type invariant, and `name` is a string.
        to_result(unsafe { bindings::rdma_nl_put_driver_u64_hex(self.message, name, value) })
    }

    /// Adds an attribute with a string.
    ///
    /// # Errors
    ///
    /// Those of [`Self::number`].
    pub fn word(&mut self, name: &CStr, value: &CStr) -> Result {
        let (name, value) = (name.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: `message` is valid by the type invariant; `name` and `value` are strings.
        to_result(unsafe { bindings::rdma_nl_put_driver_string(self.message, name, value) })
    }
}

/// Opens the nest of driver attributes, calls `fill` with it, and closes the nest. Cancels the nest
/// if `fill` fails. Returns 0 or an errno.
///
/// # Safety
///
/// `message` must be a valid netlink message that is being built.
unsafe fn put_driver_attrs(
    message: *mut bindings::sk_buff,
    fill: impl FnOnce(&mut DriverAttrs<'_>) -> Result,
) -> c_int {
    const KIND: c_int = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER as c_int;
    // SAFETY: The caller guarantees that `message` is a valid message that is being built.
    let nest = unsafe { bindings::nla_nest_start(message, KIND) };
    if nest.is_null() {
        return EMSGSIZE.to_errno();
    }
    // INVARIANT: `message` is valid, and the nest was opened above.
    let filled = fill(&mut DriverAttrs {
        message,
        _call: PhantomData,
    });
    match filled {
        Ok(()) => {
            // SAFETY: `nest` was opened in this message.
            unsafe { bindings::nla_nest_end(message, nest) };
            0
        }
        Err(error) => {
            // SAFETY: `nest` was opened in this message.
            unsafe { bindings::nla_nest_cancel(message, nest) };
            error.to_errno()
        }
    }
}

/// Implements `fill_res_qp_entry` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn qp<P: Provider>(
    message: *mut bindings::sk_buff,
    qp: *mut bindings::ib_qp,
) -> c_int {
    // SAFETY: The QP is alive while ib_core calls its operations.
    let qp = unsafe { qp::of::<P>(qp) };
    // SAFETY: ib_core passes a valid netlink message that it is building.
    unsafe { put_driver_attrs(message, |details| P::qp_details(qp, details)) }
}

/// Implements `fill_res_cq_entry` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a CQ of `P`.
pub(crate) unsafe extern "C" fn cq<P: Provider>(
    message: *mut bindings::sk_buff,
    cq: *mut bindings::ib_cq,
) -> c_int {
    // SAFETY: The CQ is alive while ib_core calls its operations.
    let cq = unsafe { cq::of::<P>(cq) };
    // SAFETY: ib_core passes a valid netlink message that it is building.
    unsafe { put_driver_attrs(message, |details| P::cq_details(cq, details)) }
}

/// Implements `fill_res_srq_entry` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a shared receive queue of `P`.
pub(crate) unsafe extern "C" fn srq<P: Provider>(
    message: *mut bindings::sk_buff,
    srq: *mut bindings::ib_srq,
) -> c_int {
    // SAFETY: The queue is alive while ib_core calls its operations.
    let Some(srq) = (unsafe { srq::of::<P>(srq) }) else {
        return EINVAL.to_errno();
    };
    // SAFETY: ib_core passes a valid netlink message that it is building.
    unsafe { put_driver_attrs(message, |details| P::srq_details(srq, details)) }
}

/// Implements `fill_res_mr_entry` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a region of `P`.
pub(crate) unsafe extern "C" fn mr<P: Provider>(
    message: *mut bindings::sk_buff,
    mr: *mut bindings::ib_mr,
) -> c_int {
    // SAFETY: The region is alive while ib_core calls its operations.
    let current = unsafe { Object::<P, _>::get(mr) };
    // SAFETY: ib_core passes a valid netlink message that it is building.
    unsafe {
        put_driver_attrs(message, |details| {
            current.with(|mr| P::mr_details(mr, details))
        })
    }
}
