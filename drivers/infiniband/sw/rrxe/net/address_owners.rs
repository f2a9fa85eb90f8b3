// SPDX-License-Identifier: GPL-2.0

//! The addresses (GIDs) of a namespace's RDMA devices, and the network devices that have them.
//!
//! ib_core keeps a port's GIDs in an array of 256 entries, and a search of that array visits each
//! entry. The trees of this file hold the same entries sorted by address. So a packet finds its
//! device in a few steps, whatever its address. ib_core keeps them up to date by the operations
//! `add_gid` and `del_gid`.

use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::atomic::{ordering::Relaxed, Atomic},
};
use rdma::{
    device::gid::{Gid, GidNetdev},
    net::skb::Ingress,
    new_bh_spinlock,
    support::sync::BhSpinLock,
};

/// Identifier of the link (`device/link.rs`) that has an address. Unique within a namespace, and
/// never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(u64);

/// An address of a link on a network device: the key of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AddressOwner {
    /// The address as a GID, in network byte order.
    address: [u8; 16],
    /// Index of the network device that has the address.
    netdev_index: u32,
    /// Link that has the address.
    link: LinkId,
}

impl AddressOwner {
    /// Returns the least key of this address on this network device.
    fn first(gid: Gid, netdev_index: u32) -> Self {
        Self {
            address: gid.0,
            netdev_index,
            link: LinkId(0),
        }
    }
}

/// A network device with addresses of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    netdev_index: u32,
    link: LinkId,
}

/// The layer-2 segment of a [`Port`].
struct PortSegment {
    /// Segment of the network device ([`GidNetdev::segment`]).
    segment: u32,
    /// Number of entries of ib_core's GID table on this network device.
    entries: u32,
}

/// The two trees of a namespace, under one lock.
struct Trees {
    /// Number of equal entries of ib_core's GID table, by address, network device and link.
    address_owners: RBTree<AddressOwner, u32>,
    /// Network devices that have addresses of a link, with their segments.
    ports: RBTree<Port, PortSegment>,
}

impl Trees {
    /// Returns whether a packet that came in through `ingress` may be for an address of `link` on
    /// the network device with index `owner_index`. It may if it came in through that network
    /// device, or through another network device that has addresses of the link and is on the same
    /// segment. Linux responds to ARP requests for an address on all network devices
    /// (`arp_ignore`). So a macvlan and the network device under it receive each other's packets.
    fn is_reachable(&self, ingress: Ingress, owner_index: u32, link: LinkId) -> bool {
        let segment = |netdev_index| {
            let port = Port { netdev_index, link };
            self.ports.get(&port).map(|known| known.segment)
        };
        let ingress_index = ingress.port();
        ingress.is_by(owner_index)
            || segment(ingress_index).is_some_and(|arrived| segment(owner_index) == Some(arrived))
    }

    /// Returns an entry with the address `gid` for which `wanted` and [`Self::is_reachable`] return
    /// true. An entry on the network device `ingress`, through which the packet came in, is
    /// preferred to entries on other network devices of the segment. A packet of this host has no
    /// `ingress`: any entry for which `wanted` returns true will do.
    fn find_reachable(
        &self,
        gid: Gid,
        ingress: Ingress,
        wanted: impl Fn(&AddressOwner) -> bool,
    ) -> Option<AddressOwner> {
        if ingress.is_none() {
            return self.find(gid, wanted);
        }
        let on_netdev = |owner: &AddressOwner| wanted(owner) && ingress.is_by(owner.netdev_index);
        let on_segment = |owner: &AddressOwner| {
            wanted(owner) && self.is_reachable(ingress, owner.netdev_index, owner.link)
        };
        self.find(gid, on_netdev)
            .or_else(|| self.find(gid, on_segment))
    }

    /// Returns the first entry with this address for which `wanted` returns true. Takes one step
    /// for each network device with that address.
    fn find(&self, gid: Gid, wanted: impl Fn(&AddressOwner) -> bool) -> Option<AddressOwner> {
        let mut least = AddressOwner::first(gid, 0);
        while let Some(cursor) = self.address_owners.cursor_lower_bound(&least) {
            let (owner, _) = cursor.current();
            if owner.address != gid.0 {
                return None;
            }
            if wanted(owner) {
                return Some(*owner);
            }
            let LinkId(passed) = owner.link;
            least = AddressOwner {
                link: LinkId(passed.wrapping_add(1)),
                ..*owner
            };
        }
        None
    }
}

/// All addresses of the RDMA devices of a namespace. No other lock is taken under the lock of the
/// trees.
#[pin_data]
pub(crate) struct AddressOwners {
    #[pin]
    trees: BhSpinLock<Trees>,
    /// Number of links so far.
    links: Atomic<u64>,
    /// Number of changes of the trees.
    changes: Atomic<u64>,
}

impl AddressOwners {
    /// Initialises trees without addresses.
    pub(crate) fn new() -> impl PinInit<Self> {
        let trees = Trees {
            address_owners: RBTree::new(),
            ports: RBTree::new(),
        };
        pin_init!(Self {
            trees <- new_bh_spinlock!(trees, "rrxe_address_owners"),
            links: Atomic::new(0),
            changes: Atomic::new(0),
        })
    }

    /// Returns the identifier of a new link. Any context.
    pub(crate) fn new_link(&self) -> LinkId {
        LinkId(self.links.fetch_add(1, Relaxed))
    }

    /// Returns the number of changes so far. A caller that gets the same number again need not look
    /// an address up again. The caller must read the number before it looks the address up. Any
    /// context.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Adds `gid` as an address of `link` on the network device `netdev`. Process context;
    /// sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add(&self, gid: Gid, netdev: GidNetdev<'_>, link: LinkId) -> Result {
        let netdev_index = netdev.netdev_index();
        let owner = AddressOwner {
            link,
            ..AddressOwner::first(gid, netdev_index)
        };
        let port = Port { netdev_index, link };
        let segment = netdev.segment();
        let port_segment = PortSegment {
            segment,
            entries: 1,
        };
        let new_owner = RBTreeNode::new(owner, 1, GFP_KERNEL)?;
        let new_port = RBTreeNode::new(port, port_segment, GFP_KERNEL)?;
        let mut trees = self.trees.lock();
        match trees.address_owners.get_mut(&owner) {
            Some(entries) => *entries = entries.saturating_add(1),
            None => drop(trees.address_owners.insert(new_owner)),
        }
        match trees.ports.get_mut(&port) {
            Some(known) => {
                known.entries = known.entries.saturating_add(1);
                known.segment = segment;
            }
            None => drop(trees.ports.insert(new_port)),
        }
        self.changes.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Undoes one [`Self::add`]. Any context but hard interrupts.
    pub(crate) fn remove(&self, gid: Gid, netdev_index: u32, link: LinkId) {
        let owner = AddressOwner {
            link,
            ..AddressOwner::first(gid, netdev_index)
        };
        let port = Port { netdev_index, link };
        let mut trees = self.trees.lock();
        if let Some(entries) = trees.address_owners.get_mut(&owner) {
            *entries = entries.saturating_sub(1);
            if *entries == 0 {
                drop(trees.address_owners.remove_node(&owner));
            }
        }
        if let Some(known) = trees.ports.get_mut(&port) {
            known.entries = known.entries.saturating_sub(1);
            if known.entries == 0 {
                drop(trees.ports.remove_node(&port));
            }
        }
        self.changes.fetch_add(1, Relaxed);
    }

    /// Returns the link that a packet to `gid` is for. A packet from outside must have come in
    /// through a network device that has the address, which is preferred, or through one with other
    /// addresses of the link on the same segment ([`Trees::is_reachable`]). Any context but hard
    /// interrupts.
    pub(crate) fn link_at(&self, gid: Gid, ingress: Ingress) -> Option<LinkId> {
        let found = self.trees.lock().find_reachable(gid, ingress, |_| true);
        found.map(|owner| owner.link)
    }

    /// Returns the index of the network device of `link` with the address `gid` that a packet is
    /// for, by the rules of [`Self::link_at`]. Any context but hard interrupts.
    pub(crate) fn netdev_at(&self, gid: Gid, ingress: Ingress, link: LinkId) -> Option<u32> {
        let of_link = |owner: &AddressOwner| owner.link == link;
        let found = self.trees.lock().find_reachable(gid, ingress, of_link);
        found.map(|owner| owner.netdev_index)
    }

    /// Returns whether a packet to `gid` may be for `link`, by the rules of [`Self::link_at`]. Any
    /// context but hard interrupts.
    pub(crate) fn is_at(&self, gid: Gid, ingress: Ingress, link: LinkId) -> bool {
        self.netdev_at(gid, ingress, link).is_some()
    }

    /// Returns whether `gid` is an address of `link`. Any context but hard interrupts.
    pub(crate) fn has(&self, gid: Gid, link: LinkId) -> bool {
        self.is_at(gid, Ingress::default(), link)
    }

    /// Returns whether `gid` is an address of `link` on the network device with this index. Any
    /// context but hard interrupts.
    pub(crate) fn has_on(&self, gid: Gid, netdev_index: u32, link: LinkId) -> bool {
        let owner = AddressOwner {
            link,
            ..AddressOwner::first(gid, netdev_index)
        };
        self.trees.lock().address_owners.get(&owner).is_some()
    }

    /// Returns whether a packet that came in through `ingress` may be for an address of `link` on
    /// the network device with index `owner_index`. Any context but hard interrupts.
    pub(crate) fn is_reachable(&self, ingress: Ingress, owner_index: u32, link: LinkId) -> bool {
        self.trees.lock().is_reachable(ingress, owner_index, link)
    }
}
