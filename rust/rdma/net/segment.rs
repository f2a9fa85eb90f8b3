// SPDX-License-Identifier: GPL-2.0

//! Network segments on top of a network device.
//!
//! Network devices are on one segment if their frames reach the same stations unchanged. A macvlan
//! or a bridge is on one segment with the network device below it. A VLAN or a MACsec device is
//! not.

use kernel::{
    str::{CStr, CStrExt},
    sync::rcu,
};

use super::{
    lower::Lower,
    netdev::{index, Netdev},
};
use crate::bindings;

/// Kinds of network devices (`rtnl_link_ops.kind`) whose frames are those of the network device
/// below.
const TRANSPARENT: [&CStr; 8] = [
    c"bond", c"bridge", c"ipvlan", c"ipvtap", c"macvlan", c"macvtap", c"team", c"vrf",
];

/// Maximum number of network devices that a search visits.
///
/// A device is visited once for each path that leads down to it. The number of paths can be the
/// product of the numbers of devices on all levels. A search takes some milliseconds at most.
const MAX_VISITED: u32 = 1 << 16;

/// Maximum number of levels below a network device that a search visits.
///
/// The kernel allows no more at any one time (`MAX_NEST_DEV`, `__netdev_upper_dev_link()`,
/// net/core/dev.c). But a search may find more of them while devices change.
const LEVELS: u32 = bindings::MAX_NEST_DEV;

/// State of a search among the network devices below another one.
struct Search<'a> {
    /// The network device at the bottom of the segments.
    base: *mut bindings::net_device,
    /// Number of network devices that may still be visited.
    remaining: u32,
    /// The RCU read lock, which keeps the visited network devices valid.
    readers: &'a rcu::Guard,
}

/// Function that returns whether the search ends at the visited network device.
type Visit<'s, 'a> = &'s mut dyn FnMut(&mut Search<'a>, *mut bindings::net_device) -> bool;

impl<'a> Search<'a> {
    /// Calls `visit` for the network devices on `levels` levels below `netdev`, until `visit`
    /// returns `true`. Returns whether `visit` did so before the search reached its limits.
    ///
    /// # Safety
    ///
    /// `netdev` must be valid as long as `self.readers`.
    unsafe fn any_below(
        &mut self,
        netdev: *mut bindings::net_device,
        levels: u32,
        visit: Visit<'_, 'a>,
    ) -> bool {
        // SAFETY: The caller guarantees that `netdev` is valid as long as `self.readers` (see
        // `# Safety`).
        for lower in unsafe { Lower::of(netdev, self.readers) } {
            self.remaining = if levels == 0 {
                0
            } else {
                self.remaining.saturating_sub(1)
            };
            if self.remaining == 0 {
                // The whole search ends, since `remaining` stays zero.
                return false;
            }
            let below = levels.saturating_sub(1);
            // SAFETY: `lower` is valid as long as `self.readers`, by the documentation of `Lower`.
            if visit(self, lower) || unsafe { self.any_below(lower, below, visit) } {
                return true;
            }
        }
        false
    }

    /// Returns whether `netdev` is on top of `base`, as far as the search's limits allow.
    ///
    /// # Safety
    ///
    /// `netdev` must be valid as long as `self.readers`.
    unsafe fn is_on_base(&mut self, netdev: *mut bindings::net_device) -> bool {
        // SAFETY: The caller guarantees that `netdev` is valid as long as `self.readers` (see
        // `# Safety`).
        unsafe { self.any_below(netdev, LEVELS, &mut |search, lower| lower == search.base) }
    }
}

/// Returns the segment of `netdev`, which is `base` or a network device on top of `base`. Must be
/// called in process context.
///
/// The name of a segment is the index of the lowest network device on it. That device is `base`, or
/// one whose frames differ from those of the devices below it.
///
/// Below a transparent device, several devices may be on top of `base`. The first one counts. A
/// device with too many devices or levels below it ([`MAX_VISITED`], [`LEVELS`]) is on a segment
/// of its own.
///
/// # Safety
///
/// `netdev` must be valid.
pub(crate) unsafe fn segment_of(netdev: *mut bindings::net_device, base: &Netdev) -> u32 {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`).
    let own = unsafe { index(netdev) };
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`).
    if netdev == base.as_ptr() || !unsafe { is_transparent(netdev) } {
        return own;
    }
    let readers = rcu::read_lock();
    let mut search = Search {
        base: base.as_ptr(),
        remaining: MAX_VISITED,
        readers: &readers,
    };
    let mut lowest = None;
    let mut is_lowest = |search: &mut Search<'_>, lower| {
        let is_lowest = lower == search.base
            // SAFETY: `lower` is valid as long as `readers`.
            || (!unsafe { is_transparent(lower) }
                // SAFETY: `lower` is valid as long as `readers`.
                && unsafe { search.is_on_base(lower) });
        if is_lowest {
            lowest = Some(lower);
        }
        is_lowest
    };
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`).
    unsafe { search.any_below(netdev, LEVELS, &mut is_lowest) };
    let Some(lowest) = lowest else {
        return own;
    };
    // A lower device may be in another namespace, where its index may be that of any device here.
    // SAFETY: Both devices are valid as long as `readers`.
    match unsafe { bindings::dev_net(lowest) == bindings::dev_net(base.as_ptr()) } {
        // SAFETY: `lowest` is valid as long as `readers`.
        true => unsafe { index(lowest) },
        false => own,
    }
}

/// Returns whether the frames of `netdev` are those of the network device below it.
///
/// # Safety
///
/// `netdev` must be valid.
unsafe fn is_transparent(netdev: *mut bindings::net_device) -> bool {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`). The operations are set
    // before the device is registered, and exist as long as the device. Before the driver's module
    // is unloaded, the driver deletes its devices, and waits for RCU readers and for references to
    // them (`rtnl_link_unregister()`, net/core/rtnetlink.c; `netdev_run_todo()`, net/core/dev.c).
    let ops = unsafe { (*netdev).rtnl_link_ops };
    if ops.is_null() {
        return false;
    }
    // SAFETY: `ops` is valid as long as the device. The kind is a constant string of the driver.
    let kind = unsafe { CStr::from_char_ptr((*ops).kind) };
    TRANSPARENT.contains(&kind)
}
