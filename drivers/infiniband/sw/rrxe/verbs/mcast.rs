// SPDX-License-Identifier: GPL-2.0

//! Multicast groups: the QPs that receive the packets to a group's address.
//!
//! When the first QP of a device attaches to a group, the host joins the group on the device's
//! network device, by IGMP or MLD. When the last QP detaches, the host leaves the group. A packet
//! that a QP of this host sends to the group reaches the members without the IP layer
//! (`net/local.rs`). The sender itself receives it, too, if it is attached and doesn't block its
//! own packets.
//!
//! Each attachment is charged to the user and the memory cgroup of the process that opened the QP's
//! context. No user and no memory cgroup can fill a group.

use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{Arc, Mutex},
};
use rdma::{device::gid::Gid, new_bh_spinlock, support::sync::BhSpinLock};

use crate::{
    device::Device,
    limits::{self, accounts::PayerClaim},
    qp::Qp,
};

/// Key of a multicast group on a network device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Interface index of the network device.
    netdev_index: u32,
    /// Address of the group, in the form of a GID.
    address: [u8; 16],
}

/// The member QPs of a group: at least one, all of one device.
struct Members([Option<Arc<Qp>>; limits::MAX_MCAST_QP]);

impl Members {
    /// Creates the members of a new group, whose first QP is `first`.
    fn of(first: &Arc<Qp>) -> Self {
        let mut first = Some(first.clone());
        Self(core::array::from_fn(|_| first.take()))
    }

    /// Returns the member QPs.
    fn iter(&self) -> impl Iterator<Item = &Arc<Qp>> {
        self.0.iter().flatten()
    }

    /// Returns the number of members whose payer shares an account with the payer of `qp`. Returns
    /// 0 if `qp` belongs to the kernel.
    fn count_sharing(&self, qp: &Qp) -> usize {
        let Some(payer) = qp.payer() else {
            return 0;
        };
        let shares = |member: &&Arc<Qp>| member.payer().is_some_and(|of| of.shares_with(payer));
        self.iter().filter(shares).count()
    }

    /// Returns the array element that holds `qp`.
    fn place_of(&mut self, qp: &Arc<Qp>) -> Option<&mut Option<Arc<Qp>>> {
        let is_member = |member: &Arc<Qp>| Arc::ptr_eq(member, qp);
        self.0
            .iter_mut()
            .find(|place| place.as_ref().is_some_and(is_member))
    }
}

/// An iterator over the members of a group. Each member is looked up when it is needed, because an
/// array of all members would take much of the kernel's stack.
pub(crate) struct Visit<'a> {
    groups: &'a Groups,
    key: Key,
    /// Index of the next element of [`Members`] to look at.
    next: usize,
    /// QP of this host that sent the packet. Members that block its packets are left out.
    sender: Option<&'a Qp>,
}

impl Iterator for Visit<'_> {
    type Item = Arc<Qp>;

    fn next(&mut self) -> Option<Self::Item> {
        let tree = self.groups.tree.lock();
        let places = tree.get(&self.key)?.0.get(self.next..)?;
        let blocks = |qp: &Arc<Qp>| self.sender.is_some_and(|sender| qp.blocks(sender));
        let wants = |place: &Option<Arc<Qp>>| place.as_ref().is_some_and(|qp| !blocks(qp));
        let index = places.iter().position(wants)?;
        let found = places.get(index)?.clone();
        self.next = self.next.saturating_add(index).saturating_add(1);
        found
    }
}

/// The groups of all devices of a network namespace.
#[pin_data]
pub(crate) struct Groups {
    #[pin]
    tree: BhSpinLock<RBTree<Key, Members>>,
}

impl Groups {
    /// Creates an empty set of groups.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            tree <- new_bh_spinlock!(RBTree::new(), "rrxe_groups"),
        })
    }

    /// Returns the QPs that receive a packet to `group`: a packet that a network device received,
    /// or one that `sender` sends by the network device. Any context but hard interrupts.
    pub(crate) fn members<'a>(
        &'a self,
        netdev_index: u32,
        group: Gid,
        sender: Option<&'a Qp>,
    ) -> Visit<'a> {
        Visit {
            groups: self,
            key: Key {
                netdev_index,
                address: group.0,
            },
            next: 0,
            sender,
        }
    }

    /// Inserts a group, unless the tree has a group of this key. Returns whether it was inserted.
    /// The caller holds references to the group's QPs.
    fn insert(&self, key: &Key, group: RBTreeNode<Key, Members>) -> bool {
        let mut tree = self.tree.lock();
        let is_free = tree.get(key).is_none();
        if is_free {
            tree.insert(group);
        }
        is_free
    }

    /// Adds a QP to the group of this key. Returns `None` if there is no such group.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP is a member already; `ENOMEM` if the group is full, or has too many
    /// members of the QP's user or memory cgroup; `EBUSY` if the members are QPs of another device.
    fn add(&self, key: &Key, qp: &Arc<Qp>) -> Option<Result> {
        let mut tree = self.tree.lock();
        let members = tree.get_mut(key)?;
        if members.place_of(qp).is_some() {
            return Some(Err(EINVAL));
        }
        let ours = |member: &Arc<Qp>| Arc::ptr_eq(&member.device, &qp.device);
        if !members.iter().all(ours) {
            return Some(Err(EBUSY));
        }
        if members.count_sharing(qp) >= limits::MAX_MCAST_QP_OF_ONE {
            return Some(Err(ENOMEM));
        }
        let free = members.0.iter_mut().find(|place| place.is_none());
        Some(free.ok_or(ENOMEM).map(|place| *place = Some(qp.clone())))
    }

    /// Removes a QP from a group, and the group with its last member. Returns `None` if the QP
    /// isn't a member, otherwise whether it was the last one.
    fn remove(&self, key: &Key, qp: &Arc<Qp>) -> Option<bool> {
        let mut tree = self.tree.lock();
        let members = tree.get_mut(key)?;
        // This doesn't drop the last reference to the QP: the caller holds one.
        *members.place_of(qp)? = None;
        let last = members.iter().next().is_none();
        if last {
            drop(tree.remove_node(key));
        }
        Some(last)
    }
}

/// The multicast attachments of a device.
///
/// The mutex is held while an attachment is made or undone, and so while the host joins a group,
/// which takes the RTNL lock.
#[pin_data]
pub(crate) struct Attachments {
    /// Number of groups, and claims of the attachments.
    #[pin]
    state: Mutex<State>,
}

/// The groups and claims of [`Attachments`].
struct State {
    /// Number of groups in which the device is.
    groups: u32,
    /// Claims of the attachments of processes, by QP number and group.
    claims: RBTree<(u32, [u8; 16]), PayerClaim>,
}

impl Attachments {
    /// Creates the state of a device without attachments.
    pub(crate) fn new() -> impl PinInit<Self> {
        let state = State {
            groups: 0,
            claims: RBTree::new(),
        };
        pin_init!(Self {
            state <- new_mutex!(state, "rrxe_mcast"),
        })
    }
}

impl State {
    /// Makes the host join a group on the device's network device, and inserts the group with its
    /// first member, `qp`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the device is in too many groups; those of `Link::join()`; `EBUSY` if another
    /// device has made the group meanwhile.
    fn join(
        &mut self,
        qp: &Arc<Qp>,
        key: Key,
        group: Gid,
        node: RBTreeNode<Key, Members>,
    ) -> Result {
        if self.groups >= limits::MAX_MCAST_GROUPS {
            return Err(ENOMEM);
        }
        let groups = &qp.net.groups;
        qp.device.link.join(group)?;
        // The mutex keeps other QPs of this device from making the same group meanwhile. But the
        // network device may have gone since the join, another network device may have got its
        // interface index, and a QP of the RDMA device on that network device may have made the
        // group.
        if !groups.insert(&key, node) {
            qp.device.link.leave(group);
            return Err(EBUSY);
        }
        self.groups = self.groups.saturating_add(1);
        Ok(())
    }
}

/// Attaches `qp` to `group`, so that it receives the packets to the group. Process context; sleeps.
///
/// # Errors
///
/// `EINVAL` if `qp` is attached to `group` already. `ENOMEM`, also if the limits on groups of the
/// device, on QPs of a group, or on attachments of a user or a memory cgroup are reached. `ENODEV`
/// if the network device is gone or lacks the group's version of IP. `EBUSY` while the group has
/// members of another device, whose network device has or had the same interface index: one of the
/// two network devices is gone, and its RDMA device is still being removed.
pub(crate) fn attach(qp: &Arc<Qp>, group: Gid) -> Result {
    let attachment = attachment(qp, group);
    let claim = match qp.payer() {
        Some(payer) => {
            let claim = payer.claim_attachment()?;
            Some(RBTreeNode::new(attachment, claim, GFP_KERNEL_ACCOUNT)?)
        }
        None => None,
    };
    let key = key(&qp.device, group);
    // Before the lock, because an allocation may wait until the memory cgroup uses less memory.
    let node = RBTreeNode::new(key, Members::of(qp), GFP_KERNEL_ACCOUNT)?;
    let mut state = qp.device.mcast.state.lock();
    match qp.net.groups.add(&key, qp) {
        Some(added) => added?,
        None => state.join(qp, key, group, node)?,
    }
    if let Some(claim) = claim {
        drop(state.claims.insert(claim));
    }
    Ok(())
}

/// Detaches `qp` from `group`. Process context; sleeps.
///
/// # Errors
///
/// `EINVAL` if `qp` isn't attached to `group`.
pub(crate) fn detach(qp: &Arc<Qp>, group: Gid) -> Result {
    let device = &qp.device;
    let mut state = device.mcast.state.lock();
    let last = qp
        .net
        .groups
        .remove(&key(device, group), qp)
        .ok_or(EINVAL)?;
    drop(state.claims.remove(&attachment(qp, group)));
    if last {
        state.groups = state.groups.saturating_sub(1);
        device.link.leave(group);
    }
    Ok(())
}

/// Returns the key of an attachment in [`State::claims`]: QP number and group.
fn attachment(qp: &Qp, group: Gid) -> (u32, [u8; 16]) {
    (qp.qpn.get(), group.0)
}

/// Returns the key of a group on the device's network device.
fn key(device: &Device, group: Gid) -> Key {
    Key {
        netdev_index: device.link.netdev_index(),
        address: group.0,
    }
}
