// SPDX-License-Identifier: GPL-2.0

//! The permit of a QP, a CQ, a doorbell page or an address space to occupy a thread of a work
//! queue. An object occupies one thread at a time, and only if each account of its process (memory
//! cgroup and user) has a thread left.
//!
//! An object whose account has no thread left waits in the list of that account
//! ([`crate::limits::semaphore`]). An object takes a thread from the accounts in a fixed order, and
//! keeps the first account's thread while it waits for the second one's.

use kernel::{prelude::*, sync::Arc};
use rdma::{memory::odp, new_bh_spinlock, support::sync::BhSpinLock};

use crate::{
    doorbells::Doorbells,
    limits::{
        accounts::{Payer, Threads},
        semaphore::WaiterEntry,
    },
    qp::Qp,
    verbs::cq::Cq,
};

/// An object that needs threads of a work queue.
#[derive(Clone)]
pub(crate) enum Waiter {
    /// A QP, which runs its engine in `rrxe_deferred`.
    Qp(Arc<Qp>),
    /// A CQ that has overflowed, which sets its QPs to the error state in `rrxe_deferred`.
    Cq(Arc<Cq>),
    /// A doorbell page whose polling the watchdog has ended, and whose last doorbells are served in
    /// `rrxe_deferred`.
    Page(Arc<Doorbells>),
    /// An address space with on-demand regions, whose chunks of memory are released in
    /// `rrxe_release`.
    Owner(Arc<OwnerPermit>, Arc<odp::Owner>),
}

impl Waiter {
    /// Begins work of the object: queues its work item, now or as soon as its payer has a thread
    /// for it. Any context up to softirq.
    pub(crate) fn begin(self) {
        if self.permit().begin(&self) {
            self.enqueue();
        }
    }

    /// Returns the object's permit.
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

/// The permit of an address space with on-demand regions for threads of `rrxe_release`.
#[pin_data]
pub(crate) struct OwnerPermit {
    /// Permit for `rrxe_release`.
    #[pin]
    permit: ThreadPermit,
}

impl OwnerPermit {
    /// Creates the permit of an address space of `payer`'s process. It holds no thread yet. Process
    /// context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(payer: &Arc<Payer>) -> Result<Arc<Self>> {
        let permit = ThreadPermit::new(Threads::Releases, Some(payer.clone()))?;
        Arc::pin_init(pin_init!(Self { permit <- permit }), GFP_KERNEL_ACCOUNT)
    }
}

impl odp::ReleaseThreads for OwnerPermit {
    fn take(self: Arc<Self>, owner: &Arc<odp::Owner>) -> bool {
        let waiter = Waiter::Owner(self.clone(), owner.clone());
        self.permit.begin(&waiter)
    }

    fn give_back(&self) {
        self.permit.end();
    }
}

/// The permit of one QP, CQ, doorbell page or address space to occupy a thread of one work queue.
#[pin_data]
pub(crate) struct ThreadPermit {
    /// Work queue whose threads the permit is for.
    of: Threads,
    /// Payer of the object. `None` for an object of the kernel, which has no limit.
    payer: Option<Arc<Payer>>,
    /// State. The lock is held while the locks of the accounts' semaphores are taken.
    #[pin]
    state: BhSpinLock<State>,
}

struct State {
    /// Memory for a list entry; `None` while the object is in a list, and for an object of the
    /// kernel.
    entry: Option<WaiterEntry<Waiter>>,
    /// Whether the object has a thread.
    phase: Phase,
    /// Set when work began while the object had a thread or waited for one.
    again: bool,
    /// Set when the object is destroyed.
    closed: bool,
}

/// The state of an object's need for a thread.
#[derive(Clone, Copy)]
enum Phase {
    /// The object needs no thread.
    Idle,
    /// The object is in the list of one account. The fields are the account's index in
    /// [`Payer::accounts`] and the waiter's number.
    Waiting(usize, u64),
    /// The object has a thread: its work item is queued or running.
    Running,
}

impl ThreadPermit {
    /// Creates a permit that holds no thread yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(of: Threads, payer: Option<Arc<Payer>>) -> Result<impl PinInit<Self>> {
        let entry = match &payer {
            Some(_) => Some(WaiterEntry::new()?),
            None => None,
        };
        let state = State {
            entry,
            phase: Phase::Idle,
            again: false,
            closed: false,
        };
        Ok(pin_init!(Self {
            of,
            payer,
            state <- new_bh_spinlock!(state, "rrxe_thread_permit"),
        }))
    }

    /// Returns the payer of the object. `None` for an object of the kernel.
    pub(crate) fn payer(&self) -> Option<&Payer> {
        self.payer.as_deref()
    }

    /// Begins work of `waiter`, the object of this permit. Returns whether the caller must queue
    /// the work item. If not, the item is queued or running already, or the object is destroyed, or
    /// [`Self::end`] or [`Self::close`] of another permit will give the object a thread. Any
    /// context up to softirq.
    fn begin(&self, waiter: &Waiter) -> bool {
        let Some(payer) = &self.payer else {
            return true;
        };
        let mut state = self.state.lock();
        match state.phase {
            Phase::Idle if !state.closed => state.take_threads(self.of, payer, 0, waiter),
            _ => {
                state.again = true;
                false
            }
        }
    }

    /// Must be called at the start of the work item, which then does all work that began before.
    /// Any context up to softirq.
    pub(crate) fn run(&self) {
        self.state.lock().again = false;
    }

    /// Returns whether work began after [`Self::run`]. Any context up to softirq.
    pub(crate) fn is_needed_again(&self) -> bool {
        self.state.lock().again
    }

    /// Must be called at the end of the work item. Gives the thread back, and queues the work items
    /// of the objects that get it: two at most. Any context up to softirq.
    pub(crate) fn end(&self) {
        let Some(payer) = &self.payer else {
            return;
        };
        self.state.lock().phase = Phase::Idle;
        give_back(self.of, payer, usize::MAX);
    }

    /// Must be called when the object is destroyed: it waits for a thread no longer. Queues work
    /// items as [`Self::end`] does. Any context up to softirq.
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
        let Some(entry) = account.and_then(|account| account.threads(self.of).cancel(number))
        else {
            // The account has just given the object a thread: the caller of `resume()` takes the
            // thread back (`Resumed::Closed`).
            return;
        };
        state.entry = Some(entry);
        state.phase = Phase::Idle;
        drop(state);
        give_back(self.of, payer, index);
    }

    /// Continues to take threads for `waiter`, the object of this permit, after an account gave it
    /// a thread. Returns the state of the object.
    fn resume(&self, entry: WaiterEntry<Waiter>, waiter: &Waiter) -> Resumed {
        let mut state = self.state.lock();
        state.entry = Some(entry);
        let (Some(payer), Phase::Waiting(index, _)) = (&self.payer, state.phase) else {
            return Resumed::Waits;
        };
        state.phase = Phase::Idle;
        if state.closed {
            return Resumed::Closed(index);
        }
        match state.take_threads(self.of, payer, index.saturating_add(1), waiter) {
            true => Resumed::Runs,
            false => Resumed::Waits,
        }
    }
}

/// The state of an object after an account gave it a thread.
enum Resumed {
    /// The object has a thread of each account. The caller queues its work item.
    Runs,
    /// The object waits for a thread of another account.
    Waits,
    /// The object is destroyed. The caller takes back the thread that it offered, and the object's
    /// threads of the first accounts of the object's own payer. The field is the number of those
    /// accounts.
    Closed(usize),
}

impl State {
    /// Takes a thread from each account of `payer`, from index `from` on: the object has the
    /// threads of the accounts before. Returns `false` if the object waits for one of them.
    fn take_threads(&mut self, of: Threads, payer: &Payer, from: usize, waiter: &Waiter) -> bool {
        for (index, account) in payer.accounts().enumerate().skip(from) {
            // No entry: the object is in a list already.
            let Some(entry) = self.entry.take() else {
                return false;
            };
            match account.threads(of).down(entry, waiter) {
                Ok(entry) => self.entry = Some(entry),
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

/// Gives an object's threads of the first `count` accounts of `payer` back. Each thread passes to
/// the first object that waits for it, or to the next one if that one is being destroyed.
///
/// An object that is being destroyed may have threads of its own payer's accounts that come before
/// the account in question. These are given back, too. That payer may have a memory cgroup where
/// `payer` has none, and the other way round. A memory cgroup's account comes before the user's
/// account, so the recursion ends at the cgroup's.
fn give_back(of: Threads, payer: &Payer, count: usize) {
    for account in payer.accounts().take(count) {
        while let Some((entry, waiter)) = account.threads(of).up() {
            match waiter.permit().resume(entry, &waiter) {
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
