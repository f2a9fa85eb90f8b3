// SPDX-License-Identifier: GPL-2.0

//! The network segments on top of a network device.
//!
//! Network devices are on one segment if their frames reach the same stations unchanged: a macvlan
//! or a bridge and the network device below it are, a VLAN or a MACsec device and the one below it are
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

/// Kinds (`rtnl_link_ops.kind`) whose frames are those of the network device below.
const TRANSPARENT: [&CStr; 8] = [
    c"bond", c"bridge", c"ipvlan", c"ipvtap", c"macvlan", c"macvtap", c"team", c"vrf",
];

/// Network devices that a search looks at, counted once for each way that leads down to them: there are as many ways as the
/// product of what lies on each level. A search takes some milliseconds at most.
const MOST_LOOKED_AT: u32 = 1 << 16;

/// Levels below a network device that a search looks at. The kernel allows no more at any one time (`MAX_NEST_DEV`,
/// `__netdev_upper_dev_link()`), but a search may find more of them while the devices change.
const LEVELS: u32 = bindings::MAX_NEST_DEV;

/// A search below a network device for another one.
struct Search<'a> {
    base: *mut bindings::net_device,
    /// How many network devices may yet be looked at.
    left: u32,
    readers: &'a rcu::Guard,
}

/// Whether a search ends at the network device that it has come to.
type Look<'s, 'a> = &'s mut dyn FnMut(&mut Search<'a>, *mut bindings::net_device) -> bool;

impl<'a> Search<'a> {
    /// Whether `look` says so of one of the network devices on `levels` levels below `netdev`, as far as the search may look.
    /// It ends there.
    ///
    /// # Safety
    ///
    /// `netdev` must be valid as long as `self.readers`.
    unsafe fn finds(
        &mut self,
        netdev: *mut bindings::net_device,
        levels: u32,
        look: Look<'_, 'a>,
    ) -> bool {
        // SAFETY: The caller's promise.
        for lower in unsafe { Lower::of(netdev, self.readers) } {
            self.left = if levels == 0 {
                0
            } else {
                self.left.saturating_sub(1)
            };
            if self.left == 0 {
                // Nor does it go on elsewhere.
                return false;
            }
            // SAFETY: `lower` is valid as long as `self.readers`.
            if look(self, lower) || unsafe { self.finds(lower, levels.saturating_sub(1), look) } {
                return true;
            }
        }
        false
    }

    /// Whether `netdev` is on top of the base, as far as the search may look.
    ///
    /// # Safety
    ///
    /// As for [`Self::finds`].
    unsafe fn is_on_base(&mut self, netdev: *mut bindings::net_device) -> bool {
        // SAFETY: The caller's promise.
        unsafe { self.finds(netdev, LEVELS, &mut |search, lower| lower == search.base) }
    }
}

/// The segment of `netdev`, a network device on top of `base`, or that itself. It is named by the index
/// of the lowest network device on it, which is `base`, or one whose frames differ from those of the
/// devices below it. Process context.
///
/// A transparent device may have several devices on top of `base` below it. The first one counts. A device with too many
/// devices or levels below it ([`MOST_LOOKED_AT`], [`LEVELS`]) is on a segment of its own.
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
    let readers = rcu::read_lock();
    let mut search = Search {
        base: base.as_ptr(),
        left: MOST_LOOKED_AT,
        readers: &readers,
    };
    let mut bearer = None;
    let mut bears = |search: &mut Search<'_>, lower| {
        let bears = lower == search.base
            // SAFETY: The device is valid as long as `readers`.
            || (!unsafe { is_transparent(lower) }
                // SAFETY: As above.
                && unsafe { search.is_on_base(lower) });
        if bears {
            bearer = Some(lower);
        }
        bears
    };
    // SAFETY: `netdev` is valid by the caller's promise.
    unsafe { search.finds(netdev, LEVELS, &mut bears) };
    let Some(bearer) = bearer else {
        return own;
    };
    // A lower device may have gone to another namespace, where its index may be that of any device here.
    // SAFETY: Both are valid as long as `readers`.
    match unsafe { bindings::dev_net(bearer) == bindings::dev_net(base.as_ptr()) } {
        // SAFETY: As above.
        true => unsafe { index(bearer) },
        false => own,
    }
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
