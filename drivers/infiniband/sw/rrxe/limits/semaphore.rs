// SPDX-License-Identifier: GPL-2.0

//! A counting semaphore on which objects wait, and no threads: a waiter is a list entry. The caller
//! that gives a unit back gets the first waiter, and starts the waiter's work.

use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
};
use rdma::{new_bh_spinlock, support::sync::BhSpinLock};

/// Memory for one waiter's list entry, allocated in a context that may sleep.
pub(crate) struct WaiterEntry<T>(RBTreeNodeReservation<u64, T>);

impl<T> WaiterEntry<T> {
    /// Allocates the memory. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }
}

/// A counting semaphore with waiters of type `T`.
///
/// # Context
///
/// Any context up to softirq. The lock is a leaf lock, held for the time of a tree look-up.
#[pin_data]
pub(crate) struct Semaphore<T> {
    #[pin]
    state: BhSpinLock<State<T>>,
}

struct State<T> {
    /// Number of free units. Zero while there are waiters.
    free: u32,
    /// Number of the next waiter.
    next: u64,
    /// Waiters by number, in the order of their arrival.
    waiters: RBTree<u64, T>,
}

impl<T: Clone + Unpin> Semaphore<T> {
    /// Creates a semaphore of `count` units.
    pub(crate) fn new(count: u32) -> impl PinInit<Self> {
        let state = State {
            free: count,
            next: 0,
            waiters: RBTree::new(),
        };
        pin_init!(Self { state <- new_bh_spinlock!(state, "rrxe_semaphore") })
    }

    /// Takes one unit for `waiter` and returns the entry.
    ///
    /// # Errors
    ///
    /// The number of the waiter if no unit is free. The waiter is then in the list, and the list
    /// holds the entry.
    pub(crate) fn down(&self, entry: WaiterEntry<T>, waiter: &T) -> Result<WaiterEntry<T>, u64> {
        let mut state = self.state.lock();
        if let Some(free) = state.free.checked_sub(1) {
            state.free = free;
            return Ok(entry);
        }
        let number = state.next;
        state.next = number.wrapping_add(1);
        // No other waiter has this number.
        let _ = state
            .waiters
            .insert(entry.0.into_node(number, waiter.clone()));
        Err(number)
    }

    /// Gives one unit back. If there are waiters, the unit passes to the first one, which is
    /// returned with its entry.
    pub(crate) fn up(&self) -> Option<(WaiterEntry<T>, T)> {
        let mut state = self.state.lock();
        let Some(cursor) = state.waiters.cursor_front_mut() else {
            state.free = state.free.saturating_add(1);
            return None;
        };
        let waiter = cursor.current().1.clone();
        let (_, node) = cursor.remove_current();
        Some((WaiterEntry(node.into_reservation()), waiter))
    }

    /// Takes a waiter off the list and returns its entry. Returns `None` if the waiter was given a
    /// unit meanwhile.
    pub(crate) fn cancel(&self, number: u64) -> Option<WaiterEntry<T>> {
        let node = self.state.lock().waiters.remove_node(&number)?;
        // The lock is dropped before the waiter, whose destructor may run here.
        Some(WaiterEntry(node.into_reservation()))
    }
}

#[kunit_tests(rrxe_semaphore)]
mod tests {
    use super::*;

    #[test]
    fn serves_waiters_in_order() -> Result {
        let semaphore = KBox::pin_init(Semaphore::new(2), GFP_KERNEL)?;
        assert!(semaphore.down(WaiterEntry::new()?, &1).is_ok());
        assert!(semaphore.down(WaiterEntry::new()?, &2).is_ok());
        let mut numbers = [0; 3];
        for (number, waiter) in numbers.iter_mut().zip([3, 4, 5]) {
            *number = semaphore
                .down(WaiterEntry::new()?, &waiter)
                .err()
                .ok_or(EINVAL)?;
        }
        let [third, fourth, _] = numbers;
        assert!(semaphore.cancel(fourth).is_some());
        assert!(semaphore.cancel(fourth).is_none());
        assert!(semaphore.up().is_some_and(|(_, waiter)| waiter == 3));
        assert!(semaphore.cancel(third).is_none());
        assert!(semaphore.up().is_some_and(|(_, waiter)| waiter == 5));
        assert!(semaphore.up().is_none());
        assert!(semaphore.down(WaiterEntry::new()?, &6).is_ok());
        assert!(semaphore.down(WaiterEntry::new()?, &7).is_err());
        Ok(())
    }
}
