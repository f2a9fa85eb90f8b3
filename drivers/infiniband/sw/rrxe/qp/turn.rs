// SPDX-License-Identifier: GPL-2.0

//! Who runs an engine: whoever gets the turn.
//!
//! A doorbell, a packet in softirq, a timer or a work item wants the engine to advance. Each leaves
//! what it has where the engine finds it (a ring, the inbox, the clock), and calls
//! [`Turn::advance`]. If another CPU has the turn, that one will see the wish before it is through;
//! so nobody waits, and no wish is lost.
//!
//! A query waits, for it must have an answer ([`Turn::wait`]). An attempt fails while the lock has a
//! queue, and any user may query. A wish that is left to a later attempt would come after all
//! queries. So a query that finds a wish runs the engine before it gives the turn away
//! ([`Turn::keep_if_wanted`]). A wish comes after two bodies of queries at most: the one that runs, and
//! the next one in the queue.
//!
//! # Context
//!
//! Any context up to softirq. The body runs with bottom halves disabled and must not sleep.

use core::sync::atomic::{AtomicU32, Ordering};

use kernel::prelude::*;
use rdma::{
    new_bh_spinlock,
    support::sync::{smp_mb, swap_fully_ordered, BhSpinLock, BhSpinLockGuard},
};

/// The turn, held by a caller that waited for it.
pub(crate) type Held<'a, T> = BhSpinLockGuard<'a, T>;

/// The purpose for which a caller wants a turn.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum RunRequest {
    /// To take in a packet that came from the network, and no more.
    Packet = 1 << 0,
    /// To do all that is due.
    All = 1 << 1,
}

/// The purposes of a turn: those of its holder, and of the callers that left it to the holder.
#[derive(Clone, Copy)]
pub(crate) struct RunRequests(u32);

impl RunRequests {
    /// Nobody wants more of it than a packet taken in.
    pub(crate) fn are_for_packets(self) -> bool {
        self.0 == RunRequest::Packet as u32
    }
}

/// An engine and the right to run it.
#[pin_data]
pub(crate) struct Turn<T> {
    /// Bits of [`RunRequest`]: what was left to do since the holder last looked.
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
    /// RunRequests of others stay: call [`Self::advance`] after the guard is dropped, or as
    /// [`Self::keep_if_wanted`] says.
    pub(crate) fn wait(&self) -> Held<'_, T> {
        self.engine.lock()
    }

    /// Ends a turn that was waited for, unless somebody wished for one meanwhile. The caller calls
    /// [`Self::advance`] with what it gets.
    pub(crate) fn keep_if_wanted<'a>(&'a self, held: Held<'a, T>) -> Option<Held<'a, T>> {
        if self.wanted.load(Ordering::Relaxed) != 0 {
            return Some(held);
        }
        drop(held);
        // A wish may have come after the look. If another CPU has the turn by now, it sees the wish.
        if self.is_wanted() {
            self.engine.try_lock()
        } else {
            None
        }
    }

    /// Whether somebody wished for a turn, perhaps in vain while another held it; to be asked by one
    /// who did, after the guard is dropped.
    pub(crate) fn is_wanted(&self) -> bool {
        // After the unlock: as in `advance`.
        smp_mb();
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Leaves a wish to whoever has the turn.
    fn make(&self, wish: RunRequest) {
        let mut wishes = wish as u32;
        loop {
            let others = swap_fully_ordered(&self.wanted, wishes);
            if others & !wishes == 0 {
                return;
            }
            // Those were taken out, and go in again.
            wishes |= others;
        }
    }

    /// Runs `body` with the turn until no wish is left, and `after` with its result each time,
    /// without the turn. Returns at once when somebody else has the turn: they will run for us.
    /// `held` is the turn, if the caller has it. `body` is told what the turn is wanted for.
    ///
    /// `after` returns whether to go on; when it declines, it has arranged for a later call.
    pub(crate) fn advance<'a, R>(
        &'a self,
        mut held: Option<Held<'a, T>>,
        wish: RunRequest,
        mut body: impl FnMut(&mut T, RunRequests) -> R,
        mut after: impl FnMut(R) -> bool,
    ) {
        // Full ordering: what was left to do is visible before the wish, and the wish before the
        // attempt at the lock below. With the barrier after the unlock, either the attempt succeeds
        // or the holder sees the wish.
        if held.is_none() {
            self.make(wish);
            held = self.engine.try_lock();
        }
        // Another holder may have seen the wish already, but not what its maker has at hand.
        let mut own = wish as u32;
        while let Some(mut engine) = held {
            // Fully ordered before the body looks for work: a wish made later is seen below.
            let wishes =
                RunRequests(core::mem::take(&mut own) | swap_fully_ordered(&self.wanted, 0));
            let result = body(&mut engine, wishes);
            drop(engine);
            if !after(result) || !self.is_wanted() {
                return;
            }
            held = self.engine.try_lock();
        }
    }
}

#[kunit_tests(rrxe_turn)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    #[test]
    fn a_wish_comes_before_those_who_wait_later() -> Result {
        let turn = Arc::pin_init(Turn::new(0_u32), GFP_KERNEL)?;
        let run = |held| {
            turn.advance(
                held,
                RunRequest::All,
                |runs, _| *runs = runs.wrapping_add(1),
                |()| true,
            )
        };
        assert!(turn.keep_if_wanted(turn.wait()).is_none());
        // As an attempt leaves it that failed.
        turn.wanted.store(1, Ordering::Relaxed);
        let held = turn.keep_if_wanted(turn.wait());
        assert!(held.is_some());
        run(held);
        assert!(turn.keep_if_wanted(turn.wait()).is_none());
        assert_eq!(*turn.wait(), 1);
        Ok(())
    }

    #[test]
    fn a_turn_for_a_packet_is_for_all_that_others_wished() -> Result {
        let turn = Arc::pin_init(Turn::new(KVec::new()), GFP_KERNEL)?;
        let run = |held, wish, meanwhile: &mut dyn FnMut()| {
            let body = |turns: &mut KVec<bool>, wishes: RunRequests| {
                meanwhile();
                turns.push(wishes.are_for_packets(), GFP_ATOMIC)
            };
            turn.advance(held, wish, body, |pushed| pushed.is_ok());
        };
        let mut others = KVec::from_elem(RunRequest::All, 1, GFP_KERNEL)?;
        // A caller that fails to get the turn leaves its wish to the holder.
        run(None, RunRequest::Packet, &mut || {
            if let Some(wish) = others.pop() {
                turn.make(RunRequest::Packet);
                turn.make(wish);
                turn.make(RunRequest::Packet);
            }
        });
        run(None, RunRequest::Packet, &mut || ());
        run(None, RunRequest::All, &mut || ());
        run(Some(turn.wait()), RunRequest::All, &mut || ());
        assert_eq!(&turn.wait()[..], [true, false, true, false, false]);
        Ok(())
    }
}
