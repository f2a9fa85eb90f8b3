// SPDX-License-Identifier: GPL-2.0

//! Whom memory is charged to that the kernel needs for a process, but not in its context.

use kernel::types::NotThreadSafe;

use crate::bindings;

/// Charges what the current task allocates to the memory cgroup of another address space, while it lives: page tables,
/// and all that is allocated with `GFP_KERNEL_ACCOUNT`. Made by [`Charge::to`].
///
/// # Invariants
///
/// `owner` is a counted memory cgroup, or null; `before` was the current task's active one.
pub(crate) struct Charge {
    owner: *mut bindings::mem_cgroup,
    before: *mut bindings::mem_cgroup,
    _task: NotThreadSafe,
}

impl Charge {
    /// Charges the cgroup of `mm`; the root's if its process is gone. Process context.
    ///
    /// # Safety
    ///
    /// `mm` is valid.
    pub(crate) unsafe fn to(mm: *mut bindings::mm_struct) -> Self {
        // SAFETY: As the caller promises.
        let owner = unsafe { bindings::mm_memcg(mm) };
        // SAFETY: The count that was just taken keeps it until it is replaced.
        let before = unsafe { bindings::set_active_memcg(owner) };
        // INVARIANT: As was just done.
        Self {
            owner,
            before,
            _task: NotThreadSafe,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it was active before, so its count is held by who made it so.
        unsafe { bindings::set_active_memcg(self.before) };
        // SAFETY: The count is given up once, here, and it isn't active any more.
        unsafe { bindings::mem_cgroup_put(self.owner) };
    }
}
