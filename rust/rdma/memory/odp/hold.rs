// SPDX-License-Identifier: GPL-2.0

//! Lock of an `ib_umem_odp` (`umem_mutex`). A task that has a [`Hold`] is never preempted and never
//! sleeps.
//!
//! Threads of the process, work items and the MMU notifier take this lock. The notifier runs in
//! any task that changes the mappings of the process or reclaims memory. A user decides how little
//! CPU time the threads of a process get. If a holder could be preempted, reclaim would wait for as
//! long as the user likes. So preemption is disabled while the lock is held, and nothing under the
//! lock sleeps: neither the code that stores the pages that `hmm_range_fault()` found, nor the wait
//! for read sections ([`crate::support::read_section`], not preempted either), nor the removal of
//! all pages by a work item of [`super::owner`].
//!
//! Waiters do not sleep in the queue of the mutex: the mutex could be handed to a queued thread
//! that gets no CPU time. They try to take it again and again. ib_core itself takes the mutex when
//! it releases the `ib_umem_odp`, in a work item.

use core::ptr::NonNull;

use kernel::{
    time::{delay::fsleep, Delta},
    types::NotThreadSafe,
};

use crate::bindings;

/// Number of attempts to take the lock before the caller sleeps. It must sleep because a holder in
/// ib_core may need this CPU.
const ATTEMPTS: u32 = 1000;
/// Time for which the caller sleeps before it tries again.
const NAP: Delta = Delta::from_micros(50);

/// Lock of an `ib_umem_odp`, held. The task that holds it keeps its CPU.
///
/// # Invariants
///
/// `umem` is valid. This value owns its `umem_mutex` and one count of `preempt_disable()` of the
/// CPU. It cannot be sent to another CPU or thread.
pub(super) struct Hold {
    umem: NonNull<bindings::ib_umem_odp>,
    _cpu: NotThreadSafe,
}

impl Hold {
    /// Takes the lock. Process context with preemption enabled; sleeps.
    ///
    /// # Safety
    ///
    /// `umem` must be valid until the result is dropped.
    pub(super) unsafe fn new(umem: NonNull<bindings::ib_umem_odp>) -> Self {
        loop {
            for _ in 0..ATTEMPTS {
                // SAFETY: The caller guarantees that `umem` is valid until the result is dropped
                // (see `# Safety`).
                if let Some(hold) = unsafe { Self::try_new(umem) } {
                    return hold;
                }
                core::hint::spin_loop();
            }
            fsleep(NAP);
        }
    }

    /// Takes the lock unless it is held. Returns `None` if it is held. Process context; does not
    /// sleep.
    ///
    /// # Safety
    ///
    /// `umem` must be valid until the result is dropped.
    pub(super) unsafe fn try_new(umem: NonNull<bindings::ib_umem_odp>) -> Option<Self> {
        // SAFETY: Preemption is enabled again below, or when the result is dropped.
        unsafe { bindings::preempt_disable() };
        // SAFETY: The caller guarantees that `umem` is valid (see `# Safety`).
        if unsafe { bindings::odp_trylock(umem.as_ptr()) } {
            // INVARIANT: The mutex and the count were just taken. The caller guarantees that `umem`
            // stays valid until the result is dropped (see `# Safety`).
            return Some(Self {
                umem,
                _cpu: NotThreadSafe,
            });
        }
        // SAFETY: This gives up the count that was taken above.
        unsafe { bindings::preempt_enable() };
        None
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `umem` is valid, and this value owns its mutex.
        unsafe { bindings::odp_unlock(self.umem.as_ptr()) };
        // SAFETY: By the type invariant this value owns one count of `preempt_disable()`.
        unsafe { bindings::preempt_enable() };
    }
}
