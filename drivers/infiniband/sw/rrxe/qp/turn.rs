// SPDX-License-Identifier: GPL-2.0

//! The turn lock of a QP's engine: a combining lock (flat combining).
//!
//! Doorbells, packets in softirq, timers and work items want the engine to run. Each caller first
//! stores its input where the engine finds it: a work request in the ring, a packet in the inbox. A
//! timer has no input but the time. Then the caller calls [`Turn::advance`]. A caller that finds
//! the lock held leaves a run request ([`RunRequest`]) to the holder, which runs the engine again
//! before it is done. So no caller of `advance` spins for the lock, and no run request is lost.
//!
//! A query needs a result, so it waits for the lock ([`Turn::wait`]). While waiters queue for the
//! lock each `try_lock` fails, and any user may query at any time. Run requests left to a later
//! `try_lock` would starve behind the queries. So a query that finds a run request runs the engine
//! before it drops the lock ([`Turn::keep_if_wanted`]). A run request waits for at most two
//! queries: the one that holds the lock, and the next one in the queue.
//!
//! # Context
//!
//! Any context up to softirq. The engine runs with bottom halves disabled and must not sleep.

use core::sync::atomic::{AtomicU32, Ordering};

use kernel::{
    prelude::*,
    sync::barrier::{smp_mb, Full},
};
use rdma::{
    new_bh_spinlock,
    support::sync::{swap_fully_ordered, BhSpinLock, BhSpinLockGuard},
};

/// Guard of the turn lock, for a caller that waited for it.
pub(crate) type Held<'a, T> = BhSpinLockGuard<'a, T>;

/// Purpose of a run.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum RunRequest {
    /// Take in a received packet. In such a run a QP without acknowledgments sends no posted work
    /// request (`Core::run`).
    Packet = 1 << 0,
    /// Do all work that is due.
    All = 1 << 1,
}

/// Purposes of a run: those of the lock's holder and of the callers that left a run request to it.
/// Bits of [`RunRequest`].
#[derive(Clone, Copy)]
pub(crate) struct RunRequests(u32);

impl RunRequests {
    /// Returns whether the only purpose of the run is to take in packets.
    pub(crate) fn are_for_packets(self) -> bool {
        self.0 == RunRequest::Packet as u32
    }
}

/// An engine and the lock that protects it.
#[pin_data]
pub(crate) struct Turn<T> {
    /// Run requests since the holder last took them. Bits of [`RunRequest`].
    wanted: AtomicU32,
    /// The engine. The lock disables bottom halves.
    #[pin]
    engine: BhSpinLock<T>,
}

impl<T: Unpin> Turn<T> {
    /// Creates an unlocked turn lock around `engine`.
    pub(crate) fn new(engine: T) -> impl PinInit<Self> {
        pin_init!(Self {
            wanted: AtomicU32::new(0),
            engine <- new_bh_spinlock!(engine, "rrxe_qp_engine"),
        })
    }

    /// Waits for the turn lock. Process context. For callers that cannot leave their work to the
    /// holder, such as `modify_qp`.
    ///
    /// Run requests of other callers are kept. Call [`Self::advance`] after the guard is dropped,
    /// or use [`Self::keep_if_wanted`].
    pub(crate) fn wait(&self) -> Held<'_, T> {
        self.engine.lock()
    }

    /// Drops the guard `held`, or returns it if another caller has left a run request meanwhile.
    /// The caller passes the returned guard to [`Self::advance`].
    pub(crate) fn keep_if_wanted<'a>(&'a self, held: Held<'a, T>) -> Option<Held<'a, T>> {
        if self.wanted.load(Ordering::Relaxed) != 0 {
            return Some(held);
        }
        drop(held);
        // A run request may be left between the load above and the unlock. If another CPU holds the
        // lock now, it sees the request.
        if self.is_wanted() {
            self.engine.try_lock()
        } else {
            None
        }
    }

    /// Returns whether a run request is left, maybe by a caller whose `try_lock` failed. To be
    /// called by a former holder, after it has dropped the guard.
    pub(crate) fn is_wanted(&self) -> bool {
        // Orders the load after the unlock. Pairs with the full ordering in [`Self::advance`].
        smp_mb(Full);
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Leaves a run request to the holder of the lock. Fully ordered.
    fn leave_request(&self, request: RunRequest) {
        let mut requests = request as u32;
        loop {
            let others = swap_fully_ordered(&self.wanted, requests);
            if others & !requests == 0 {
                return;
            }
            // The exchange removed the requests of others. Stores them again, with the own one.
            requests |= others;
        }
    }

    /// Runs `body` with the lock held until no run request is left. Calls `after` with each result
    /// of `body`, without the lock.
    ///
    /// If another caller holds the lock, this leaves `request` to it and returns at once. `held` is
    /// the guard if the caller has the lock already. `body` gets the purposes of the run. `after`
    /// returns whether to continue. If it returns `false`, it has arranged for a later call of this
    /// function, or found that none is needed.
    pub(crate) fn advance<'a, R>(
        &'a self,
        mut held: Option<Held<'a, T>>,
        request: RunRequest,
        mut body: impl FnMut(&mut T, RunRequests) -> R,
        mut after: impl FnMut(R) -> bool,
    ) {
        // Full ordering: the caller's input is visible before its run request, and the request is
        // visible before the `try_lock`. With the full barrier after the holder's unlock, either
        // the `try_lock` succeeds or the holder sees the request.
        if held.is_none() {
            self.leave_request(request);
            held = self.engine.try_lock();
        }
        // Another holder may have taken the run request already, but it has not seen the packet
        // that the caller's `body` carries.
        let mut own = request as u32;
        while let Some(mut engine) = held {
            // Fully ordered before `body` looks for work: a later request is seen by the check
            // below.
            let requests =
                RunRequests(core::mem::take(&mut own) | swap_fully_ordered(&self.wanted, 0));
            let result = body(&mut engine, requests);
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
    fn a_run_request_comes_before_later_waiters() -> Result {
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
        // Simulates a caller whose `try_lock` failed.
        turn.wanted.store(1, Ordering::Relaxed);
        let held = turn.keep_if_wanted(turn.wait());
        assert!(held.is_some());
        run(held);
        assert!(turn.keep_if_wanted(turn.wait()).is_none());
        assert_eq!(*turn.wait(), 1);
        Ok(())
    }

    #[test]
    fn a_run_for_a_packet_serves_requests_of_others() -> Result {
        let turn = Arc::pin_init(Turn::new(KVec::new()), GFP_KERNEL)?;
        let run = |held, request, meanwhile: &mut dyn FnMut()| {
            let body = |runs: &mut KVec<bool>, requests: RunRequests| {
                meanwhile();
                runs.push(requests.are_for_packets(), GFP_ATOMIC)
            };
            turn.advance(held, request, body, |pushed| pushed.is_ok());
        };
        let mut others = KVec::from_elem(RunRequest::All, 1, GFP_KERNEL)?;
        // A caller whose `try_lock` fails leaves its run request to the holder.
        run(None, RunRequest::Packet, &mut || {
            if let Some(request) = others.pop() {
                turn.leave_request(RunRequest::Packet);
                turn.leave_request(request);
                turn.leave_request(RunRequest::Packet);
            }
        });
        run(None, RunRequest::Packet, &mut || ());
        run(None, RunRequest::All, &mut || ());
        run(Some(turn.wait()), RunRequest::All, &mut || ());
        assert_eq!(&turn.wait()[..], [true, false, true, false, false]);
        Ok(())
    }
}
