// SPDX-License-Identifier: GPL-2.0

//! The limits on threads of work queues, for each user and for each memory cgroup.
//!
//! All users share the threads of three work queues, and accounts limit each user's part.
//! `rrxe_faults` and `rrxe_advice` sleep: a file system in user space, or a program that serves its
//! memory by userfaultfd, may never answer a fault. `rrxe_rest` runs QPs: a work queue begins its
//! items in the order of their arrival, so a user's time would grow with the number of its QPs. A
//! QP whose account has no thread left waits in a list of the account, not in the work queue.
//!
//! Two limits hold at once. The limit of a memory cgroup is no higher than that of a user. It
//! bounds a container, which can't leave its cgroup, but whose root may become any user. The limit
//! of a user bounds users to whom a part of the tree of cgroups was delegated, for they make as
//! many cgroups there as they like. It also bounds users in the root's cgroup, which has no limit.

use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::Arc,
};
use rdma::{
    new_bh_spinlock,
    principal::Principal,
    quota::{Claim, Quota},
    sync::BhSpinLock,
};

use crate::{limits, qp::Qp, semaphore::Semaphore};

/// Threads that a QP needs at times.
#[derive(Clone, Copy)]
pub(crate) enum Threads {
    /// Those of `rrxe_faults`.
    Faults,
    /// Those of `rrxe_rest`.
    Rests,
}

/// The threads that work for one user or one memory cgroup.
#[pin_data]
pub(crate) struct Account {
    /// Threads for faults of QPs.
    #[pin]
    faults: Semaphore<Arc<Qp>>,
    /// Threads that run QPs.
    #[pin]
    rests: Semaphore<Arc<Qp>>,
    /// Threads for advice.
    advice: Arc<Quota>,
}

impl Account {
    /// With `sleepers` threads each for faults and for advice, and `runners` that run QPs.
    fn new(sleepers: u32, runners: u32) -> Result<Arc<Self>> {
        let advice = Quota::new(sleepers)?;
        let account = pin_init!(Self {
            faults <- Semaphore::new(sleepers),
            rests <- Semaphore::new(runners),
            advice,
        });
        Arc::pin_init(account, GFP_KERNEL_ACCOUNT)
    }

    /// Those of one kind.
    pub(crate) fn threads(&self, of: Threads) -> &Semaphore<Arc<Qp>> {
        match of {
            Threads::Faults => &self.faults,
            Threads::Rests => &self.rests,
        }
    }
}

struct Entry {
    account: Arc<Account>,
    /// Payers that have it.
    uses: u32,
}

/// The accounts that somebody uses.
#[pin_data]
pub(crate) struct Accounts {
    /// Threads of `rrxe_rest` that each has.
    runners: u32,
    #[pin]
    entries: BhSpinLock<RBTree<Principal, Entry>>,
}

impl Accounts {
    /// None yet. Each will have `runners` threads of `rrxe_rest`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(runners: u32) -> Result<Arc<Self>> {
        let accounts = pin_init!(Self {
            runners,
            entries <- new_bh_spinlock!(RBTree::new(), "rrxe_accounts"),
        });
        Arc::pin_init(accounts, GFP_KERNEL)
    }

    /// Finds the account of `of`, or makes it, with `sleepers` threads of each queue whose threads
    /// sleep.
    fn open(self: &Arc<Self>, of: Principal, sleepers: u32) -> Result<Open> {
        let account = Account::new(sleepers, self.runners)?;
        let entry = Entry {
            account: account.clone(),
            uses: 1,
        };
        let node = RBTreeNode::new(of, entry, GFP_KERNEL_ACCOUNT)?;
        let mut entries = self.entries.lock();
        let account = match entries.get_mut(&of) {
            Some(entry) => {
                entry.uses = entry.uses.saturating_add(1);
                entry.account.clone()
            }
            None => {
                let _ = entries.insert(node);
                account
            }
        };
        drop(entries);
        Ok(Open {
            accounts: self.clone(),
            of,
            account,
        })
    }
}

/// An account in use: it is kept, so that whoever comes later has the same.
struct Open {
    accounts: Arc<Accounts>,
    of: Principal,
    account: Arc<Account>,
}

impl Drop for Open {
    /// Any context up to softirq.
    fn drop(&mut self) {
        let mut entries = self.accounts.entries.lock();
        let Some(entry) = entries.get_mut(&self.of) else {
            return;
        };
        entry.uses = entry.uses.saturating_sub(1);
        let unused = match entry.uses {
            0 => entries.remove_node(&self.of),
            _ => None,
        };
        drop(entries);
        drop(unused);
    }
}

/// The accounts of a process: that of its memory cgroup, unless this is the root's, and that of its
/// user, both as they were when this was made.
pub(crate) struct Payer {
    cgroup: Option<Open>,
    user: Open,
}

impl Payer {
    /// The current process. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn current(accounts: &Arc<Accounts>) -> Result<Self> {
        let cgroup = match Principal::current_memory_cgroup() {
            Some(cgroup) => Some(accounts.open(cgroup, limits::THREADS_OF_CGROUP)?),
            None => None,
        };
        let user = accounts.open(Principal::current_user(), limits::THREADS_OF_USER)?;
        Ok(Self { cgroup, user })
    }

    /// Its accounts. A thread that works for it counts in each, and takes them in this order.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Account> {
        let every = [self.cgroup.as_ref(), Some(&self.user)];
        every.into_iter().flatten().map(|open| &*open.account)
    }

    /// Takes a thread for advice, if the limits allow one more. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if they don't.
    pub(crate) fn claim_advice(&self) -> Result<AdviceClaim> {
        let claim = |open: &Open| open.account.advice.claim();
        Ok(AdviceClaim {
            _cgroup: self.cgroup.as_ref().map(claim).transpose()?,
            _user: claim(&self.user)?,
        })
    }
}

/// A thread for advice, given back when this is dropped.
pub(crate) struct AdviceClaim {
    _cgroup: Option<Claim>,
    _user: Claim,
}
