// SPDX-License-Identifier: GPL-2.0

//! `/sys/class/infiniband/…/parent`: the network device under a device, as C rxe shows it.

use core::ptr::NonNull;

use kernel::ffi::c_char;

use crate::{
    bindings,
    net::netdev::{Name, Netdev},
};

/// Shows the attribute: the name of the network device under port 1, an empty line once that is
/// gone.
///
/// # Safety
///
/// To be called by sysfs, on a registered `ib_device`, with a page to fill.
#[no_mangle]
unsafe extern "C" fn rrxe_parent_show(
    device: *mut bindings::device,
    _attribute: *mut bindings::device_attribute,
    page: *mut c_char,
) -> isize {
    // SAFETY: As the caller promises.
    let device = unsafe { bindings::rdma_device_to_ibdev(device) };
    // SAFETY: As above; the count is for us.
    let netdev = NonNull::new(unsafe { bindings::ib_device_get_netdev(device, 1) });
    // SAFETY: A count came with it.
    let netdev = netdev.map(|netdev| unsafe { Netdev::from_raw(netdev) });
    let name = netdev.map(|netdev| netdev.name());
    let line = name.as_ref().map_or(c"", Name::as_c_str).to_bytes();
    // SAFETY: A name is far shorter than a page.
    unsafe { core::ptr::copy_nonoverlapping(line.as_ptr(), page.cast(), line.len()) };
    // SAFETY: As above.
    unsafe { page.cast::<u8>().add(line.len()).write(b'\n') };
    line.len().saturating_add(1) as isize
}
