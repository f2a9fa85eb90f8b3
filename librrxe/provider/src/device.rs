// SPDX-License-Identifier: GPL-2.0

//! How libibverbs finds this provider, and which devices are its own.

use core::{
    ffi::{c_char, CStr},
    ptr::null_mut,
};

use crate::{
    bindings::*,
    context,
    object::{give, take, Zeroed},
};

/// The ABI of C rxe's user space, which rrxe's devices report.
const RXE_ABI: u32 = 2;

/// A table for libibverbs, which only reads it.
#[repr(transparent)]
struct Table<T>(T);

// SAFETY: Nobody writes to it.
unsafe impl<T> Sync for Table<T> {}

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

/// Runs when the library is loaded.
#[used]
#[link_section = ".init_array"]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    // SAFETY: The table is there as long as this library.
    unsafe { register_driver(&OPS.0) };
}

/// Implements `match_device`: rrxe's devices have the driver id of C rxe's; what firmware they say they have
/// tells them apart.
///
/// # Safety
///
/// To be called by libibverbs.
unsafe extern "C" fn match_device(device: *mut verbs_sysfs_dev) -> bool {
    // Without netlink libibverbs doesn't know the id, and the firmware has to do.
    // SAFETY: libibverbs' device.
    let other = unsafe { (*device).driver_id != RDMA_DRIVER_UNKNOWN && (*device).match_.is_null() };
    let mut text = [0u8; 64];
    // SAFETY: The buffer has the size that is given; the format has no arguments.
    let length = unsafe {
        let place = text.as_mut_ptr().cast();
        ibv_read_ibdev_sysfs_file(place, text.len(), device, c"fw_ver".as_ptr())
    };
    !other && length > 0 && CStr::from_bytes_until_nul(&text).is_ok_and(is_rrxe)
}

/// Whether this is the firmware of an rrxe device.
fn is_rrxe(firmware: &CStr) -> bool {
    firmware.to_bytes().starts_with(b"rrxe")
}

/// Implements `alloc_device`.
///
/// # Safety
///
/// To be called by libibverbs.
unsafe extern "C" fn alloc_device(_device: *mut verbs_sysfs_dev) -> *mut verbs_device {
    give(verbs_device::zeroed())
}

/// Implements `uninit_device`.
///
/// # Safety
///
/// To be called by libibverbs.
unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: `alloc_device` gave it.
    drop(unsafe { take(device) });
}
