// SPDX-License-Identifier: GPL-2.0

//! The right of a QP to a thread of a work queue: one at a time, if the accounts of its process
//! have one left.
//!
//! A QP whose process has none left waits in the list of the exhausted account
//! ([`crate::semaphore`]). It takes from the accounts in one order, and keeps its part of the first
//! while it waits for the second.

use kernel::{prelude::*, sync::Arc};
use rdma::{new_bh_spinlock, sync::BhSpinLock};

use crate::{
    accounts::{Payer, Threads},
    qp::Qp,
    semaphore::Seat, //
};

/// The share of one QP in the threads of one work queue.
#[pin_data]
pub(crate) struct ThreadShare {
    /// The threads in which it is a share.
    of: Threads,
    /// `None` for QPs of the kernel: they have no limit.
    payer: Option<Arc<Payer>>,
    /// Held over the locks of the accounts' semaphores.
    #[pin]
    state: BhSpinLock<State>,
}

struct State {
    /// `None` while the QP is in a list.
    seat: Option<Seat<Arc<Qp>>>,
    phase: Phase,
    /// Work began while the QP had a thread, or waited for one.
    again: bool,
    /// The QP is destroyed.
    closed: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// It needs no thread.
    Idle,
    /// In the list of an account, by its index, under a number.
    Waiting(usize, u64),
    /// It has a thread: its work item is queued, or runs.
    Running,
}

impl ThreadShare {
    /// The share of a QP that needs no thread yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(of: Threads, payer: Option<Arc<Payer>>) -> Result<impl PinInit<Self>> {
        let seat = match &payer {
            Some(_) => Some(Seat::new()?),
            None => None,
        };
        let state = State {
            seat,
            phase: Phase::Idle,
            again: false,
            closed: false,
        };
        Ok(pin_init!(Self {
            of,
            payer,
            state <- new_bh_spinlock!(state, "rrxe_thread_share"),
        }))
    }

    /// Whom it counts for. `None` for QPs of the kernel.
    pub(crate) fn payer(&self) -> Option<&Payer> {
        self.payer.as_deref()
    }

    /// Begins work of `qp`, whose share it is. Returns whether the caller must queue the work item
    /// of `qp`. If not, the item is queued already, or [`Self::end`] of another QP gives it a
    /// thread. Any context up to softirq.
    pub(crate) fn begin(&self, qp: &Arc<Qp>) -> bool {
        let Some(payer) = &self.payer else {
            return true;
        };
        let mut state = self.state.lock();
        match state.phase {
            Phase::Idle if !state.closed => state.climb(self.of, payer, 0, qp),
            _ => {
                state.again = true;
                false
            }
        }
    }

    /// The work item runs: it does the work that began before. Any context up to softirq.
    pub(crate) fn run(&self) {
        self.state.lock().again = false;
    }

    /// Whether work began after [`Self::run`]. Any context up to softirq.
    pub(crate) fn is_needed_again(&self) -> bool {
        self.state.lock().again
    }

    /// The work item has ended. Calls `run` for each QP that has a thread in its place: two at
    /// most. Any context up to softirq.
    pub(crate) fn end(&self, mut run: impl FnMut(Arc<Qp>)) {
        let Some(payer) = &self.payer else {
            return;
        };
        self.state.lock().phase = Phase::Idle;
        give_back(self.of, payer, usize::MAX, &mut run);
    }

    /// The QP is destroyed: it waits no longer. Calls `run` as [`Self::end`]. Any context up to
    /// softirq.
    pub(crate) fn close(&self, mut run: impl FnMut(Arc<Qp>)) {
        let Some(payer) = &self.payer else {
            return;
        };
        let mut state = self.state.lock();
        state.closed = true;
        let Phase::Waiting(index, number) = state.phase else {
            return;
        };
        let account = payer.accounts().nth(index);
        let Some(seat) = account.and_then(|account| account.threads(self.of).cancel(number)) else {
            // The account gave it a thread just now: the giver takes that back (`Resumed::Closed`).
            return;
        };
        state.seat = Some(seat);
        state.phase = Phase::Idle;
        drop(state);
        give_back(self.of, payer, index, &mut run);
    }

    /// Resumes `qp`, whose share it is, after an account gave it a thread. Says whether it runs.
    fn resume(&self, seat: Seat<Arc<Qp>>, qp: &Arc<Qp>) -> Resumed {
        let mut state = self.state.lock();
        state.seat = Some(seat);
        let (Some(payer), Phase::Waiting(index, _)) = (&self.payer, state.phase) else {
            return Resumed::Waits;
        };
        state.phase = Phase::Idle;
        if state.closed {
            return Resumed::Closed;
        }
        match state.climb(self.of, payer, index.saturating_add(1), qp) {
            true => Resumed::Runs,
            false => Resumed::Waits,
        }
    }
}

/// The state of a QP after an account gave it a thread.
enum Resumed {
    Runs,
    /// For another account.
    Waits,
    /// It is destroyed: the caller gives its threads back.
    Closed,
}

impl State {
    /// Takes a thread from the accounts of `payer`, or waits for one. It has those of the first
    /// `from` accounts already.
    fn climb(&mut self, of: Threads, payer: &Payer, from: usize, qp: &Arc<Qp>) -> bool {
        for (index, account) in payer.accounts().enumerate().skip(from) {
            // It is in no list.
            let Some(seat) = self.seat.take() else {
                return false;
            };
            match account.threads(of).down(seat, qp) {
                Ok(seat) => self.seat = Some(seat),
                Err(number) => {
                    self.phase = Phase::Waiting(index, number);
                    return false;
                }
            }
        }
        self.phase = Phase::Running;
        true
    }
}

/// Gives back a QP's threads of the first `count` accounts of `payer`: each to the first QP that
/// waits for it, or to the next one if the first is being destroyed. A QP that is being destroyed
/// has threads of the accounts before that one, which are given back, too: they are fewer each
/// time, so the recursion ends.
fn give_back(of: Threads, payer: &Payer, count: usize, run: &mut dyn FnMut(Arc<Qp>)) {
    for (index, account) in payer.accounts().enumerate().take(count) {
        while let Some((seat, qp)) = account.threads(of).up() {
            match qp.share(of).resume(seat, &qp) {
                Resumed::Waits => break,
                Resumed::Runs => {
                    run(qp);
                    break;
                }
                Resumed::Closed => {
                    if let Some(payer) = &qp.share(of).payer {
                        give_back(of, payer, index, run);
                    }
                }
            }
        }
    }
}
