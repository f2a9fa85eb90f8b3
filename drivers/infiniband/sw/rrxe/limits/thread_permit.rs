// SPDX-License-Identifier: GPL-2.0

//! The right of a QP, a CQ, a page of doorbells or an address space to a thread of a work queue: one at a time, if the
//! accounts of its process have one left.
//!
//! One whose process has none left waits in the list of the exhausted account
//! ([`crate::limits::semaphore`]). It takes from the accounts in one order, and keeps its part of the first
//! while it waits for the second.

use kernel::{prelude::*, sync::Arc};
use rdma::{memory::odp, new_bh_spinlock, support::sync::BhSpinLock};

use crate::{
    doorbells::Doorbells,
    limits::{
        accounts::{Payer, Threads},
        semaphore::Seat,
    },
    qp::Qp,
    verbs::cq::Cq,
};

/// An object that needs threads of a work queue.
#[derive(Clone)]
pub(crate) enum Waiter {
    /// Its turns, in `rrxe_deferred`.
    Qp(Arc<Qp>),
    /// The end of its QPs, in `rrxe_deferred`.
    Cq(Arc<Cq>),
    /// Its last doorbells, in `rrxe_deferred`.
    Page(Arc<Doorbells>),
    /// The release of its chunks, in `rrxe_release`.
    Owner(Arc<OwnerPermit>, Arc<odp::Owner>),
}

impl Waiter {
    /// Begins work of the object: queues its work item, now or once its payer has a thread for it.
    /// Any context up to softirq.
    pub(crate) fn begin(self) {
        if self.permit().begin(&self) {
            self.enqueue();
        }
    }

    /// Its share in the threads of a work queue.
    fn permit(&self) -> &ThreadPermit {
        match self {
            Self::Qp(qp) => qp.permit(),
            Self::Cq(cq) => cq.permit(),
            Self::Page(page) => page.permit(),
            Self::Owner(permit, _) => &permit.permit,
        }
    }

    /// Queues the work item of an object that was given a thread. Any context.
    fn enqueue(self) {
        match self {
            Self::Qp(qp) => Qp::enqueue_deferred(qp),
            Self::Cq(cq) => Cq::enqueue_end(cq),
            Self::Page(page) => Doorbells::enqueue_last(page),
            Self::Owner(_, owner) => owner.begin(),
        }
    }
}

/// The share of an address space with regions on demand in the threads of `rrxe_release`.
#[pin_data]
pub(crate) struct OwnerPermit {
    #[pin]
    permit: ThreadPermit,
}

impl OwnerPermit {
    /// That of an address space of `payer`'s process, which needs no thread yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(payer: &Arc<Payer>) -> Result<Arc<Self>> {
        let permit = ThreadPermit::new(Threads::Releases, Some(payer.clone()))?;
        Arc::pin_init(pin_init!(Self { permit <- permit }), GFP_KERNEL_ACCOUNT)
    }
}

impl odp::Threads for OwnerPermit {
    fn take(self: Arc<Self>, owner: &Arc<odp::Owner>) -> bool {
        let waiter = Waiter::Owner(self.clone(), owner.clone());
        self.permit.begin(&waiter)
    }

    fn give_back(&self) {
        self.permit.end();
    }
}

/// The share of one QP, CQ, page of doorbells or address space in the threads of one work queue.
#[pin_data]
pub(crate) struct ThreadPermit {
    /// The threads in which it is a share.
    of: Threads,
    /// `None` for those of the kernel: they have no limit.
    payer: Option<Arc<Payer>>,
    /// Held over the locks of the accounts' semaphores.
    #[pin]
    state: BhSpinLock<State>,
}

struct State {
    /// `None` while the object is in a list.
    seat: Option<Seat<Waiter>>,
    phase: Phase,
    /// Work began while the object had a thread, or waited for one.
    again: bool,
    /// The object is destroyed.
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

impl ThreadPermit {
    /// The share of an object that needs no thread yet. Process context.
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

    /// The payer of the object. `None` for an object of the kernel.
    pub(crate) fn payer(&self) -> Option<&Payer> {
        self.payer.as_deref()
    }

    /// Begins work of `waiter`, whose share it is. Returns whether the caller must queue its work
    /// item. If not, the item is queued already, or [`Self::end`] of another share gives it a
    /// thread. Any context up to softirq.
    fn begin(&self, waiter: &Waiter) -> bool {
        let Some(payer) = &self.payer else {
            return true;
        };
        let mut state = self.state.lock();
        match state.phase {
            Phase::Idle if !state.closed => state.climb(self.of, payer, 0, waiter),
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

    /// The work item has ended. Queues the items of those that have a thread in its place: two at
    /// most. Any context up to softirq.
    pub(crate) fn end(&self) {
        let Some(payer) = &self.payer else {
            return;
        };
        self.state.lock().phase = Phase::Idle;
        give_back(self.of, payer, usize::MAX);
    }

    /// The object is destroyed: it waits no longer. Queues items as [`Self::end`]. Any context up to
    /// softirq.
    pub(crate) fn close(&self) {
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
        give_back(self.of, payer, index);
    }

    /// Resumes `waiter`, whose share it is, after an account gave it a thread. Says whether it runs.
    fn resume(&self, seat: Seat<Waiter>, waiter: &Waiter) -> Resumed {
        let mut state = self.state.lock();
        state.seat = Some(seat);
        let (Some(payer), Phase::Waiting(index, _)) = (&self.payer, state.phase) else {
            return Resumed::Waits;
        };
        state.phase = Phase::Idle;
        if state.closed {
            return Resumed::Closed(index);
        }
        match state.climb(self.of, payer, index.saturating_add(1), waiter) {
            true => Resumed::Runs,
            false => Resumed::Waits,
        }
    }
}

/// The state of an object after an account gave it a thread.
enum Resumed {
    Runs,
    /// For another account.
    Waits,
    /// It is destroyed. The caller gives back the thread that it offered, and those of so many accounts before, by the
    /// order of the object's own payer.
    Closed(usize),
}

impl State {
    /// Takes a thread from the accounts of `payer`, or waits for one. It has those of the first
    /// `from` accounts already.
    fn climb(&mut self, of: Threads, payer: &Payer, from: usize, waiter: &Waiter) -> bool {
        for (index, account) in payer.accounts().enumerate().skip(from) {
            // It is in no list.
            let Some(seat) = self.seat.take() else {
                return false;
            };
            match account.threads(of).down(seat, waiter) {
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

/// Gives back an object's threads of the first `count` accounts of `payer`: each to the first one that
/// waits for it, or to the next one if the first is being destroyed. One that is being destroyed has
/// threads of its own payer's accounts before that one, which are given back, too. That payer may have a memory cgroup
/// where `payer` has none, and the other way round. A cgroup's account comes before the user's, so the recursion ends
/// there.
fn give_back(of: Threads, payer: &Payer, count: usize) {
    for account in payer.accounts().take(count) {
        while let Some((seat, waiter)) = account.threads(of).up() {
            match waiter.permit().resume(seat, &waiter) {
                Resumed::Waits => break,
                Resumed::Runs => {
                    waiter.enqueue();
                    break;
                }
                Resumed::Closed(before) => {
                    if let Some(payer) = &waiter.permit().payer {
                        give_back(of, payer, before);
                    }
                }
            }
        }
    }
}
