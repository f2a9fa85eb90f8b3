// SPDX-License-Identifier: GPL-2.0

//! The lock of an `ib_umem_odp`, which nobody holds while another task has the CPU.
//!
//! Threads of processes take it, and so does the MMU notifier, in whatever task changes the mappings of a process or
//! reclaims memory. A user decides how little CPU time the threads of a process get. If a holder could be preempted, reclaim would
//! wait for as long as the user likes. So a holder is not preempted, and nothing under the lock sleeps: neither the notes
//! about pages, nor the wait for sections, which are not preempted either, nor the end of a chunk in `rrxe_release`. Nobody
//! sleeps in the queue of the mutex, for the mutex may be handed to a thread there that gets no CPU time. ib_core itself
//! takes the mutex when it releases the `ib_umem_odp`, in a work item.

use core::ptr::NonNull;

use kernel::{
    time::{delay::fsleep, Delta},
    types::NotThreadSafe,
};

use crate::bindings;

/// Attempts to take the lock before the caller sleeps, and how long it sleeps then: ib_core's holder may want this CPU.
const ATTEMPTS: u32 = 1000;
const NAP: Delta = Delta::from_micros(50);

/// The lock of an `ib_umem_odp`. The task that holds it keeps its CPU.
///
/// # Invariants
///
/// `umem` is valid. This owns its `umem_mutex`, and one count of `preempt_disable()` of its CPU, from which it can't be
/// sent away.
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
                // SAFETY: As the caller promises.
                if let Some(hold) = unsafe { Self::attempt(umem) } {
                    return hold;
                }
                core::hint::spin_loop();
            }
            fsleep(NAP);
        }
    }

    /// Takes the lock unless somebody holds it. Process context; doesn't sleep.
    ///
    /// # Safety
    ///
    /// As for [`Self::new`].
    pub(super) unsafe fn attempt(umem: NonNull<bindings::ib_umem_odp>) -> Option<Self> {
        // SAFETY: Enabled again below, or when the result is dropped.
        unsafe { bindings::preempt_disable() };
        // SAFETY: `umem` is valid, as the caller promises.
        if unsafe { bindings::odp_trylock(umem.as_ptr()) } {
            // INVARIANT: Both were just taken, and `umem` stays valid, as the caller promises.
            return Some(Self {
                umem,
                _cpu: NotThreadSafe,
            });
        }
        // SAFETY: Pairs with the call above.
        unsafe { bindings::preempt_enable() };
        None
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, `umem` is valid and its lock owned.
        unsafe { bindings::odp_unlock(self.umem.as_ptr()) };
        // SAFETY: Gives up the count that the type invariant speaks of.
        unsafe { bindings::preempt_enable() };
    }
}
