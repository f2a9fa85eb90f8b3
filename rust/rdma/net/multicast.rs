// SPDX-License-Identifier: GPL-2.0

//! Membership of network devices in multicast groups.
//!
//! A host that joins a group asks routers and switches for the group's packets, by IGMP or MLD, and
//! its network device accepts frames to the group's MAC address.

use kernel::{error::to_result, prelude::*};

use super::netdev::{Netdev, NetdevSlot};
use crate::{bindings, device::gid::Gid};

/// The RTNL, the lock on the configuration of network devices, held while the value exists.
struct Rtnl;

impl Rtnl {
    /// Takes the lock. Must be called in process context; sleeps.
    fn lock() -> Self {
        // SAFETY: `rtnl_lock()` requires process context only, as the callers' documentation does.
        // `drop` unlocks.
        unsafe { bindings::rtnl_lock() };
        Self
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        // SAFETY: `lock` took the lock in this thread.
        unsafe { bindings::rtnl_unlock() };
    }
}

impl NetdevSlot {
    /// Has the device join `group` and accept frames to the group's MAC address.
    ///
    /// Joins are counted, and [`Self::leave`] undoes one. Unregistering the device, or moving it to
    /// another namespace, ends all memberships. A [`super::netdev::Observer`] clears the slot
    /// before RTNL is released, so no join or leave comes in between.
    ///
    /// An MTU below 68 bytes ends the memberships in IPv4 groups (`inetdev_event()`). One below
    /// 1,280 bytes ends those in IPv6 groups, except on the loopback device (`addrconf_notify()`).
    /// A greater MTU does not restore them. If other code joins such a group afterwards, a leave
    /// undoes that join. The leave of a socket does the same.
    ///
    /// # Context
    ///
    /// Process context, without RTNL held; sleeps.
    ///
    /// # Errors
    ///
    /// Returns `ENODEV` if the slot is empty or the device does not support the group's version of
    /// IP; `ENOMEM` if there is no memory to join an IPv6 group. The kernel does not report that a
    /// join of an IPv4 group failed for lack of memory.
    pub fn join(&self, group: Gid) -> Result {
        let rtnl = Rtnl::lock();
        self.get().ok_or(ENODEV)?.join(group, &rtnl)
    }

    /// Has the device leave `group`, which [`Self::join`] joined. If the slot is empty, the device
    /// has left all groups.
    ///
    /// # Context
    ///
    /// Process context, without RTNL held; sleeps.
    pub fn leave(&self, group: Gid) {
        let rtnl = Rtnl::lock();
        if let Some(netdev) = self.get() {
            netdev.leave(group, &rtnl);
        }
    }
}

impl Netdev {
    /// Implements [`NetdevSlot::join`] with RTNL held.
    fn join(&self, group: Gid, _rtnl: &Rtnl) -> Result {
        match group.ipv4() {
            Some(address) => {
                // SAFETY: The device is valid by the type invariant, and RTNL keeps the result
                // valid.
                let inet = unsafe { bindings::__in_dev_get_rtnl(self.as_ptr()) };
                if inet.is_null() {
                    return Err(ENODEV);
                }
                // SAFETY: `inet` is not null, and RTNL keeps the result valid.
                unsafe { bindings::ip_mc_inc_group(inet, u32::from_ne_bytes(address)) };
                Ok(())
            }
            None => {
                let address = address(group);
                // SAFETY: The device is valid by the type invariant. The address outlives the call.
                to_result(unsafe { bindings::ipv6_dev_mc_inc(self.as_ptr(), &address) })
                    .map_err(|error| if error == EINVAL { ENODEV } else { error })
            }
        }
    }

    /// Implements [`NetdevSlot::leave`] with RTNL held.
    fn leave(&self, group: Gid, _rtnl: &Rtnl) {
        if let Some(address) = group.ipv4() {
            // SAFETY: The device is valid by the type invariant, and RTNL keeps the result valid.
            let inet = unsafe { bindings::__in_dev_get_rtnl(self.as_ptr()) };
            if !inet.is_null() {
                let address = u32::from_ne_bytes(address);
                // SAFETY: `inet` is not null, and RTNL keeps the result valid. The call has no
                // effect if the group is not joined.
                unsafe { bindings::__ip_mc_dec_group(inet, address, bindings::GFP_KERNEL) };
            }
        } else {
            let address = address(group);
            // SAFETY: The device is valid by the type invariant. The address outlives the call. An
            // error, which says that the group is not joined, needs no handling.
            unsafe { bindings::ipv6_dev_mc_dec(self.as_ptr(), &address) };
        }
    }
}

/// Returns `group` as an IPv6 address.
fn address(group: Gid) -> bindings::in6_addr {
    let mut address = bindings::in6_addr::default();
    address.in6_u.u6_addr8 = group.0;
    address
}
