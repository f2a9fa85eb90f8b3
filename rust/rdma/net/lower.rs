// SPDX-License-Identifier: GPL-2.0

//! The network devices directly below a network device, as a VLAN or a bridge has them.
//!
//! `netdev_walk_all_lower_dev_rcu()` is no way to all levels below: it keeps the way that it went in an array of
//! `MAX_NEST_DEV + 1`, and nothing holds the number of levels below that while the devices change during the walk.

use core::marker::PhantomData;

use kernel::sync::rcu;

use crate::bindings;

/// The network devices directly below one. They are valid while RCU is held for reading. Any context.
pub(crate) struct Lower<'a> {
    upper: *mut bindings::net_device,
    at: *mut bindings::list_head,
    _readers: PhantomData<&'a rcu::Guard>,
}

impl<'a> Lower<'a> {
    /// Those below `upper`.
    ///
    /// # Safety
    ///
    /// `upper` must be valid as long as `readers`.
    pub(crate) unsafe fn of(upper: *mut bindings::net_device, _readers: &'a rcu::Guard) -> Self {
        Self {
            upper,
            // SAFETY: The caller's promise.
            at: unsafe { &raw mut (*upper).adj_list.lower },
            _readers: PhantomData,
        }
    }
}

impl Iterator for Lower<'_> {
    type Item = *mut bindings::net_device;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: RCU is held for reading, `upper` is valid by the contract of `of`, and `at` is its list or an entry of it.
        // RCU keeps an entry, and what comes after it, when it leaves the list (`__netdev_adjacent_dev_remove()`,
        // net/core/dev.c).
        let lower = unsafe { bindings::netdev_next_lower_dev_rcu(self.upper, &mut self.at) };
        (!lower.is_null()).then_some(lower)
    }
}
