// SPDX-License-Identifier: GPL-2.0

//! A lock that a program may do without, and that may be held from one call to another.

use core::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicBool, Ordering},
};
use std::thread::yield_now;

/// How often to look at a lock that is held before letting others run.
const SPINS: u32 = 200;

/// Who uses an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// Any number of threads: lock.
    Many,
    /// One at a time, as the program promised (a thread domain, or a flag of the CQ): don't.
    One,
}

/// A value behind a lock.
///
/// # Invariants
///
/// While `held` is set, one thread has the value to itself. With `Threads::One` the program sees to that.
pub(crate) struct Guarded<T> {
    threads: Threads,
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: Only one thread has the value at a time, by the type invariant.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) fn new(threads: Threads, value: T) -> Self {
        Self {
            threads,
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Calls `body` with the value.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.hold();
        // SAFETY: This thread holds the lock, and `body` can't reach it by another way.
        let result = body(unsafe { &mut *self.value.get() });
        self.release();
        result
    }

    /// Takes the lock, until [`release`](Self::release).
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

    /// Gives the lock back.
    pub(crate) fn release(&self) {
        if self.threads == Threads::Many {
            self.held.store(false, Ordering::Release);
        }
    }

    /// The value, while the lock is held.
    ///
    /// # Safety
    ///
    /// This thread must have taken it by [`hold`](Self::hold), and have no other reference to the value.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: As the caller promises.
        unsafe { &mut *self.value.get() }
    }
}
