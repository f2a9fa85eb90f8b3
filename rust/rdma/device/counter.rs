// SPDX-License-Identifier: GPL-2.0

//! Operations on counter sets: what `rdma statistic qp` binds QPs to.
//!
//! A QP that is bound to a set counts there instead of in its port's counters; ib_core adds up both
//! when it shows the port's. It calls the operations on one set one at a time. ib_core holds no lock when it looks whether a
//! QP is bound (`rdma_counter_bind_qp_auto()`, drivers/infiniband/core/counters.c), so it may bind a QP to two sets at a
//! time. The driver lets one of them succeed.

use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::verbs::qp;
use crate::{
    bindings,
    device::{of as device_of, stats},
    provider::Provider,
};

/// ib_core's part, and the driver's set once a QP has been bound.
#[repr(C)]
struct CounterObject<P: Provider> {
    base: bindings::rdma_counter,
    set: Option<Arc<P::CounterSet>>,
}

/// Bytes that ib_core is to allocate for a counter set of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    core::mem::size_of::<CounterObject<P>>()
}

/// The place of the driver's set.
///
/// # Safety
///
/// `counter` must be a counter set of `P` on which ib_core calls an operation, for all of `'a`.
unsafe fn set_of<'a, P: Provider>(
    counter: *mut bindings::rdma_counter,
) -> &'a mut Option<Arc<P::CounterSet>> {
    // SAFETY: ib_core allocated as much as `size` says, and [`init`] initialized it. Operations on
    // one set exclude one another.
    unsafe { &mut (*counter.cast::<CounterObject<P>>()).set }
}

/// Implements `counter_init`.
///
/// # Safety
///
/// To be called by ib_core, with a new counter set.
pub(crate) unsafe extern "C" fn init<P: Provider>(counter: *mut bindings::rdma_counter) {
    let object = counter.cast::<CounterObject<P>>();
    // SAFETY: ib_core allocated as much as `size` says; nobody else knows of it yet.
    unsafe { (&raw mut (*object).set).write(None) };
}

/// Implements `counter_alloc_stats`.
///
/// # Safety
///
/// To be called by ib_core.
pub(crate) unsafe extern "C" fn alloc_stats<P: Provider>(
    _counter: *mut bindings::rdma_counter,
) -> *mut bindings::rdma_hw_stats {
    stats::alloc_for::<P>()
}

/// Implements `counter_bind_qp`: the first QP makes the set.
///
/// # Safety
///
/// To be called by ib_core, on a counter set and a QP of `P`.
pub(crate) unsafe extern "C" fn bind_qp<P: Provider>(
    counter: *mut bindings::rdma_counter,
    qp: *mut bindings::ib_qp,
    _port: u32,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core calls this operation on it.
        let set = unsafe { set_of::<P>(counter) };
        // SAFETY: The QP is alive while ib_core calls its operations.
        let driver_qp = unsafe { qp::of::<P>(qp) };
        match set {
            Some(set) => P::bind_to_set(driver_qp, set.clone())?,
            None => {
                // SAFETY: The device is alive while ib_core calls its operations.
                let device = unsafe { device_of::<P>((*qp).device) };
                let (id, new) = P::alloc_counter_set(device)?;
                // ib_core frees its part without `dealloc` if this fails.
                P::bind_to_set(driver_qp, new.clone())
                    .inspect_err(|_| P::dealloc_counter_set(device, id))?;
                // SAFETY: `counter` is valid, and numbered by its driver.
                unsafe { (*counter).id = id };
                *set = Some(new);
            }
        }
        // SAFETY: The field is the driver's to write in this operation. Of several calls for the QP one bound it.
        unsafe { (*qp).counter = counter };
        Ok(0)
    })
}

/// Implements `counter_unbind_qp`.
///
/// # Safety
///
/// To be called by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn unbind_qp<P: Provider>(
    qp: *mut bindings::ib_qp,
    _port: u32,
) -> c_int {
    // SAFETY: The field changes in this operation and in the one that binds only, and ib_core holds the set's lock.
    if unsafe { (*qp).counter.is_null() } {
        // ib_core gives the set back after each unbinding that succeeds, and two users may unbind at once.
        return EINVAL.to_errno();
    }
    // Before another set can be bound, which writes it.
    // SAFETY: The field is the driver's to write in this operation.
    unsafe { (*qp).counter = core::ptr::null_mut() };
    // SAFETY: The QP is alive while ib_core calls its operations.
    P::unbind_from_set(unsafe { qp::of::<P>(qp) });
    0
}

/// Implements `counter_dealloc`, the last operation on a set that has been bound.
///
/// # Safety
///
/// To be called by ib_core, on a counter set of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    // SAFETY: ib_core calls this operation on it.
    if let Some(set) = unsafe { set_of::<P>(counter) }.take() {
        // SAFETY: ib_core frees its part after this.
        let (device, id) = unsafe { ((*counter).device, (*counter).id) };
        // SAFETY: The device is alive while it has counter sets.
        P::dealloc_counter_set(unsafe { device_of::<P>(device) }, id);
        drop(set);
    }
    0
}

/// Implements `counter_update_stats`.
///
/// # Safety
///
/// To be called by ib_core, on a counter set of `P`.
pub(crate) unsafe extern "C" fn update_stats<P: Provider>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    // SAFETY: ib_core calls this operation on it.
    if let Some(set) = unsafe { set_of::<P>(counter) } {
        // SAFETY: `alloc_stats` made the statistics, which live as long as the counter set.
        unsafe { stats::fill::<P>((*counter).stats, |index| P::set_counter(set, index)) };
    }
    0
}
