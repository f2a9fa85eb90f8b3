// SPDX-License-Identifier: GPL-2.0

//! Operations on multicast groups (`attach_mcast` and `detach_mcast` of `struct ib_device_ops`).

use kernel::{error::from_result, ffi::c_int};

use super::qp;
use crate::{bindings, device::gid::Gid, provider::Provider};

/// Implements `attach_mcast` of `struct ib_device_ops`. The LID has no meaning for RoCE.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn attach<P: Provider>(
    base: *mut bindings::ib_qp,
    group: *mut bindings::ib_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: The QP is alive while ib_core calls its operations, and the GID is valid during the
    // call.
    let (qp, group) = unsafe { (qp::of::<P>(base), Gid::from_raw(&*group)) };
    from_result(|| P::attach_mcast(qp, group).map(|()| 0))
}

/// Implements `detach_mcast` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn detach<P: Provider>(
    base: *mut bindings::ib_qp,
    group: *mut bindings::ib_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: The QP is alive while ib_core calls its operations, and the GID is valid during the
    // call.
    let (qp, group) = unsafe { (qp::of::<P>(base), Gid::from_raw(&*group)) };
    from_result(|| P::detach_mcast(qp, group).map(|()| 0))
}
