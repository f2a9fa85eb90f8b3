// SPDX-License-Identifier: GPL-2.0

//! Operations on the port of a device. A device has one port, number 1.

use kernel::{error::from_result, ffi::c_int, prelude::*};

use crate::{
    bindings,
    device::{attr::PortChange, of},
    net::netdev::Netdev,
    provider::Provider,
    support::error::unsupported,
};

const PORT: u32 = 1;
/// Size of a MAD in bytes (IBTA 1.x §13.4.3).
const MAD_SIZE: u32 = 256;
const DEFAULT_PKEY: u16 = 0xffff;

/// Returns `EINVAL` unless `port` is the number of the only port.
fn check_port(port: u32) -> Result {
    if port != PORT {
        return Err(EINVAL);
    }
    Ok(())
}

/// Implements `query_port` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn query<P: Provider>(
    device: *mut bindings::ib_device,
    port: u32,
    attr: *mut bindings::ib_port_attr,
) -> c_int {
    from_result(|| {
        check_port(port)?;
        // SAFETY: The device is alive while ib_core calls its operations.
        let attributes = P::query_port(unsafe { of::<P>(device) });
        // SAFETY: ib_core passes valid memory for the attributes.
        let attr = unsafe { &mut *attr };
        attributes.write(attr);
        // SAFETY: The device and the fields are valid. On failure the function leaves speed and
        // width zero.
        unsafe {
            bindings::ib_get_eth_speed(device, port, &mut attr.active_speed, &mut attr.active_width)
        };
        Ok(0)
    })
}

/// Speed in megabits per second of a network device that does not report a speed. ib_core assumes
/// the same.
const DEFAULT_SPEED: u32 = 1000;

/// Implements `query_port_speed` of `struct ib_device_ops`. Reports the speed of the network device
/// in units of 100 Mb/s, or zero while the port is down.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn speed<P: Provider>(
    device: *mut bindings::ib_device,
    port: u32,
    speed: *mut u64,
) -> c_int {
    from_result(|| {
        check_port(port)?;
        // SAFETY: The device is alive while ib_core calls its operations.
        let netdev = P::netdev(unsafe { of::<P>(device) }).ok_or(ENODEV)?;
        let megabits = match netdev.is_active() {
            true => netdev.speed().unwrap_or(DEFAULT_SPEED),
            false => 0,
        };
        // SAFETY: ib_core passes valid memory for the result.
        unsafe { speed.write(u64::from(megabits / 100)) };
        Ok(0)
    })
}

/// Implements `modify_port` of `struct ib_device_ops`. In-kernel consumers declare capabilities of
/// the port, such as connection management. The count of Q_Key violations can be reset.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    device: *mut bindings::ib_device,
    port: u32,
    mask: c_int,
    change: *mut bindings::ib_port_modify,
) -> c_int {
    const RESET: u32 = bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR;
    from_result(|| {
        check_port(port)?;
        let mask = mask as u32;
        if mask & !RESET != 0 {
            return Err(unsupported());
        }
        // SAFETY: ib_core passes a valid change.
        let change = unsafe { &*change };
        // SAFETY: The device is alive while ib_core calls its operations.
        let device = unsafe { of::<P>(device) };
        P::modify_port(
            device,
            PortChange {
                set_capabilities: change.set_port_cap_mask,
                clear_capabilities: change.clr_port_cap_mask,
                reset_qkey_violations: mask & RESET != 0,
            },
        );
        Ok(0)
    })
}

/// Implements `get_port_immutable` of `struct ib_device_ops`: the port supports RoCEv2, MADs by a
/// GSI QP, and connection management.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn immutable<P: Provider>(
    device: *mut bindings::ib_device,
    port: u32,
    immutable: *mut bindings::ib_port_immutable,
) -> c_int {
    from_result(|| {
        check_port(port)?;
        // SAFETY: The device is alive while ib_core calls its operations.
        let attributes = P::query_port(unsafe { of::<P>(device) });
        let filled = bindings::ib_port_immutable {
            pkey_tbl_len: attributes.pkey_table_len.into(),
            gid_tbl_len: attributes.gid_table_len.into(),
            core_cap_flags: bindings::RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP
                | bindings::RDMA_CORE_CAP_IB_MAD
                | bindings::RDMA_CORE_CAP_IB_CM
                | bindings::RDMA_CORE_CAP_ETH_AH
                | bindings::RDMA_CORE_CAP_AF_IB,
            max_mad_size: MAD_SIZE,
        };
        // SAFETY: ib_core passes valid memory for the structure.
        unsafe { immutable.write(filled) };
        Ok(0)
    })
}

/// Implements `get_link_layer` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core.
pub(crate) unsafe extern "C" fn link_layer(
    _device: *mut bindings::ib_device,
    _port: u32,
) -> bindings::rdma_link_layer {
    bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET
}

/// Implements `get_netdev` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn netdev<P: Provider>(
    device: *mut bindings::ib_device,
    port: u32,
) -> *mut bindings::net_device {
    if port != PORT {
        return core::ptr::null_mut();
    }
    // SAFETY: The device is alive while ib_core calls its operations.
    let netdev = P::netdev(unsafe { of::<P>(device) });
    netdev.map_or(core::ptr::null_mut(), Netdev::into_raw)
}

/// Implements `query_pkey` of `struct ib_device_ops`. The table contains only the default
/// partition.
///
/// # Safety
///
/// Must be called only by ib_core.
pub(crate) unsafe extern "C" fn pkey(
    _device: *mut bindings::ib_device,
    port: u32,
    index: u16,
    pkey: *mut u16,
) -> c_int {
    from_result(|| {
        check_port(port)?;
        if index != 0 {
            return Err(EINVAL);
        }
        // SAFETY: ib_core passes valid memory for the result.
        unsafe { pkey.write(DEFAULT_PKEY) };
        Ok(0)
    })
}
