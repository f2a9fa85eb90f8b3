// SPDX-License-Identifier: GPL-2.0

//! Global identifiers (GIDs): the addresses of RoCEv2, which are IP addresses.

use crate::{
    bindings,
    net::{
        netdev::{self, Netdev},
        netns::NetnsId,
        segment::segment_of,
    },
};

/// A GID: an IPv6 address, or an IPv4 address in an IPv4-mapped IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

/// The IP version of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The network device that has a GID of a port.
///
/// # Invariants
///
/// `netdev` is valid for `'a`.
pub struct GidNetdev<'a> {
    netdev: *mut bindings::net_device,
    /// The index, read once: it may change when the network device moves to another namespace.
    netdev_index: u32,
    base: &'a Netdev,
}

impl<'a> GidNetdev<'a> {
    /// Creates the value for network device `netdev`, which has a GID of a port on network device
    /// `base`.
    ///
    /// # Safety
    ///
    /// `netdev` must be valid for `'a`.
    pub(crate) unsafe fn new(netdev: *mut bindings::net_device, base: &'a Netdev) -> Self {
        // SAFETY: The caller guarantees that `netdev` is valid for `'a` (see `# Safety`).
        let netdev_index = unsafe { netdev::index(netdev) };
        // INVARIANT: The caller guarantees that `netdev` is valid for `'a`.
        Self {
            netdev,
            netdev_index,
            base,
        }
    }

    /// Returns the namespace of the network device. ib_core also tells the driver of addresses in
    /// other namespaces than the port's, on network devices on top of the port's.
    pub fn net(&self) -> NetnsId {
        // SAFETY: `netdev` is valid by the type invariant.
        NetnsId::of(unsafe { bindings::dev_net(self.netdev) })
    }

    /// Returns the index of the network device that has the GID.
    pub fn netdev_index(&self) -> u32 {
        self.netdev_index
    }

    /// Returns the index of the lowest network device on the network segment of the GID's network
    /// device: frames of either reach the same stations unchanged. Walks the network devices below
    /// the GID's. Process context.
    pub fn segment(&self) -> u32 {
        // SAFETY: `netdev` is valid by the type invariant.
        unsafe { segment_of(self.netdev, self.base) }
    }
}

impl Gid {
    /// Converts a C GID.
    pub(crate) fn from_raw(raw: &bindings::ib_gid) -> Self {
        // SAFETY: All members of the union are 16 bytes for which every value is valid.
        Self(unsafe { raw.raw })
    }

    /// Converts the GID to C.
    pub(crate) fn to_raw(self) -> bindings::ib_gid {
        bindings::ib_gid { raw: self.0 }
    }

    /// Creates the GID of an IPv4 address.
    pub fn from_ipv4([a, b, c, d]: [u8; 4]) -> Self {
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// Returns the IPv4 address, or `None` if the GID is an IPv6 address (RFC 4291 §2.5.5.2:
    /// `::ffff:a.b.c.d`).
    #[inline]
    pub fn ipv4(&self) -> Option<[u8; 4]> {
        let word = u128::from_be_bytes(self.0);
        (word >> 32 == 0xffff).then(|| (word as u32).to_be_bytes())
    }

    /// Returns whether the GID is a multicast address: 224.0.0.0/4 or ff00::/8.
    #[inline]
    pub fn is_multicast(&self) -> bool {
        match self.ipv4() {
            Some([first, ..]) => first >> 4 == 0xe,
            None => matches!(self.0, [0xff, ..]),
        }
    }

    /// Returns the IP version.
    pub fn network(&self) -> Network {
        match self.ipv4() {
            Some(_) => Network::V4,
            None => Network::V6,
        }
    }
}
