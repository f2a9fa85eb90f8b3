// SPDX-License-Identifier: GPL-2.0

//! Operations on multicast groups.

use kernel::{error::from_result, ffi::c_int};

use super::qp;
use crate::{bindings, device::gid::Gid, provider::Provider};

/// Implements `attach_mcast`. Local identifiers mean nothing here.
///
/// # Safety
///
/// To be called by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn attach<P: Provider>(
    base: *mut bindings::ib_qp,
    group: *mut bindings::ib_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: The QP is alive while ib_core calls its operations, and so is the address.
    let (qp, group) = unsafe { (qp::of::<P>(base), Gid::from_raw(&*group)) };
    from_result(|| P::attach_mcast(qp, group).map(|()| 0))
}

/// Implements `detach_mcast`.
///
/// # Safety
///
/// To be called by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn detach<P: Provider>(
    base: *mut bindings::ib_qp,
    group: *mut bindings::ib_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: The QP is alive while ib_core calls its operations, and so is the address.
    let (qp, group) = unsafe { (qp::of::<P>(base), Gid::from_raw(&*group)) };
    from_result(|| P::detach_mcast(qp, group).map(|()| 0))
}
