// SPDX-License-Identifier: GPL-2.0

//! Global identifiers: the addresses of RoCEv2, which are IP addresses.

use crate::{
    bindings,
    net::{
        netdev::{self, Netdev},
        netns::NetId,
        segment::segment_of,
    },
};

/// A GID: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

/// The IP version that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Where a port has an address.
///
/// # Invariants
///
/// `netdev` is valid for `'a`.
pub struct GidPlace<'a> {
    netdev: *mut bindings::net_device,
    /// Read once: it may change when the network device goes to another namespace.
    netdev_index: u32,
    base: &'a Netdev,
}

impl<'a> GidPlace<'a> {
    /// On `netdev`, of a port on `base`.
    ///
    /// # Safety
    ///
    /// `netdev` must be valid for `'a`.
    pub(crate) unsafe fn new(netdev: *mut bindings::net_device, base: &'a Netdev) -> Self {
        // SAFETY: As the caller promises.
        let netdev_index = unsafe { netdev::index(netdev) };
        // INVARIANT: As the caller promises.
        Self {
            netdev,
            netdev_index,
            base,
        }
    }

    /// The namespace of the network device. ib_core also tells of addresses in others, on devices on top of the port's.
    pub fn net(&self) -> NetId {
        // SAFETY: By the type invariant.
        NetId::of(unsafe { bindings::dev_net(self.netdev) })
    }

    /// Index of the network device that has the address.
    pub fn netdev_index(&self) -> u32 {
        self.netdev_index
    }

    /// Index of the lowest network device on the same segment: frames of the two reach the same stations unchanged. Looks
    /// through the network devices below. Process context.
    pub fn segment(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { segment_of(self.netdev, self.base) }
    }
}

impl Gid {
    pub(crate) fn from_raw(raw: &bindings::ib_gid) -> Self {
        // SAFETY: All variants of the union are 16 plain bytes.
        Self(unsafe { raw.raw })
    }

    pub(crate) fn to_raw(self) -> bindings::ib_gid {
        bindings::ib_gid { raw: self.0 }
    }

    /// The GID of an IPv4 address.
    pub fn from_ipv4([a, b, c, d]: [u8; 4]) -> Self {
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address, if it is one (`::ffff:a.b.c.d`, RFC 4291 §2.5.5.2).
    #[inline]
    pub fn ipv4(&self) -> Option<[u8; 4]> {
        let word = u128::from_be_bytes(self.0);
        (word >> 32 == 0xffff).then(|| (word as u32).to_be_bytes())
    }

    /// Whether it names a group: 224.0.0.0/4 or ff00::/8.
    #[inline]
    pub fn is_multicast(&self) -> bool {
        match self.ipv4() {
            Some([first, ..]) => first >> 4 == 0xe,
            None => matches!(self.0, [0xff, ..]),
        }
    }

    /// Which network it belongs to.
    pub fn network(&self) -> Network {
        match self.ipv4() {
            Some(_) => Network::V4,
            None => Network::V6,
        }
    }
}
