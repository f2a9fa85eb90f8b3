// SPDX-License-Identifier: GPL-2.0

//! Who runs an engine: whoever gets the turn.
//!
//! A doorbell, a packet in softirq, a timer or a work item wants the engine to advance. Each leaves
//! what it has where the engine finds it (a ring, the inbox, the clock), and calls
//! [`Turn::advance`]. If another CPU has the turn, that one will see the wish before it is through;
//! so nobody waits, and no wish is lost.
//!
//! # Context
//!
//! Any context up to softirq. The body runs with bottom halves disabled and must not sleep.

use core::sync::atomic::{AtomicU32, Ordering};

use kernel::prelude::*;
use rdma::{
    new_bh_spinlock,
    sync::{smp_mb, swap_fully_ordered, BhSpinLock, BhSpinLockGuard},
};

/// An engine and the right to run it.
#[pin_data]
pub(crate) struct Turn<T> {
    /// Not zero: something was left to do since the holder last looked.
    wanted: AtomicU32,
    #[pin]
    engine: BhSpinLock<T>,
}

impl<T: Unpin> Turn<T> {
    /// A turn that nobody has.
    pub(crate) fn new(engine: T) -> impl PinInit<Self> {
        pin_init!(Self {
            wanted: AtomicU32::new(0),
            engine <- new_bh_spinlock!(engine, "rrxe_qp_engine"),
        })
    }

    /// Waits for the turn. Process context only: what must not be refused, as `modify_qp`.
    ///
    /// Wishes of others stay: call [`Self::advance`] after the guard is dropped, or if
    /// [`Self::is_wanted`] says so.
    pub(crate) fn wait(&self) -> BhSpinLockGuard<'_, T> {
        self.engine.lock()
    }

    /// Whether somebody wished for a turn, perhaps in vain while another held it; to be asked by one
    /// who did, after the guard is dropped.
    pub(crate) fn is_wanted(&self) -> bool {
        // After the unlock: as in `advance`.
        smp_mb();
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Runs `body` with the turn until no wish is left, and `after` with its result each time,
    /// without the turn. Returns at once when somebody else has the turn: they will run for us.
    ///
    /// `after` returns whether to go on; when it declines, it has arranged for a later call.
    pub(crate) fn advance<R>(
        &self,
        mut body: impl FnMut(&mut T) -> R,
        mut after: impl FnMut(R) -> bool,
    ) {
        // Full ordering: what was left to do is visible before the wish, and the wish before the
        // attempt at the lock below. With the barrier after the unlock, either the attempt succeeds
        // or the holder sees the wish.
        swap_fully_ordered(&self.wanted, 1);
        loop {
            let Some(mut engine) = self.engine.try_lock() else {
                return;
            };
            // Fully ordered before the body looks for work: a wish made later is seen below.
            swap_fully_ordered(&self.wanted, 0);
            let result = body(&mut engine);
            drop(engine);
            if !after(result) {
                return;
            }
            if !self.is_wanted() {
                return;
            }
        }
    }
}
