// SPDX-License-Identifier: GPL-2.0

//! The sysfs attribute `/sys/class/infiniband/…/parent`: the network device under an RDMA device.

use core::ptr::NonNull;

use kernel::ffi::c_char;

use crate::{
    bindings,
    net::netdev::{Name, Netdev},
};

/// Shows the attribute: the name of the network device under port 1, or an empty line once the
/// network device is gone.
///
/// # Safety
///
/// Must be called only by sysfs, on the `ib_core_device` of a registered `ib_device`, with a `page`
/// of `PAGE_SIZE` bytes to fill.
#[no_mangle]
unsafe extern "C" fn rdma_parent_show(
    device: *mut bindings::device,
    _attribute: *mut bindings::device_attribute,
    page: *mut c_char,
) -> isize {
    // SAFETY: The caller guarantees that `device` is part of the `ib_core_device` of a registered
    // `ib_device`.
    let device = unsafe { bindings::rdma_device_to_ibdev(device) };
    // SAFETY: The device is registered, and has a port 1. The function returns a counted reference,
    // which the caller owns.
    let netdev = NonNull::new(unsafe { bindings::ib_device_get_netdev(device, 1) });
    // SAFETY: `netdev` isn't null, and a count of it was returned above.
    let netdev = netdev.map(|netdev| unsafe { Netdev::from_raw(netdev) });
    let name = netdev.map(|netdev| netdev.name());
    let line = name.as_ref().map_or(c"", Name::as_c_str).to_bytes();
    // SAFETY: The caller guarantees that `page` is valid for a page. A name is far shorter.
    unsafe { core::ptr::copy_nonoverlapping(line.as_ptr(), page.cast(), line.len()) };
    // SAFETY: The caller guarantees that `page` is valid for a page. A name and the newline are far
    // shorter.
    unsafe { page.cast::<u8>().add(line.len()).write(b'\n') };
    line.len().saturating_add(1) as isize
}
