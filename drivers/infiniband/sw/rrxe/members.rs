// SPDX-License-Identifier: GPL-2.0

//! Which objects belong to which: the windows of each QP, the QPs of a CQ.
//!
//! The end of an owner looks at its own members, and not at all objects of the device. Members are kept by number: they
//! are not kept alive.

use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
};
use rdma::{new_bh_spinlock, sync::BhSpinLock};

/// Room for one member, made where memory may be waited for.
pub(crate) struct Seat(RBTreeNodeReservation<u64, ()>);

impl Seat {
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }
}

/// Numbers of members by numbers of owners. Any context up to softirq; its lock is a leaf, held for the time of a
/// look-up.
#[pin_data]
pub(crate) struct Members {
    #[pin]
    tree: BhSpinLock<RBTree<u64, ()>>,
}

impl Members {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            tree <- new_bh_spinlock!(RBTree::new(), "rrxe_members"),
        })
    }

    /// `member` belongs to `owner` from now on. Returns the seat if it did so before.
    pub(crate) fn enter(&self, seat: Seat, owner: u32, member: u32) -> Option<Seat> {
        let node = seat.0.into_node(key(owner, member), ());
        let before = self.tree.lock().insert(node)?;
        Some(Seat(before.into_reservation()))
    }

    /// `member` doesn't belong to `owner` any more. Returns its seat if it did.
    pub(crate) fn leave(&self, owner: u32, member: u32) -> Option<Seat> {
        let node = self.tree.lock().remove_node(&key(owner, member))?;
        Some(Seat(node.into_reservation()))
    }

    /// The first member of `owner` with a number of at least `number`.
    pub(crate) fn next(&self, owner: u32, number: u32) -> Option<u32> {
        let tree = self.tree.lock();
        let found = *tree.cursor_lower_bound(&key(owner, number))?.current().0;
        ((found >> 32) as u32 == owner).then_some(found as u32)
    }
}

/// Members of one owner follow one another.
fn key(owner: u32, member: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(member)
}

#[kunit_tests(rrxe_members)]
mod tests {
    use super::*;

    fn all(members: &Members, owner: u32) -> (u32, u32) {
        let (mut count, mut sum, mut number) = (0, 0, 0);
        while let Some(member) = members.next(owner, number) {
            (count, sum, number) = (count + 1, sum + member, member + 1);
        }
        (count, sum)
    }

    #[test]
    fn finds_the_members_of_one_owner() -> Result {
        let members = KBox::pin_init(Members::new(), GFP_KERNEL)?;
        for (owner, member) in [(1, 7), (2, 5), (2, 6), (2, 900), (3, 0)] {
            assert!(members.enter(Seat::new()?, owner, member).is_none());
        }
        assert!(members.enter(Seat::new()?, 2, 6).is_some());
        assert_eq!(all(&members, 2), (3, 911));
        assert_eq!(all(&members, 0), (0, 0));
        assert!(members.leave(2, 6).is_some());
        assert!(members.leave(2, 6).is_none());
        assert_eq!(all(&members, 2), (2, 905));
        assert_eq!(all(&members, 3), (1, 0));
        Ok(())
    }
}
