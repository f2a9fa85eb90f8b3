// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Lock that is skipped if the program promises to use an object from one thread, and that can be
//! held across several calls.

use core::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicBool, Ordering},
};
use std::thread::yield_now;

/// Number of checks of a held lock after which the thread yields the CPU.
const SPINS: u32 = 200;

/// Number of threads that use an object at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// Any number of threads. The lock is taken.
    Many,
    /// One thread at a time, as the program promised (by a thread domain or a flag of the CQ). The
    /// lock is skipped.
    One,
}

/// Value protected by a lock.
///
/// # Invariants
///
/// While `held` is set, one thread has exclusive access to the value. With [`Threads::One`] the
/// program ensures exclusive access.
pub(crate) struct Guarded<T> {
    threads: Threads,
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: By the type invariant, only one thread at a time has access to the value.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// Creates the protected value, with the lock free.
    pub(crate) fn new(threads: Threads, value: T) -> Self {
        Self {
            threads,
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Calls `body` with the value, with the lock held.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.hold();
        // SAFETY: This thread holds the lock, and `body` has no other reference to the value.
        let result = body(unsafe { &mut *self.value.get() });
        self.release();
        result
    }

    /// Takes the lock. It is held until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        if self.threads == Threads::One {
            return;
        }
        let mut spins = 0u32;
        while self.held.swap(true, Ordering::Acquire) {
            while self.held.load(Ordering::Relaxed) {
                spins = spins.wrapping_add(1);
                if spins % SPINS == 0 {
                    yield_now();
                } else {
                    spin_loop();
                }
            }
        }
    }

    /// Releases the lock.
    pub(crate) fn release(&self) {
        if self.threads == Threads::Many {
            self.held.store(false, Ordering::Release);
        }
    }

    /// Returns the value while the lock is held.
    ///
    /// # Safety
    ///
    /// This thread must have taken the lock by [`hold`](Self::hold), and must have no other
    /// reference to the value.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: The caller guarantees that this thread holds the lock and has no other reference
        // to the value (see `# Safety`).
        unsafe { &mut *self.value.get() }
    }
}
