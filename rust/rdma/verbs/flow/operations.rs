// SPDX-License-Identifier: GPL-2.0

//! Operations on flow steering rules (`struct ib_flow`). ib_core doesn't allocate `struct ib_flow`;
//! the driver does.

use kernel::{
    error::{from_result, Error},
    ffi::c_int,
    prelude::*,
    sync::Arc,
};

use super::super::qp;
use crate::{
    bindings,
    provider::Provider,
    verbs::{flow, udata::require_zero_udata},
};

/// A C flow, and behind it a reference to the driver's rule.
#[repr(C)]
struct Flow<T> {
    base: bindings::ib_flow,
    inner: Arc<T>,
}

/// Implements `create_flow` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn create<P: Provider>(
    base: *mut bindings::ib_qp,
    attr: *mut bindings::ib_flow_attr,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_flow {
    let create = || {
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { require_zero_udata(udata) }?;
        // SAFETY: ib_core passes valid attributes, and their specifications behind them.
        let rule = unsafe { flow::read(attr) }?;
        // SAFETY: The QP is alive while ib_core calls its operations.
        let inner = P::create_flow(unsafe { qp::of::<P>(base) }, rule)?;
        let flow = Flow {
            base: bindings::ib_flow::default(),
            inner: inner.clone(),
        };
        let flow = KBox::new(flow, GFP_KERNEL_ACCOUNT).inspect_err(|_| P::destroy_flow(&inner))?;
        Ok::<_, Error>(KBox::into_raw(flow).cast())
    };
    create().unwrap_or_else(|error| error.to_ptr())
}

/// Implements `destroy_flow` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, with a flow that [`create`] returned, and at most once for it.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(base: *mut bindings::ib_flow) -> c_int {
    from_result(|| {
        // SAFETY: The caller guarantees that `create` returned the pointer, from `KBox::into_raw`,
        // and does not use it any more.
        let flow = unsafe { KBox::from_raw(base.cast::<Flow<P::Flow>>()) };
        P::destroy_flow(&flow.inner);
        Ok(0)
    })
}
