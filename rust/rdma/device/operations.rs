// SPDX-License-Identifier: GPL-2.0

//! Operations on a device (`struct ib_device`).

use kernel::{
    error::from_result,
    ffi::{c_char, c_int},
};

use crate::{
    bindings,
    device::{attr::DeviceChange, of, DeviceObject},
    provider::Provider,
    support::error::unsupported,
    verbs::udata::{require_zero_udata, UserCall},
};

/// `IB_FW_VERSION_NAME_MAX` of `include/rdma/ib_verbs.h`.
const FIRMWARE_MAX: usize = 32;

/// Implements `query_device` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn query<P: Provider>(
    device: *mut bindings::ib_device,
    attr: *mut bindings::ib_device_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { require_zero_udata(udata) }?;
        // SAFETY: The device is alive while ib_core calls its operations.
        let attributes = P::query_device(unsafe { of::<P>(device) });
        // SAFETY: `udata` is null or valid during the call, and lies in the attributes of a call
        // in a process's context of `P`.
        let call = unsafe { UserCall::<P>::from_raw(udata) };
        let shows_memory = call.is_some_and(|call| call.has_device_memory());
        // SAFETY: ib_core passes zeroed memory for the attributes.
        attributes.write(unsafe { &mut *attr }, shows_memory);
        Ok(0)
    })
}

/// Implements `modify_device` of `struct ib_device_ops`. The GUID of the system image and the
/// description of the node can be changed.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    device: *mut bindings::ib_device,
    mask: c_int,
    change: *mut bindings::ib_device_modify,
) -> c_int {
    const GUID: u32 = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_SYS_IMAGE_GUID;
    const DESCRIPTION: u32 = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC;
    from_result(|| {
        let mask = mask as u32;
        if mask & !(GUID | DESCRIPTION) != 0 {
            return Err(unsupported());
        }
        // SAFETY: ib_core passes a valid change.
        let change = unsafe { &*change };
        if mask & DESCRIPTION != 0 {
            // SAFETY: The device is valid. Readers of the description expect concurrent changes.
            unsafe { (*device).node_desc = change.node_desc };
        }
        let guid = (mask & GUID != 0).then_some(change.sys_image_guid);
        // SAFETY: The device is alive while ib_core calls its operations.
        let device = unsafe { of::<P>(device) };
        P::modify_device(
            device,
            DeviceChange {
                sys_image_guid: guid,
            },
        );
        Ok(0)
    })
}

/// Implements `get_dev_fw_str` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, with a `text` of `IB_FW_VERSION_NAME_MAX` bytes.
pub(crate) unsafe extern "C" fn firmware<P: Provider>(
    _device: *mut bindings::ib_device,
    text: *mut c_char,
) {
    let version = P::FIRMWARE.to_bytes_with_nul();
    const { assert!(P::FIRMWARE.to_bytes_with_nul().len() <= FIRMWARE_MAX) };
    // SAFETY: The caller guarantees room for `FIRMWARE_MAX` bytes, and the version is not longer,
    // as asserted above.
    unsafe {
        text.cast::<u8>()
            .copy_from_nonoverlapping(version.as_ptr(), version.len())
    };
}

/// Implements `enable_driver` of `struct ib_device_ops`. Also dispatches the event of the port's
/// state: `IB_EVENT_PORT_ACTIVE` or `IB_EVENT_PORT_ERR`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn enable<P: Provider>(device: *mut bindings::ib_device) -> c_int {
    // SAFETY: The device is alive while ib_core calls its operations.
    let driver = unsafe { of::<P>(device) };
    P::enable(driver);
    if let Some(netdev) = P::netdev(driver) {
        // SAFETY: ib_core has registered the device by now, and `netdev` is valid.
        unsafe { bindings::ib_dispatch_port_state_event(device, netdev.as_ptr()) };
    }
    0
}

/// Implements `dealloc_driver` of `struct ib_device_ops`, the last operation on a device.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(device: *mut bindings::ib_device) {
    // SAFETY: This is the destruction operation, which can't fail.
    let device = unsafe { DeviceObject::<P>::take(device) };
    P::disable(&device);
}
