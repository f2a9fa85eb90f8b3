// SPDX-License-Identifier: GPL-2.0

//! Multicast groups: which QPs get the packets that come to a group's address.
//!
//! The first QP of a device that attaches to a group makes the host join it, by IGMP or MLD, on the
//! device's network device; the last one that detaches makes it leave. Members get what a QP of this host
//! sends to the group without the IP layer (`local.rs`); so does its sender, if it is attached and doesn't block that.
//!
//! Each attachment counts for the user and the memory cgroup of the process that opened the QP's context. One of these can't
//! fill a group.

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

/// A group on a network device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    netdev_index: u32,
    address: [u8; 16],
}

/// The QPs of a group, of one device all. At least one.
struct Members([Option<Arc<Qp>>; limits::MAX_MCAST_QP]);

impl Members {
    /// Those of a new group.
    fn of(first: &Arc<Qp>) -> Self {
        let mut first = Some(first.clone());
        Self(core::array::from_fn(|_| first.take()))
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Qp>> {
        self.0.iter().flatten()
    }

    /// How many have a payer that shares an account with that of `qp`. 0 for QPs of the kernel.
    fn count_sharing(&self, qp: &Qp) -> usize {
        let Some(payer) = qp.payer() else {
            return 0;
        };
        let shares = |member: &&Arc<Qp>| member.payer().is_some_and(|of| of.shares_with(payer));
        self.iter().filter(shares).count()
    }

    fn place_of(&mut self, qp: &Arc<Qp>) -> Option<&mut Option<Arc<Qp>>> {
        let is_it = |member: &Arc<Qp>| Arc::ptr_eq(member, qp);
        self.0
            .iter_mut()
            .find(|place| place.as_ref().is_some_and(is_it))
    }
}

/// The members of a group, one after the other. Each is looked up when its turn comes: all of them together would take much of
/// the kernel's stack.
pub(crate) struct Visit<'a> {
    groups: &'a Groups,
    key: Key,
    next: usize,
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

/// The groups of all devices of a namespace.
#[pin_data]
pub(crate) struct Groups {
    #[pin]
    tree: BhSpinLock<RBTree<Key, Members>>,
}

impl Groups {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            tree <- new_bh_spinlock!(RBTree::new(), "rrxe_groups"),
        })
    }

    /// The QPs to which a packet goes that came to `group` through a network device, or that `sender` sends by it. Any context
    /// but hard interrupts.
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

    /// Enters a group, unless there is one of this key. Returns whether it did. The caller has counts of the group's QPs.
    fn enter(&self, key: &Key, group: RBTreeNode<Key, Members>) -> bool {
        let mut tree = self.tree.lock();
        let is_free = tree.get(key).is_none();
        if is_free {
            tree.insert(group);
        }
        is_free
    }

    /// Enters a QP in a group that is there. `None` if it isn't.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP is in it, `ENOMEM` if there are too many, or too many of its user or memory cgroup, `EBUSY` if they
    /// are another device's.
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

    /// Strikes a QP off a group; with the last one the group goes, too. `None` if the QP isn't in it,
    /// otherwise whether it was the last.
    fn strike(&self, key: &Key, qp: &Arc<Qp>) -> Option<bool> {
        let mut tree = self.tree.lock();
        let members = tree.get_mut(key)?;
        // Not the last count of the QP: the caller has one.
        *members.place_of(qp)? = None;
        let last = members.iter().next().is_none();
        if last {
            drop(tree.remove_node(key));
        }
        Some(last)
    }
}

/// The groups of a device, and the claims of its attachments. Held over changes, and so over joins, which take the RTNL lock.
#[pin_data]
pub(crate) struct Attachments {
    #[pin]
    state: Mutex<State>,
}

struct State {
    /// How many groups the device is in.
    groups: u32,
    /// The claims of processes' attachments, by QP number and group.
    claims: RBTree<(u32, [u8; 16]), PayerClaim>,
}

impl Attachments {
    /// None yet.
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
    /// Has the device join a group for `qp`, its first member.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENODEV`, `EBUSY` if another device has made the group meanwhile.
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
        // The lock keeps other QPs of the device from making the same group meanwhile. But the network device may have gone since
        // the join, another one may have its index, and QPs of that one's device may have made the group.
        if !groups.enter(&key, node) {
            qp.device.link.leave(group);
            return Err(EBUSY);
        }
        self.groups = self.groups.saturating_add(1);
        Ok(())
    }
}

/// Lets `qp` receive what is sent to `group`. Process context; sleeps.
///
/// # Errors
///
/// `EINVAL` if it is attached to `group` already; `ENOMEM`, also for more groups of the device, more QPs in a group, or more
/// attachments of a user or a memory cgroup than the limits; `ENODEV` when the network device is gone or lacks the group's
/// version of IP; `EBUSY` while another device, whose network device had the same index and is gone, is still on its way out.
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
    // Before the lock: an allocation may wait until the memory cgroup has less.
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

/// Undoes [`attach`]. Process context; sleeps.
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
        .strike(&key(device, group), qp)
        .ok_or(EINVAL)?;
    drop(state.claims.remove(&attachment(qp, group)));
    if last {
        state.groups = state.groups.saturating_sub(1);
        device.link.leave(group);
    }
    Ok(())
}

/// The key of an attachment: QP number and group.
fn attachment(qp: &Qp, group: Gid) -> (u32, [u8; 16]) {
    (qp.qpn.get(), group.0)
}

fn key(device: &Device, group: Gid) -> Key {
    Key {
        netdev_index: device.link.netdev_index(),
        address: group.0,
    }
}
