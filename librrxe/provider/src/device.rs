// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Registration with libibverbs, and the check whether a device belongs to this provider.

use core::{
    ffi::{c_char, CStr},
    ptr::null_mut,
};

use crate::{
    bindings::*,
    context, layout,
    object::{give, take, Zeroed},
};

/// Version of C rxe's ABI for user space. Devices of rrxe report the same version.
const RXE_ABI: u32 = 2;

/// Table that libibverbs reads and never writes.
#[repr(transparent)]
struct Table<T>(T);

// SAFETY: The table is never written, so threads may share it.
unsafe impl<T> Sync for Table<T> {}

/// Devices that libibverbs offers to this provider: those with the driver id of C rxe. The last
/// entry ends the table.
static MATCHES: Table<[verbs_match_ent; 2]> = Table([
    verbs_match_ent {
        driver_data: null_mut(),
        u: verbs_match_ent__bindgen_ty_1 {
            driver_id: RDMA_DRIVER_RXE as u64,
        },
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_DRIVER_ID as u8,
    },
    verbs_match_ent {
        driver_data: null_mut(),
        u: verbs_match_ent__bindgen_ty_1 { driver_id: 0 },
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_SENTINEL as u8,
    },
]);

/// Functions that libibverbs calls for devices of this provider.
static OPS: Table<verbs_device_ops> = Table(verbs_device_ops {
    name: c"rrxe".as_ptr(),
    match_min_abi_version: RXE_ABI,
    match_max_abi_version: RXE_ABI,
    match_table: &MATCHES.0 as *const verbs_match_ent,
    static_providers: null_mut(),
    match_device: Some(match_device),
    alloc_context: Some(context::alloc),
    import_context: Some(context::import),
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
});

extern "C" {
    fn ibv_read_ibdev_sysfs_file(
        buffer: *mut c_char,
        size: usize,
        device: *mut verbs_sysfs_dev,
        format: *const c_char,
        ...
    ) -> core::ffi::c_int;
}

/// Makes the dynamic loader call `register` when it loads this library.
#[used]
#[link_section = ".init_array"]
static REGISTER: extern "C" fn() = register;

/// Registers this provider with libibverbs (`verbs_register_driver()`). Without the registration
/// stock librxe serves the devices.
extern "C" fn register() {
    if !layout::fits() {
        eprintln!(
            "librrxe: this libibverbs has another layout than that of rdma-core {}, which librrxe \
             was built for: build and install librrxe again by `make install-provider`",
            env!("RDMA_CORE_VERSION")
        );
        return;
    }
    // SAFETY: The table is static, so it is valid as long as this library is loaded.
    unsafe { register_driver(&OPS.0) };
}

/// Implements `match_device` of `struct verbs_device_ops`. Devices of rrxe have the driver id of C
/// rxe. The text of their firmware version begins with "rrxe", which tells them apart.
///
/// # Safety
///
/// To be called by libibverbs only.
unsafe extern "C" fn match_device(device: *mut verbs_sysfs_dev) -> bool {
    // If netlink is not available, libibverbs does not know the driver id. Then the firmware
    // version alone decides.
    // SAFETY: The device is one of libibverbs, valid during the call.
    let other = unsafe { (*device).driver_id != RDMA_DRIVER_UNKNOWN && (*device).match_.is_null() };
    let mut text = [0u8; 64];
    // SAFETY: The buffer has the size that is passed. The format has no arguments.
    let length = unsafe {
        let place = text.as_mut_ptr().cast();
        ibv_read_ibdev_sysfs_file(place, text.len(), device, c"fw_ver".as_ptr())
    };
    !other && length > 0 && CStr::from_bytes_until_nul(&text).is_ok_and(is_rrxe)
}

/// Returns whether `firmware` is the firmware version of a device of rrxe.
fn is_rrxe(firmware: &CStr) -> bool {
    firmware.to_bytes().starts_with(b"rrxe")
}

/// Implements `alloc_device` of `struct verbs_device_ops`.
///
/// # Safety
///
/// To be called by libibverbs only.
unsafe extern "C" fn alloc_device(_device: *mut verbs_sysfs_dev) -> *mut verbs_device {
    give(verbs_device::zeroed())
}

/// Implements `uninit_device` of `struct verbs_device_ops`.
///
/// # Safety
///
/// To be called by libibverbs only.
unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: `alloc_device` returned the pointer by `give`, and libibverbs does not use it any
    // more.
    drop(unsafe { take(device) });
}
