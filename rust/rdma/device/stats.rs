// SPDX-License-Identifier: GPL-2.0

//! Counters of a port, as `rdma statistic` and sysfs show them.

use kernel::{error::from_result, ffi::c_int, prelude::*};

use crate::{bindings, device, provider::Provider};

/// The name of a counter.
#[repr(transparent)]
pub struct CounterName(bindings::rdma_stat_desc);

// SAFETY: Nothing but constant strings, which nobody changes.
unsafe impl Sync for CounterName {}

impl CounterName {
    /// The name.
    pub fn text(&self) -> &'static CStr {
        // SAFETY: `new` took it from such a string.
        unsafe { CStr::from_char_ptr(self.0.name.cast()) }
    }

    /// A counter called `name`.
    pub const fn new(name: &'static CStr) -> Self {
        Self(bindings::rdma_stat_desc {
            name: name.as_ptr().cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

/// Milliseconds for which ib_core may show values again that it read before.
const LIFESPAN: u32 = bindings::RDMA_HW_STATS_DEFAULT_LIFESPAN;

/// Implements `alloc_hw_port_stats`.
///
/// # Safety
///
/// To be called by ib_core.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    _device: *mut bindings::ib_device,
    _port: u32,
) -> *mut bindings::rdma_hw_stats {
    alloc_for::<P>()
}

/// Room for the values of [`Provider::COUNTERS`]; null if there is no memory.
pub(crate) fn alloc_for<P: Provider>() -> *mut bindings::rdma_hw_stats {
    let names = P::COUNTERS;
    // SAFETY: The type is transparent, so these are that many descriptions; they live for ever.
    unsafe {
        bindings::rdma_alloc_hw_stats_struct(
            names.as_ptr().cast(),
            names.len() as c_int,
            LIFESPAN as usize,
        )
    }
}

/// Implements `get_hw_stats`.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P` and with what [`alloc`] made.
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
        // SAFETY: `stats` is what `alloc` made.
        unsafe { fill::<P>(stats, |index| P::counter(device, index)) };
        Ok(P::COUNTERS.len() as c_int)
    })
}

/// Writes the values of all counters.
///
/// # Safety
///
/// `stats` must be what [`alloc_for`] made, and not null.
pub(crate) unsafe fn fill<P: Provider>(
    stats: *mut bindings::rdma_hw_stats,
    value: impl Fn(usize) -> u64,
) {
    // SAFETY: `stats` is valid; the values lie behind the structure.
    let values = unsafe { (&raw mut (*stats).value).cast::<u64>() };
    for index in 0..P::COUNTERS.len() {
        // SAFETY: `alloc_for` asked for as many values as there are names.
        unsafe { values.add(index).write(value(index)) };
    }
}
