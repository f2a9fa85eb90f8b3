// SPDX-License-Identifier: GPL-2.0

//! A port's table of GIDs, which ib_core keeps in step with the addresses of network devices.

use core::ptr::NonNull;

use kernel::{error::from_err_ptr, ffi::c_int, sync::rcu};

use crate::{
    bindings,
    device::{gid::Gid, IbDevice},
    net::{lower::Lower, netdev::Netdev},
};

/// The only port of a device.
const PORT: u32 = 1;

/// An entry of the table. It keeps its contents while this lives, even if its address goes away.
///
/// # Invariants
///
/// The entry is valid, and `self` owns a count of it.
pub(crate) struct GidEntry(NonNull<bindings::ib_gid_attr>);

impl GidEntry {
    /// The entry that ib_core returned with a count for us; `None` if that is an error.
    fn claim(found: *const bindings::ib_gid_attr) -> Option<Self> {
        // INVARIANT: What isn't an error is a valid entry with a count.
        NonNull::new(from_err_ptr(found.cast_mut()).ok()?).map(Self)
    }

    /// The address.
    pub(crate) fn gid(&self) -> Gid {
        Gid::from_raw(&self.as_raw().gid)
    }

    /// Its packets are those of RoCEv2.
    fn is_routable(&self) -> bool {
        self.as_raw().gid_type == bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP
    }

    /// The C structure.
    pub(crate) fn as_raw(&self) -> &bindings::ib_gid_attr {
        // SAFETY: Valid by the type invariant; what is read of it doesn't change.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for GidEntry {
    fn drop(&mut self) {
        // SAFETY: The count is owned by the type invariant.
        unsafe { bindings::rdma_put_gid_attr(self.0.as_ptr()) };
    }
}

impl IbDevice {
    /// Whether the port has its table. ib_core makes it during the registration; it lasts as long as the device's memory.
    fn has_gid_table(&self) -> bool {
        // SAFETY: The memory of the device is valid.
        let ports = unsafe { (&raw const (*self.as_raw()).port_data).read_volatile() };
        if ports.is_null() {
            return false;
        }
        // SAFETY: The device has port 1 by the invariant of `IbDevice`. ib_core indexes its array of ports by the port's
        // number, and frees it with the device.
        let port = unsafe { &raw const (*ports.add(PORT as usize)).cache };
        // SAFETY: As above.
        !unsafe { (&raw const (*port).gid).read_volatile() }.is_null()
    }

    /// The RoCEv2 address at `index` of the table, if there is one: none before the registration. Any context but hard
    /// interrupts.
    pub(crate) fn gid_at(&self, index: u8) -> Option<GidEntry> {
        if !self.has_gid_table() {
            return None;
        }
        // SAFETY: The memory is valid, and so is the table, as was just checked.
        let found = unsafe { bindings::rdma_get_gid_attr(self.as_raw(), PORT, index.into()) };
        GidEntry::claim(found).filter(GidEntry::is_routable)
    }

    /// The VLAN of the network device of index `netdev_index`, in the namespace of `netdev`, if `gid` is one of its RoCEv2
    /// addresses in the table and it is in a VLAN: none before the registration. Any context but hard interrupts.
    pub fn vlan_of(&self, gid: Gid, netdev: &Netdev, netdev_index: u32) -> Option<u16> {
        if !self.has_gid_table() {
            return None;
        }
        let gid_type = bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP;
        let readers = rcu::read_lock();
        // SAFETY: The namespace lives as long as `readers`.
        let on =
            unsafe { bindings::dev_get_by_index_rcu(netdev.net(&readers), netdev_index as c_int) };
        if on.is_null() {
            return None;
        }
        // SAFETY: As in `gid_at`; the address outlives the call, and the network device lives as long as `readers`.
        let found = unsafe {
            bindings::rdma_find_gid_by_port(self.as_raw(), &gid.to_raw(), gid_type, PORT, on)
        };
        GidEntry::claim(found)?;
        // Not by `rdma_read_gid_l2_fields()`: it reads the entry's network device twice, and ib_core may clear it meanwhile
        // (`del_gid()`, drivers/infiniband/core/cache.c).
        // SAFETY: As above.
        unsafe { vlan_of(on, &readers) }
    }
}

/// The VLAN of `netdev`, or of the first network device below it, if that is in one: as ib_core sees it, for a macvlan or a
/// bridge may be on top of a VLAN.
///
/// # Safety
///
/// `netdev` must be valid as long as `readers`.
unsafe fn vlan_of(netdev: *mut bindings::net_device, readers: &rcu::Guard) -> Option<u16> {
    // SAFETY: The caller's promise.
    let below = unsafe { Lower::of(netdev, readers) }.next();
    // SAFETY: Both are valid as long as `readers`.
    let is_vlan = |netdev: &*mut bindings::net_device| unsafe { bindings::is_vlan_dev(*netdev) };
    let vlan = Some(netdev).filter(is_vlan).or(below.filter(is_vlan))?;
    // SAFETY: As above, and it is a VLAN.
    Some(unsafe { bindings::vlan_dev_vlan_id(vlan) })
}
