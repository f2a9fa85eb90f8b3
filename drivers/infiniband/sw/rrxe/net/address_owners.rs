// SPDX-License-Identifier: GPL-2.0

//! The addresses of a namespace's devices, and the network devices that have them.
//!
//! ib_core keeps a port's GIDs in an array of 256 entries, of which a search looks at each. These trees hold the
//! same entries sorted by address, so that a packet finds its device in few steps, whatever address it has. ib_core
//! keeps them up to date (`add_gid` and `del_gid`).

use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::atomic::{ordering::Relaxed, Atomic},
};
use rdma::{
    device::gid::{Gid, GidPlace},
    net::skb::Ingress,
    new_bh_spinlock,
    support::sync::BhSpinLock,
};

/// Which link an address belongs to. No two links of a namespace have the same, not even one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(u64);

/// An address of a device, on a network device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AddressOwner {
    address: [u8; 16],
    netdev_index: u32,
    link: LinkId,
}

impl AddressOwner {
    /// The least of all with this address on this network device.
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

/// Where a port is.
struct Place {
    /// Its segment ([`GidPlace::segment`]).
    segment: u32,
    /// Entries of ib_core's table with the port.
    entries: u32,
}

struct Trees {
    /// How many entries of ib_core's table each stands for.
    address_owners: RBTree<AddressOwner, u32>,
    ports: RBTree<Port, Place>,
}

impl Trees {
    /// Whether a packet by `ingress` may be for an address of `link` on the network device of index `home`: by that
    /// very one, or by another one with addresses of the link on the same segment. Linux answers ARP requests for an
    /// address on all network devices (`arp_ignore`), so that a macvlan and the network device under it get each
    /// other's packets.
    fn leads(&self, ingress: Ingress, home: u32, link: LinkId) -> bool {
        let segment = |netdev_index| {
            let port = Port { netdev_index, link };
            self.ports.get(&port).map(|place| place.segment)
        };
        let by = ingress.port();
        ingress.is_by(home) || segment(by).is_some_and(|arrived| segment(home) == Some(arrived))
    }

    /// The home with address `gid`, of those `wanted`, that a packet by `ingress` is for: one on the network device by which
    /// it came, or else one to which that leads. Any for a packet of this host.
    fn find_reached(
        &self,
        gid: Gid,
        ingress: Ingress,
        wanted: impl Fn(&AddressOwner) -> bool,
    ) -> Option<AddressOwner> {
        if ingress.is_none() {
            return self.find(gid, wanted);
        }
        let by = |home: &AddressOwner| wanted(home) && ingress.is_by(home.netdev_index);
        let led =
            |home: &AddressOwner| wanted(home) && self.leads(ingress, home.netdev_index, home.link);
        self.find(gid, by).or_else(|| self.find(gid, led))
    }

    /// The first home with this address that is `wanted`. Takes a step for each network device with that address.
    fn find(&self, gid: Gid, wanted: impl Fn(&AddressOwner) -> bool) -> Option<AddressOwner> {
        let mut least = AddressOwner::first(gid, 0);
        while let Some(cursor) = self.address_owners.cursor_lower_bound(&least) {
            let (home, _) = cursor.current();
            if home.address != gid.0 {
                return None;
            }
            if wanted(home) {
                return Some(*home);
            }
            let LinkId(passed) = home.link;
            least = AddressOwner {
                link: LinkId(passed.wrapping_add(1)),
                ..*home
            };
        }
        None
    }
}

/// All addresses of the devices of a namespace. Its lock is a leaf.
#[pin_data]
pub(crate) struct AddressOwners {
    #[pin]
    trees: BhSpinLock<Trees>,
    links: Atomic<u64>,
    /// How often the trees have changed.
    changes: Atomic<u64>,
}

impl AddressOwners {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        let trees = Trees {
            address_owners: RBTree::new(),
            ports: RBTree::new(),
        };
        pin_init!(Self {
            trees <- new_bh_spinlock!(trees, "rrxe_homes"),
            links: Atomic::new(0),
            changes: Atomic::new(0),
        })
    }

    /// What a new link's addresses are known by. Any context.
    pub(crate) fn new_link(&self) -> LinkId {
        LinkId(self.links.fetch_add(1, Relaxed))
    }

    /// How often addresses have come and gone. Who reads the same number again need not look for an address again. To be
    /// read before the address is looked for. Any context.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// `gid` is an address of `link` from now on. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add(&self, gid: Gid, place: GidPlace<'_>, link: LinkId) -> Result {
        let netdev_index = place.netdev_index();
        let home = AddressOwner {
            link,
            ..AddressOwner::first(gid, netdev_index)
        };
        let port = Port { netdev_index, link };
        let segment = place.segment();
        let place = Place {
            segment,
            entries: 1,
        };
        let new_home = RBTreeNode::new(home, 1, GFP_KERNEL)?;
        let new_port = RBTreeNode::new(port, place, GFP_KERNEL)?;
        let mut trees = self.trees.lock();
        match trees.address_owners.get_mut(&home) {
            Some(entries) => *entries = entries.saturating_add(1),
            None => drop(trees.address_owners.insert(new_home)),
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
        let home = AddressOwner {
            link,
            ..AddressOwner::first(gid, netdev_index)
        };
        let port = Port { netdev_index, link };
        let mut trees = self.trees.lock();
        if let Some(entries) = trees.address_owners.get_mut(&home) {
            *entries = entries.saturating_sub(1);
            if *entries == 0 {
                drop(trees.address_owners.remove_node(&home));
            }
        }
        if let Some(place) = trees.ports.get_mut(&port) {
            place.entries = place.entries.saturating_sub(1);
            if place.entries == 0 {
                drop(trees.ports.remove_node(&port));
            }
        }
        self.changes.fetch_add(1, Relaxed);
    }

    /// The link that a packet to `gid` is for. From outside it must have come by a network device that leads there;
    /// one that has the address comes first. Any context but hard interrupts.
    pub(crate) fn link_at(&self, gid: Gid, ingress: Ingress) -> Option<LinkId> {
        let found = self.trees.lock().find_reached(gid, ingress, |_| true);
        found.map(|home| home.link)
    }

    /// The index of the network device of `link` with address `gid` that a packet is for: as for [`Self::link_at`].
    pub(crate) fn netdev_at(&self, gid: Gid, ingress: Ingress, link: LinkId) -> Option<u32> {
        let of_link = |home: &AddressOwner| home.link == link;
        let found = self.trees.lock().find_reached(gid, ingress, of_link);
        found.map(|home| home.netdev_index)
    }

    /// Whether a packet to `gid` may be for `link`: as for [`Self::link_at`]. Any context but hard interrupts.
    pub(crate) fn is_at(&self, gid: Gid, ingress: Ingress, link: LinkId) -> bool {
        self.netdev_at(gid, ingress, link).is_some()
    }

    /// Whether `gid` is an address of `link`. Any context but hard interrupts.
    pub(crate) fn has(&self, gid: Gid, link: LinkId) -> bool {
        self.is_at(gid, Ingress::default(), link)
    }

    /// Whether `gid` is an address of `link` on the network device of this index. Any context but hard interrupts.
    pub(crate) fn has_on(&self, gid: Gid, netdev_index: u32, link: LinkId) -> bool {
        let home = AddressOwner {
            link,
            ..AddressOwner::first(gid, netdev_index)
        };
        self.trees.lock().address_owners.get(&home).is_some()
    }

    /// Whether a packet by `ingress` may be for an address of `link` on the network device of index `home`. Any context
    /// but hard interrupts.
    pub(crate) fn leads(&self, ingress: Ingress, home: u32, link: LinkId) -> bool {
        self.trees.lock().leads(ingress, home, link)
    }
}
