// SPDX-License-Identifier: GPL-2.0

//! Counters of a port, as `rdma statistic` and sysfs show them (`struct rdma_hw_stats`).

use kernel::{error::from_result, ffi::c_int, prelude::*};

use crate::{bindings, device, provider::Provider};

/// Name of a counter (`struct rdma_stat_desc`).
#[repr(transparent)]
pub struct CounterName(bindings::rdma_stat_desc);

// SAFETY: The type contains only pointers to constant strings, which never change.
unsafe impl Sync for CounterName {}

impl CounterName {
    /// Returns the name.
    pub fn text(&self) -> &'static CStr {
        // SAFETY: `new` took the pointer from a `&'static CStr`.
        unsafe { CStr::from_char_ptr(self.0.name.cast()) }
    }

    /// Creates the description of a counter called `name`.
    pub const fn new(name: &'static CStr) -> Self {
        Self(bindings::rdma_stat_desc {
            name: name.as_ptr().cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

/// Number of milliseconds for which ib_core may show cached values.
const LIFESPAN: u32 = bindings::RDMA_HW_STATS_DEFAULT_LIFESPAN;

/// Implements `alloc_hw_port_stats` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    _device: *mut bindings::ib_device,
    _port: u32,
) -> *mut bindings::rdma_hw_stats {
    alloc_for::<P>()
}

/// Allocates room for the values of [`Provider::COUNTERS`]. Returns null if there is no memory.
pub(crate) fn alloc_for<P: Provider>() -> *mut bindings::rdma_hw_stats {
    let names = P::COUNTERS;
    // SAFETY: `CounterName` is `repr(transparent)`, so the list consists of that many
    // `rdma_stat_desc`. It is `'static`.
    unsafe {
        bindings::rdma_alloc_hw_stats_struct(
            names.as_ptr().cast(),
            names.len() as c_int,
            LIFESPAN as usize,
        )
    }
}

/// Implements `get_hw_stats` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`, with a `stats` that [`alloc`] returned.
pub(crate) unsafe extern "C" fn get<P: Provider>(
    device: *mut bindings::ib_device,
    stats: *mut bindings::rdma_hw_stats,
    port: u32,
    _index: c_int,
) -> c_int {
    from_result(|| {
        if port == 0 || stats.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The device is alive while ib_core calls its operations.
        let device = unsafe { device::of::<P>(device) };
        // SAFETY: `stats` isn't null, and the caller guarantees that `alloc` returned it.
        unsafe { fill::<P>(stats, |index| P::counter(device, index)) };
        Ok(P::COUNTERS.len() as c_int)
    })
}

/// Writes the values of all counters to `stats`.
///
/// # Safety
///
/// [`alloc_for`] must have returned `stats`, which must not be null.
pub(crate) unsafe fn fill<P: Provider>(
    stats: *mut bindings::rdma_hw_stats,
    value: impl Fn(usize) -> u64,
) {
    // SAFETY: The caller guarantees that `stats` is valid. The array of values is the last field of
    // the structure.
    let values = unsafe { (&raw mut (*stats).value).cast::<u64>() };
    for index in 0..P::COUNTERS.len() {
        // SAFETY: `alloc_for` allocated as many values as there are names, so `index` is in bounds.
        unsafe { values.add(index).write(value(index)) };
    }
}
