// SPDX-License-Identifier: GPL-2.0

//! Operations on a port's GID table (`add_gid` and `del_gid` of `struct ib_device_ops`).
//!
//! ib_core calls them with the table's mutex held (`add_roce_gid()` and `del_gid()` in
//! drivers/infiniband/core/cache.c), from the device's registration until the end of its
//! unregistration.

use core::ptr;

use kernel::{
    error::{code::ENODEV, from_result},
    ffi::{c_int, c_void},
};

use crate::{
    bindings,
    device::{
        gid::{Gid, GidNetdev},
        of,
    },
    provider::Provider,
};

const ROUTABLE: bindings::ib_gid_type = bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP;

/// Implements `add_gid` of `struct ib_device_ops`. Stores the index of the network device in the
/// context of the entry, because the network device may have another index when the entry is
/// deleted.
///
/// # Safety
///
/// Must be called only by ib_core, on an entry of a device of `P`.
pub(crate) unsafe extern "C" fn add<P: Provider>(
    attr: *const bindings::ib_gid_attr,
    context: *mut *mut c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core passes a complete entry.
        let attr = unsafe { &*attr };
        if attr.gid_type != ROUTABLE {
            return Ok(0);
        }
        // SAFETY: The device is alive while ib_core calls its operations.
        let device = unsafe { of::<P>(attr.device) };
        let base = P::netdev(device).ok_or(ENODEV)?;
        // SAFETY: ib_core refuses entries without a network device, and holds a reference to the
        // network device during the call.
        let netdev = unsafe { GidNetdev::new(attr.ndev, &base) };
        let netdev_index = netdev.netdev_index();
        P::add_gid(device, Gid::from_raw(&attr.gid), netdev)?;
        // SAFETY: `context` points to the entry's context, which only the driver uses.
        unsafe { context.write(ptr::without_provenance_mut(netdev_index as usize)) };
        Ok(0)
    })
}

/// Implements `del_gid` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on an entry for which it has called [`add`].
pub(crate) unsafe extern "C" fn del<P: Provider>(
    attr: *const bindings::ib_gid_attr,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: ib_core passes a complete entry.
    let attr = unsafe { &*attr };
    // SAFETY: `context` points to the entry's context, which only the driver uses. It was null
    // before `add` wrote it.
    let index = unsafe { context.read() }.addr() as u32;
    if index != 0 {
        // SAFETY: The device is alive while ib_core calls its operations.
        let device = unsafe { of::<P>(attr.device) };
        P::del_gid(device, Gid::from_raw(&attr.gid), index);
    }
    0
}
