// SPDX-License-Identifier: GPL-2.0

//! Lists of the objects that belong to an owner: the windows that a QP bound, and the QPs that
//! complete to a CQ.
//!
//! With these lists, the code that ends an owner visits only the owner's members, not all objects
//! of the device. Members are listed by number. The list holds no references to them.

use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
};
use rdma::{new_bh_spinlock, support::sync::BhSpinLock};

/// Memory for the entry of one member, allocated in a context that may sleep.
pub(crate) struct MemberEntry(RBTreeNodeReservation<u64, ()>);

impl MemberEntry {
    /// Allocates the memory. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }
}

/// Pairs of the numbers of owners and of their members.
///
/// # Context
///
/// Any context up to softirq. The lock is a leaf lock, held for the time of a tree look-up.
#[pin_data]
pub(crate) struct Members {
    #[pin]
    tree: BhSpinLock<RBTree<u64, ()>>,
}

impl Members {
    /// Creates empty lists.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            tree <- new_bh_spinlock!(RBTree::new(), "rrxe_members"),
        })
    }

    /// Lists `member` under `owner`. Returns the entry if it was listed already.
    pub(crate) fn enter(&self, entry: MemberEntry, owner: u32, member: u32) -> Option<MemberEntry> {
        let node = entry.0.into_node(key(owner, member), ());
        let before = self.tree.lock().insert(node)?;
        Some(MemberEntry(before.into_reservation()))
    }

    /// Takes `member` off the list of `owner`. Returns its entry if it was listed.
    pub(crate) fn leave(&self, owner: u32, member: u32) -> Option<MemberEntry> {
        let node = self.tree.lock().remove_node(&key(owner, member))?;
        Some(MemberEntry(node.into_reservation()))
    }

    /// Returns the first member of `owner` with a number of at least `number`.
    pub(crate) fn next(&self, owner: u32, number: u32) -> Option<u32> {
        let tree = self.tree.lock();
        let found = *tree.cursor_lower_bound(&key(owner, number))?.current().0;
        ((found >> 32) as u32 == owner).then_some(found as u32)
    }

    /// Calls `visit` for the members of `owner` in the order of their numbers, from `number` on,
    /// for at most `limit` members. Returns the number to continue from if `limit` was reached.
    pub(crate) fn visit(
        &self,
        owner: u32,
        number: u32,
        limit: u32,
        mut visit: impl FnMut(u32),
    ) -> Option<u32> {
        let mut number = number;
        for _ in 0..limit {
            let member = self.next(owner, number)?;
            visit(member);
            number = member.checked_add(1)?;
        }
        Some(number)
    }
}

/// Returns the tree's key of a member. The members of one owner follow one another in the tree.
fn key(owner: u32, member: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(member)
}

#[kunit_tests(rrxe_members)]
mod tests {
    use super::*;

    /// Returns how many members `owner` has, and the sum of their numbers.
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
            assert!(members.enter(MemberEntry::new()?, owner, member).is_none());
        }
        assert!(members.enter(MemberEntry::new()?, 2, 6).is_some());
        assert_eq!(all(&members, 2), (3, 911));
        assert_eq!(all(&members, 0), (0, 0));
        assert!(members.leave(2, 6).is_some());
        assert!(members.leave(2, 6).is_none());
        assert_eq!(all(&members, 2), (2, 905));
        assert_eq!(all(&members, 3), (1, 0));
        Ok(())
    }

    #[test]
    fn visits_each_member_once_in_pieces() -> Result {
        let members = KBox::pin_init(Members::new(), GFP_KERNEL)?;
        for member in [0, 1, 5, 900, u32::MAX] {
            assert!(members.enter(MemberEntry::new()?, 2, member).is_none());
        }
        assert!(members.enter(MemberEntry::new()?, 3, 6).is_none());
        for (limit, pieces) in [(1, 5), (2, 3), (3, 2), (5, 1), (6, 1)] {
            let (mut seen, mut count, mut next) = (KVec::new(), 0, Some(0));
            while let Some(number) = next {
                count += 1;
                let before = seen.len();
                next = members.visit(2, number, limit, |member| {
                    let _ = seen.push(member, GFP_KERNEL);
                });
                assert!(seen.len() - before <= limit as usize);
            }
            assert_eq!(&seen[..], &[0, 1, 5, 900, u32::MAX]);
            assert_eq!(count, pieces);
        }
        assert_eq!(members.visit(4, 0, 9, |_| {}), None);
        Ok(())
    }
}
