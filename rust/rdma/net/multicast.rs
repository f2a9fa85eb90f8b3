// SPDX-License-Identifier: GPL-2.0

//! Joining multicast groups: the host asks routers and switches for a group's packets, and its
//! network device lets them in.

use kernel::{error::to_result, prelude::*};

use super::netdev::{Netdev, NetdevSlot};
use crate::{bindings, device::gid::Gid};

/// The lock on the configuration of network devices, held while this lives.
struct Rtnl;

impl Rtnl {
    fn lock() -> Self {
        // SAFETY: No requirements; `drop` unlocks.
        unsafe { bindings::rtnl_lock() };
        Self
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        // SAFETY: Locked by `lock`, in this very thread.
        unsafe { bindings::rtnl_unlock() };
    }
}

impl NetdevSlot {
    /// Has the device join `group`, by IGMP or MLD, and receive the MAC address that belongs to it.
    /// Joins are counted; [`Self::leave`] undoes one. All are void once the device is unregistered, or in another
    /// namespace: an observer of network devices empties the slot under the RTNL lock before that.
    ///
    /// # Context
    ///
    /// Process, without the RTNL lock; sleeps.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the slot is empty, or the device doesn't do this version of IP; `ENOMEM`.
    pub fn join(&self, group: Gid) -> Result {
        let rtnl = Rtnl::lock();
        self.get().ok_or(ENODEV)?.join(group, &rtnl)
    }

    /// Has the device leave `group`, which [`Self::join`] joined. If the slot is empty the device has left all its groups.
    ///
    /// # Context
    ///
    /// Process, without the RTNL lock; sleeps.
    pub fn leave(&self, group: Gid) {
        let rtnl = Rtnl::lock();
        if let Some(netdev) = self.get() {
            netdev.leave(group, &rtnl);
        }
    }
}

impl Netdev {
    fn join(&self, group: Gid, _rtnl: &Rtnl) -> Result {
        match group.ipv4() {
            Some(address) => {
                // SAFETY: The device is valid, and RTNL keeps what is found.
                let inet = unsafe { bindings::__in_dev_get_rtnl(self.as_ptr()) };
                if inet.is_null() {
                    return Err(ENODEV);
                }
                // SAFETY: As above.
                unsafe { bindings::ip_mc_inc_group(inet, u32::from_ne_bytes(address)) };
                Ok(())
            }
            None => {
                let address = address(group);
                // SAFETY: The device is valid; the address outlives the call.
                to_result(unsafe { bindings::ipv6_dev_mc_inc(self.as_ptr(), &address) })
                    .map_err(|error| if error == EINVAL { ENODEV } else { error })
            }
        }
    }

    fn leave(&self, group: Gid, _rtnl: &Rtnl) {
        if let Some(address) = group.ipv4() {
            // SAFETY: The device is valid, and RTNL keeps what is found.
            let inet = unsafe { bindings::__in_dev_get_rtnl(self.as_ptr()) };
            if !inet.is_null() {
                let address = u32::from_ne_bytes(address);
                // SAFETY: As above; a group that isn't joined is left alone.
                unsafe { bindings::__ip_mc_dec_group(inet, address, bindings::GFP_KERNEL) };
            }
        } else {
            let address = address(group);
            // SAFETY: The device is valid; the address outlives the call. That the group isn't
            // joined any more is as good.
            unsafe { bindings::ipv6_dev_mc_dec(self.as_ptr(), &address) };
        }
    }
}

fn address(group: Gid) -> bindings::in6_addr {
    let mut address = bindings::in6_addr::default();
    address.in6_u.u6_addr8 = group.0;
    address
}
