// SPDX-License-Identifier: GPL-2.0

//! The network segments on top of a network device.
//!
//! Network devices are on one segment if their frames reach the same stations unchanged: a macvlan
//! or a bridge and the network device below it are, a VLAN or a MACsec device and the one below it are
//! not.

use kernel::{
    ffi::c_int,
    str::{CStr, CStrExt},
    sync::rcu,
};

use super::netdev::{index, Netdev};
use crate::bindings;

/// Kinds (`rtnl_link_ops.kind`) whose frames are those of the network device below.
const TRANSPARENT: [&CStr; 8] = [
    c"bond", c"bridge", c"ipvlan", c"ipvtap", c"macvlan", c"macvtap", c"team", c"vrf",
];

/// Network devices that a search looks at, counted once for each way that leads down to them: there are as many ways as the
/// product of what lies on each level. A search takes some milliseconds at most.
const MOST_LOOKED_AT: u32 = 1 << 16;

/// A search below a network device.
struct Search {
    base: *mut bindings::net_device,
    found: Option<u32>,
    /// How many network devices may yet be looked at.
    left: u32,
}

impl Search {
    /// Counts a network device that is looked at. Returns whether the search goes on.
    fn goes_on(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}

/// The segment of `netdev`, a network device on top of `base`, or that itself. It is named by the index
/// of the lowest network device on it, which is `base`, or one whose frames differ from those of the
/// devices below it. Process context.
///
/// A transparent device may have several devices on top of `base` below it. The first one counts. A device with too many
/// devices below it ([`MOST_LOOKED_AT`]) is on a segment of its own.
///
/// # Safety
///
/// `netdev` must be valid.
pub(crate) unsafe fn segment_of(netdev: *mut bindings::net_device, base: &Netdev) -> u32 {
    // SAFETY: The caller's promise.
    let own = unsafe { index(netdev) };
    // SAFETY: As above.
    if netdev == base.as_ptr() || !unsafe { is_transparent(netdev) } {
        return own;
    }
    let mut search = Search {
        base: base.as_ptr(),
        found: None,
        left: MOST_LOOKED_AT,
    };
    let mut nested = bindings::netdev_nested_priv {
        data: (&raw mut search).cast(),
        ..Default::default()
    };
    let readers = rcu::read_lock();
    // SAFETY: RCU is held for reading, `netdev` is valid, and `visit` gets the search that it expects.
    unsafe { bindings::netdev_walk_all_lower_dev_rcu(netdev, Some(visit), &mut nested) };
    drop(readers);
    search.found.unwrap_or(own)
}

/// Ends the walk, by a result other than zero, at the first network device that bears a segment.
///
/// # Safety
///
/// To be called by `netdev_walk_all_lower_dev_rcu()` with a [`Search`] as the data.
unsafe extern "C" fn visit(
    lower: *mut bindings::net_device,
    nested: *mut bindings::netdev_nested_priv,
) -> c_int {
    // SAFETY: The data is a search that nobody else uses meanwhile.
    let search = unsafe { &mut *(*nested).data.cast::<Search>() };
    if !search.goes_on() {
        return 1;
    }
    let bears = lower == search.base
        // SAFETY: The device is valid; the caller of the walk holds RCU for reading.
        || (!unsafe { is_transparent(lower) }
            // SAFETY: As above.
            && unsafe { is_on_top(lower, search) });
    if !bears {
        return 0;
    }
    // A lower device may have gone to another namespace, where its index may be that of any device here.
    // SAFETY: As above.
    if unsafe { bindings::dev_net(lower) == bindings::dev_net(search.base) } {
        // SAFETY: As above.
        search.found = Some(unsafe { index(lower) });
    }
    1
}

/// Whether `netdev` is on top of the base of the search, as far as the search may look.
///
/// # Safety
///
/// `netdev` must be valid, and RCU held for reading.
unsafe fn is_on_top(netdev: *mut bindings::net_device, search: &mut Search) -> bool {
    let mut nested = bindings::netdev_nested_priv {
        data: core::ptr::from_mut(search).cast(),
        ..Default::default()
    };
    // SAFETY: As the caller promises, and `is_base` gets the search that it expects.
    let ended =
        unsafe { bindings::netdev_walk_all_lower_dev_rcu(netdev, Some(is_base), &mut nested) };
    ended != 0 && search.left > 0
}

/// Ends the walk, by a result other than zero, at the base of the search, or if the search may look no further.
///
/// # Safety
///
/// As for [`visit`].
unsafe extern "C" fn is_base(
    lower: *mut bindings::net_device,
    nested: *mut bindings::netdev_nested_priv,
) -> c_int {
    // SAFETY: The data is a search that nobody else uses meanwhile.
    let search = unsafe { &mut *(*nested).data.cast::<Search>() };
    c_int::from(!search.goes_on() || lower == search.base)
}

/// Whether the frames of `netdev` are those of the network device below it.
///
/// # Safety
///
/// `netdev` must be valid.
unsafe fn is_transparent(netdev: *mut bindings::net_device) -> bool {
    // SAFETY: The caller's promise; the operations are set before the registration. They stay while the
    // device is valid: its driver deletes all of its devices, and waits for readers under RCU and for
    // counts of them, before it goes (`rtnl_link_unregister()`, net/core/rtnetlink.c;
    // `netdev_run_todo()`, net/core/dev.c).
    let ops = unsafe { (*netdev).rtnl_link_ops };
    if ops.is_null() {
        return false;
    }
    // SAFETY: Valid, as above; the kind is a constant text of the driver.
    let kind = unsafe { CStr::from_char_ptr((*ops).kind) };
    TRANSPARENT.contains(&kind)
}
