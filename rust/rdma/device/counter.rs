// SPDX-License-Identifier: GPL-2.0

//! Operations on counter sets (`struct rdma_counter`), to which `rdma statistic qp` binds QPs.
//!
//! A QP that is bound to a set counts in the set instead of in its port's counters. ib_core adds up
//! both when it shows the port's counters. It calls the operations on one set one at a time.
//! ib_core holds no lock when it looks whether a QP is bound (`rdma_counter_bind_qp_auto()`,
//! drivers/infiniband/core/counters.c), so it may call `counter_bind_qp` for one QP and two sets at
//! once. The driver lets only one of the two calls succeed.

use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::verbs::qp;
use crate::{
    bindings,
    device::{of as device_of, stats},
    provider::Provider,
};

/// A C counter set, and behind it the driver's set, once a QP has been bound.
#[repr(C)]
struct CounterObject<P: Provider> {
    base: bindings::rdma_counter,
    set: Option<Arc<P::CounterSet>>,
}

/// Number of bytes that ib_core must allocate for a counter set of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    core::mem::size_of::<CounterObject<P>>()
}

/// Returns the place of the driver's set behind `counter`.
///
/// # Safety
///
/// `counter` must be a counter set of a device of `P`, on which ib_core calls an operation that
/// lasts for all of `'a`.
unsafe fn set_of<'a, P: Provider>(
    counter: *mut bindings::rdma_counter,
) -> &'a mut Option<Arc<P::CounterSet>> {
    // SAFETY: ib_core allocated as many bytes as `size` returns, and [`init`] initialized the
    // field. Operations on one set exclude one another.
    unsafe { &mut (*counter.cast::<CounterObject<P>>()).set }
}

/// Implements `counter_init` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, with a new counter set.
pub(crate) unsafe extern "C" fn init<P: Provider>(counter: *mut bindings::rdma_counter) {
    let object = counter.cast::<CounterObject<P>>();
    // SAFETY: ib_core allocated as many bytes as `size` returns, and no other code knows the set
    // yet.
    unsafe { (&raw mut (*object).set).write(None) };
}

/// Implements `counter_alloc_stats` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core.
pub(crate) unsafe extern "C" fn alloc_stats<P: Provider>(
    _counter: *mut bindings::rdma_counter,
) -> *mut bindings::rdma_hw_stats {
    stats::alloc_for::<P>()
}

/// Implements `counter_bind_qp` of `struct ib_device_ops`. The first QP creates the driver's set.
///
/// # Safety
///
/// Must be called only by ib_core, on a counter set and a QP of `P`.
pub(crate) unsafe extern "C" fn bind_qp<P: Provider>(
    counter: *mut bindings::rdma_counter,
    qp: *mut bindings::ib_qp,
    _port: u32,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core calls this operation on `counter`, so it is a counter set of `P`, and no
        // other operation on it runs.
        let set = unsafe { set_of::<P>(counter) };
        // SAFETY: The QP is alive while ib_core calls its operations.
        let driver_qp = unsafe { qp::of::<P>(qp) };
        match set {
            Some(set) => P::bind_to_set(driver_qp, set.clone())?,
            None => {
                // SAFETY: The device is alive while ib_core calls its operations.
                let device = unsafe { device_of::<P>((*qp).device) };
                let (id, new) = P::alloc_counter_set(device)?;
                // ib_core frees the C counter set without a call of `counter_dealloc` if this
                // operation fails.
                P::bind_to_set(driver_qp, new.clone())
                    .inspect_err(|_| P::dealloc_counter_set(device, id))?;
                // SAFETY: `counter` is valid, and the driver assigns its number.
                unsafe { (*counter).id = id };
                *set = Some(new);
            }
        }
        // SAFETY: The driver writes the field in this operation. Of several concurrent calls for
        // the QP only one has bound it, and so only one gets here.
        unsafe { (*qp).counter = counter };
        Ok(0)
    })
}

/// Implements `counter_unbind_qp` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn unbind_qp<P: Provider>(
    qp: *mut bindings::ib_qp,
    _port: u32,
) -> c_int {
    // SAFETY: Only this operation and `counter_bind_qp` change the field, and ib_core holds the
    // set's lock during both.
    if unsafe { (*qp).counter.is_null() } {
        // ib_core drops a reference to the set after each successful unbinding, and two users may
        // unbind a QP at once. So only the first unbinding may succeed.
        return EINVAL.to_errno();
    }
    // The field is cleared before the QP is unbound. Another set can be bound, which writes the
    // field, only after that.
    // SAFETY: The driver writes the field in this operation.
    unsafe { (*qp).counter = core::ptr::null_mut() };
    // SAFETY: The QP is alive while ib_core calls its operations.
    P::unbind_from_set(unsafe { qp::of::<P>(qp) });
    0
}

/// Implements `counter_dealloc` of `struct ib_device_ops`, the last operation on a set to which a
/// QP has been bound.
///
/// # Safety
///
/// Must be called only by ib_core, on a counter set of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    // SAFETY: ib_core calls this operation on `counter`, so it is a counter set of `P`, and no
    // other operation on it runs.
    if let Some(set) = unsafe { set_of::<P>(counter) }.take() {
        // SAFETY: ib_core frees the C counter set after this operation, so `counter` is still
        // valid.
        let (device, id) = unsafe { ((*counter).device, (*counter).id) };
        // SAFETY: The device is alive while it has counter sets.
        P::dealloc_counter_set(unsafe { device_of::<P>(device) }, id);
        drop(set);
    }
    0
}

/// Implements `counter_update_stats` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a counter set of `P`.
pub(crate) unsafe extern "C" fn update_stats<P: Provider>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    // SAFETY: ib_core calls this operation on `counter`, so it is a counter set of `P`, and no
    // other operation on it runs.
    if let Some(set) = unsafe { set_of::<P>(counter) } {
        // SAFETY: `alloc_stats` allocated the statistics, which live as long as the counter set.
        unsafe { stats::fill::<P>((*counter).stats, |index| P::set_counter(set, index)) };
    }
    0
}
