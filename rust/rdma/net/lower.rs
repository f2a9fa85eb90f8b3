// SPDX-License-Identifier: GPL-2.0

//! Iteration over the network devices directly below another network device, such as the device
//! below a VLAN or the ports of a bridge.
//!
//! A walk over all levels uses these iterators recursively, with a limit of its own. It must not
//! use `netdev_walk_all_lower_dev_rcu()`, which records its path in an array of `MAX_NEST_DEV + 1`
//! elements: since devices may change during the walk, it may come to more levels than that.

use core::marker::PhantomData;

use kernel::sync::rcu;

use crate::bindings;

/// Iterator over the network devices directly below one device (`netdev_next_lower_dev_rcu()`,
/// include/linux/netdevice.h).
///
/// The devices are valid while the RCU read lock is held. Usable in any context.
pub(crate) struct Lower<'a> {
    upper: *mut bindings::net_device,
    at: *mut bindings::list_head,
    _readers: PhantomData<&'a rcu::Guard>,
}

impl<'a> Lower<'a> {
    /// Creates an iterator over the network devices directly below `upper`.
    ///
    /// # Safety
    ///
    /// `upper` must be valid as long as `_readers`.
    pub(crate) unsafe fn of(upper: *mut bindings::net_device, _readers: &'a rcu::Guard) -> Self {
        Self {
            upper,
            // SAFETY: The caller guarantees that `upper` is valid (see `# Safety`).
            at: unsafe { &raw mut (*upper).adj_list.lower },
            _readers: PhantomData,
        }
    }
}

impl Iterator for Lower<'_> {
    type Item = *mut bindings::net_device;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: The RCU read lock is held, since the guard that `of` borrowed lives. `upper` is
        // valid by the safety requirement of `of`. `at` is the list of `upper` or an entry of it.
        // RCU keeps an entry that leaves the list, and the entries after it
        // (`__netdev_adjacent_dev_remove()`, net/core/dev.c).
        let lower = unsafe { bindings::netdev_next_lower_dev_rcu(self.upper, &mut self.at) };
        (!lower.is_null()).then_some(lower)
    }
}
