// SPDX-License-Identifier: GPL-2.0

//! The GID table of a port, which ib_core keeps in step with the addresses of network devices.

use core::{mem::ManuallyDrop, ptr::NonNull};

use kernel::{error::from_err_ptr, ffi::c_int, sync::rcu};

use crate::{
    bindings,
    device::{gid::Gid, IbDevice},
    net::{
        lower::Lower,
        netdev::{self, Netdev},
    },
};

/// The only port of a device.
const PORT: u32 = 1;

/// A counted reference to an entry of the GID table (`struct ib_gid_attr`). The entry keeps its
/// GID and its type while the reference lives, even if its address goes away.
///
/// # Invariants
///
/// The entry is valid, and `self` owns a count of it.
pub(crate) struct GidEntry(NonNull<bindings::ib_gid_attr>);

impl GidEntry {
    /// Takes over the count of an entry that ib_core returned. Returns `None` if `found` is an
    /// error pointer.
    fn claim(found: *const bindings::ib_gid_attr) -> Option<Self> {
        // INVARIANT: A result that is no error pointer is a valid entry with a count, which the
        // result owns.
        NonNull::new(from_err_ptr(found.cast_mut()).ok()?).map(Self)
    }

    /// Returns an entry to which ib_core owns a count, or `None` if `source` is null. The result
    /// must not be dropped as a [`GidEntry`].
    ///
    /// # Safety
    ///
    /// `source` must be null, or a valid entry with a count that outlives the result.
    pub(crate) unsafe fn borrow(
        source: *const bindings::ib_gid_attr,
    ) -> Option<ManuallyDrop<Self>> {
        // INVARIANT: The caller guarantees a valid entry with a count (see `# Safety`). A
        // `ManuallyDrop` doesn't give the count up.
        let entry = NonNull::new(source.cast_mut()).map(Self);
        entry.map(ManuallyDrop::new)
    }

    /// Returns the address.
    pub(crate) fn gid(&self) -> Gid {
        // SAFETY: The entry is valid by the type invariant, and its GID doesn't change.
        Gid::from_raw(unsafe { &(*self.as_raw()).gid })
    }

    /// Returns whether the entry is for RoCEv2.
    pub(crate) fn is_routable(&self) -> bool {
        // SAFETY: The entry is valid by the type invariant, and its type doesn't change.
        let gid_type = unsafe { (*self.as_raw()).gid_type };
        gid_type == bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP
    }

    /// Returns the index of the network device that has the address, or 0 if the address is gone.
    pub(crate) fn netdev_index(&self) -> u32 {
        let _readers = rcu::read_lock();
        // SAFETY: The entry is valid by the type invariant, and the RCU read lock is held.
        let netdev = from_err_ptr(unsafe { bindings::rdma_read_gid_attr_ndev_rcu(self.as_raw()) });
        netdev.map_or(0, |netdev| {
            // SAFETY: A result that is no error pointer is a valid device, which RCU keeps alive.
            unsafe { netdev::index(netdev) }
        })
    }

    /// Returns the C structure, which is valid as long as `self`. ib_core may change its network
    /// device meanwhile.
    fn as_raw(&self) -> *const bindings::ib_gid_attr {
        self.0.as_ptr()
    }
}

impl Drop for GidEntry {
    fn drop(&mut self) {
        // SAFETY: `self` owns the count by the type invariant, and gives it up here.
        unsafe { bindings::rdma_put_gid_attr(self.0.as_ptr()) };
    }
}

impl IbDevice {
    /// Returns whether the port's GID table exists. ib_core creates it during the registration, and
    /// frees it with the device's memory.
    fn has_gid_table(&self) -> bool {
        // SAFETY: `self` shows that the device's memory is valid.
        let ports = unsafe { (&raw const (*self.as_raw()).port_data).read_volatile() };
        if ports.is_null() {
            return false;
        }
        // SAFETY: The device has port 1 by the invariant of `IbDevice`. ib_core indexes its array
        // of ports by the port's number, and frees it with the device.
        let port = unsafe { &raw const (*ports.add(PORT as usize)).cache };
        // SAFETY: `port` is valid, as shown above.
        !unsafe { (&raw const (*port).gid).read_volatile() }.is_null()
    }

    /// Returns the entry at `index` of the table, if it is a RoCEv2 address. Returns `None` before
    /// the registration. Any context but hard interrupts.
    pub(crate) fn gid_at(&self, index: u8) -> Option<GidEntry> {
        if !self.has_gid_table() {
            return None;
        }
        // SAFETY: The device's memory is valid, and so is the table, as was just checked.
        let found = unsafe { bindings::rdma_get_gid_attr(self.as_raw(), PORT, index.into()) };
        GidEntry::claim(found).filter(GidEntry::is_routable)
    }

    /// Returns the VLAN ID of network device `netdev_index` in the namespace of `netdev`. Returns
    /// `None` before the registration, if `gid` is not one of that device's RoCEv2 addresses in the
    /// table, or if neither that device nor the first one below it is a VLAN device. Any context
    /// but hard interrupts.
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
        // SAFETY: The device's memory and the table are valid, as was just checked. The GID
        // outlives the call, and the network device lives as long as `readers`.
        let found = unsafe {
            bindings::rdma_find_gid_by_port(self.as_raw(), &gid.to_raw(), gid_type, PORT, on)
        };
        GidEntry::claim(found)?;
        // `rdma_read_gid_l2_fields()` is not suitable: it reads the entry's network device twice,
        // and ib_core may clear that pointer between the reads (`del_gid()`,
        // drivers/infiniband/core/cache.c).
        // SAFETY: The network device lives as long as `readers`.
        unsafe { vlan_of(on, &readers) }
    }
}

/// Returns the VLAN ID of `netdev` if it is a VLAN device, otherwise that of the first network
/// device below it if that is one. ib_core looks at the same two devices, since a macvlan or a
/// bridge may be on top of a VLAN.
///
/// # Safety
///
/// `netdev` must be valid as long as `readers`.
unsafe fn vlan_of(netdev: *mut bindings::net_device, readers: &rcu::Guard) -> Option<u16> {
    // SAFETY: The caller guarantees that `netdev` is valid as long as `readers`.
    let below = unsafe { Lower::of(netdev, readers) }.next();
    // SAFETY: Both network devices are valid as long as `readers`.
    let is_vlan = |netdev: &*mut bindings::net_device| unsafe { bindings::is_vlan_dev(*netdev) };
    let vlan = Some(netdev).filter(is_vlan).or(below.filter(is_vlan))?;
    // SAFETY: `vlan` is valid as long as `readers`, and it is a VLAN device.
    Some(unsafe { bindings::vlan_dev_vlan_id(vlan) })
}
