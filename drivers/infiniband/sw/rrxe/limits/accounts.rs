// SPDX-License-Identifier: GPL-2.0

//! Limits of each user and of each memory cgroup on objects, threads of work queues, advice
//! (`ibv_advise_mr()`), multicast attachments, flow steering rules, device memory, unread events
//! and memory of packets that wait for QPs.
//!
//! All users share the following resources, and each resource is finite:
//!
//! - Objects of verbs. The `rdma` cgroup divides them where an administrator has set its limits.
//!   The accounts here divide them everywhere.
//! - Threads of two work queues. A thread of `rrxe_release` waits for a moment at which the kernel
//!   invalidates no range of a process's address space. It also waits for the end of the threads
//!   that the driver has created in that process. A stopped process delays their end.
//!   `rrxe_deferred` runs QPs, sets the QPs of overflowed CQs to the error state, and serves the
//!   last doorbells of doorbell pages whose polling the watchdog has ended. A work queue starts its
//!   items in the order of their arrival. So without limits a user's part of the time would grow
//!   with the number of the user's QPs, CQs and contexts. An object whose account has no thread
//!   left waits in a list of the account, not in the work queue.
//! - Multicast groups. No other limit divides them: attachments are not uverbs objects, so the
//!   `rdma` cgroup does not count them.
//! - Flow steering rules. Each frame of the host may be matched against all rules. The `rdma`
//!   cgroup counts a rule as any other object.
//! - Device memory. The `rdma` cgroup counts its pieces, but not their bytes.
//! - Memory of packets that wait for QPs. All users of a network namespace share it. A QP that
//!   waits for a page fault (a parked QP) keeps its packets for as long.
//!
//! An object is charged to two accounts at a time, that of its process's memory cgroup and that of
//! its user, and must be within the limits of both. An object of a process in the root cgroup is
//! charged to its user only. A user namespace that root created for several users counts as one
//! user ([`Identity::UserNamespace`]).
//!
//! The limit of a memory cgroup is lower than that of a user, except for threads of
//! `rrxe_deferred`. The objects of a cgroup below it do not count: each cgroup has an account of
//! its own. The limit of a memory cgroup bounds a container. A container cannot leave its cgroup,
//! and creates no cgroups below unless that cgroup was delegated to it. But its root may become any
//! user.
//!
//! The limit of a user bounds users to whom a part of the cgroup tree was delegated, because these
//! create as many cgroups there as they like. It also bounds users in the root cgroup, which has no
//! limit. Two kinds of users evade both limits if cgroups were delegated to them, because they may
//! become other users: root of a container that has no user namespace of its own, and a user with
//! subordinate UIDs (`newuidmap`).

use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::Arc,
};
use rdma::{
    net::skb::{PayerBacklog, PayerBacklogs},
    new_bh_spinlock,
    support::{
        identity::Identity,
        quota::{Claims, Quota},
        sync::BhSpinLock,
    },
};

use crate::limits::{self, semaphore::Semaphore, thread_permit::Waiter, Allowance};

/// A work queue whose threads an account limits.
#[derive(Clone, Copy)]
pub(crate) enum Threads {
    /// `rrxe_deferred`.
    Deferred,
    /// `rrxe_release`.
    Releases,
}

/// The account of one user or one memory cgroup: its quotas and semaphores.
#[pin_data]
pub(crate) struct Account {
    /// Quota of objects of all kinds.
    objects: Arc<Quota>,
    /// Threads of `rrxe_deferred`, which run QPs, set the QPs of overflowed CQs to the error state
    /// and serve the last doorbells of pages whose polling the watchdog has ended.
    #[pin]
    deferred: Semaphore<Waiter>,
    /// Threads of `rrxe_release`, which release ended chunks of on-demand memory.
    #[pin]
    releases: Semaphore<Waiter>,
    /// Quota of calls of `ibv_advise_mr()` whose advice is queued, or which a thread carries out.
    advice: Arc<Quota>,
    /// Quota of attachments to multicast groups.
    attachments: Arc<Quota>,
    /// Quota of flow steering rules.
    flows: Arc<Quota>,
    /// Quota of bytes of device memory.
    device_memory: Arc<Quota>,
    /// Quota of CQs with more than one unread completion event.
    cqs_with_events: Arc<Quota>,
    /// Quota of objects with more than two unread asynchronous events.
    objects_with_events: Arc<Quota>,
    /// Bytes of the packets that wait for QPs of this account.
    packets: Arc<PayerBacklog>,
}

impl Account {
    /// Creates the account of the user or memory cgroup `of`, with the limits of `allowance` and
    /// `deferred_threads` threads of `rrxe_deferred`.
    fn new(of: &Identity, allowance: &Allowance, deferred_threads: u32) -> Result<Arc<Self>> {
        let packets = match of {
            Identity::MemoryCgroup(_) => PayerBacklog::of_cgroup()?,
            Identity::User(_) | Identity::UserNamespace(_) => PayerBacklog::of_user()?,
        };
        let objects = Quota::new(allowance.objects)?;
        // Advice has no limit of its own: see `Allowance::release_threads`.
        let advice = Quota::new(allowance.release_threads)?;
        let attachments = Quota::new(allowance.attachments)?;
        let flows = Quota::new(allowance.flows)?;
        let device_memory = Quota::new(allowance.device_memory)?;
        let cqs_with_events = Quota::new(allowance.cqs_with_events)?;
        let objects_with_events = Quota::new(allowance.objects_with_events)?;
        let account = pin_init!(Self {
            objects,
            deferred <- Semaphore::new(deferred_threads),
            releases <- Semaphore::new(allowance.release_threads),
            advice,
            attachments,
            flows,
            device_memory,
            cqs_with_events,
            objects_with_events,
            packets,
        });
        Arc::pin_init(account, GFP_KERNEL_ACCOUNT)
    }

    /// Returns the semaphore of the threads of one work queue.
    pub(crate) fn threads(&self, of: Threads) -> &Semaphore<Waiter> {
        match of {
            Threads::Deferred => &self.deferred,
            Threads::Releases => &self.releases,
        }
    }
}

/// An account in the tree.
struct Entry {
    account: Arc<Account>,
    /// Number of [`Open`] handles to the account.
    uses: u32,
}

/// The accounts in use, by identity.
#[pin_data]
pub(crate) struct Accounts {
    /// Number of threads of `rrxe_deferred` that each account may occupy at a time.
    deferred_threads: u32,
    /// Tree of the accounts.
    #[pin]
    entries: BhSpinLock<RBTree<Identity, Entry>>,
}

impl Accounts {
    /// Creates an empty set of accounts. Each account will have a limit of `deferred_threads`
    /// threads of `rrxe_deferred`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(deferred_threads: u32) -> Result<Arc<Self>> {
        let accounts = pin_init!(Self {
            deferred_threads,
            entries <- new_bh_spinlock!(RBTree::new(), "rrxe_accounts"),
        });
        Arc::pin_init(accounts, GFP_KERNEL)
    }

    /// Returns a handle to the account of the user or memory cgroup `of`, which it creates if there
    /// is none.
    fn open(self: &Arc<Self>, of: Identity, allowance: &Allowance) -> Result<Open> {
        let account = Account::new(&of, allowance, self.deferred_threads)?;
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

/// A handle to an account. The account stays in the tree while there are handles, so that later
/// payers of the same identity find it.
struct Open {
    accounts: Arc<Accounts>,
    of: Identity,
    account: Arc<Account>,
}

impl Drop for Open {
    /// Gives the handle up. The last one removes the account from the tree. Any context up to
    /// softirq.
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

/// The accounts to which the objects of a process are charged: that of its memory cgroup, unless
/// this is the root cgroup, and that of its user. The process may change its cgroup and its user
/// later; the payer does not change.
pub(crate) struct Payer {
    cgroup: Option<Open>,
    user: Open,
}

impl Payer {
    /// Returns the payer for the calling process. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn current(accounts: &Arc<Accounts>) -> Result<Self> {
        let cgroup = match Identity::current_memory_cgroup() {
            Some(cgroup) => Some(accounts.open(cgroup, &limits::OF_CGROUP)?),
            None => None,
        };
        let user = accounts.open(Identity::current_user(), &limits::OF_USER)?;
        Ok(Self { cgroup, user })
    }

    /// Returns the accounts: the memory cgroup's, if there is one, then the user's. A thread that
    /// works for the process is charged to each of them, in this order.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Account> {
        let every = [self.cgroup.as_ref(), Some(&self.user)];
        every.into_iter().flatten().map(|open| &*open.account)
    }

    /// Returns whether `other` has at least one of these accounts.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        self.accounts()
            .any(|ours| other.accounts().any(|theirs| core::ptr::eq(ours, theirs)))
    }

    /// Returns whether `other` has exactly these accounts.
    pub(crate) fn has_accounts_of(&self, other: &Self) -> bool {
        let account = |open: &Open| core::ptr::from_ref::<Account>(&open.account);
        let same_user = account(&self.user) == account(&other.user);
        same_user && self.cgroup.as_ref().map(account) == other.cgroup.as_ref().map(account)
    }

    /// Returns a number of the payer's user. No other user has the same number at the same time.
    pub(crate) fn user_number(&self) -> u64 {
        core::ptr::from_ref(&*self.user.account).addr() as u64
    }

    /// Returns the accounts' counts of the bytes of packets that wait for QPs.
    pub(crate) fn backlogs(&self) -> PayerBacklogs {
        let share = |open: &Open| open.account.packets.clone();
        [self.cgroup.as_ref().map(share), Some(share(&self.user))]
    }

    /// Claims the advice of one call of `ibv_advise_mr()`. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow one more.
    pub(crate) fn claim_advice(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.advice)
    }

    /// Claims one attachment to a multicast group. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow one more.
    pub(crate) fn claim_attachment(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.attachments)
    }

    /// Claims one flow steering rule. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow one more.
    pub(crate) fn claim_flow(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.flows)
    }

    /// Claims `bytes` bytes of device memory. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow them.
    pub(crate) fn claim_device_memory(&self, bytes: u32) -> Result<PayerClaim> {
        self.claim(bytes, |account| &account.device_memory)
    }

    /// Claims the right of one CQ to more than one unread completion event. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow one more such CQ.
    pub(crate) fn claim_unread_events(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.cqs_with_events)
    }

    /// Claims the right of one object to more than two unread asynchronous events. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow one more such object.
    pub(crate) fn claim_unread_async_events(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.objects_with_events)
    }

    /// Claims one object. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow one more.
    fn claim_object(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.objects)
    }

    /// Claims `count` units of the quota that `quota` selects, in each account.
    fn claim(&self, count: u32, quota: impl Fn(&Account) -> &Arc<Quota>) -> Result<PayerClaim> {
        let claim = |open: &Open| quota(&open.account).claim_many(count);
        Ok([
            self.cgroup.as_ref().map(claim).transpose()?,
            Some(claim(&self.user)?),
        ])
    }
}

/// Units of one quota in each account of a payer. Dropping the claim gives them back.
pub(crate) type PayerClaim = Claims;

/// The claim of an object on the object limit of its payer. Objects of the kernel claim nothing.
/// May be dropped in any context up to softirq.
pub(crate) struct ObjectClaim(Option<(PayerClaim, Arc<Payer>)>);

impl ObjectClaim {
    /// Claims one object for `payer`; claims nothing for the kernel (`None`). Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow one more.
    pub(crate) fn new(payer: Option<&Arc<Payer>>) -> Result<Self> {
        let claim = |payer: &Arc<Payer>| Ok((payer.claim_object()?, payer.clone()));
        payer.map(claim).transpose().map(Self)
    }

    /// Returns the payer; `None` for the kernel.
    pub(crate) fn payer(&self) -> Option<&Arc<Payer>> {
        self.0.as_ref().map(|(_, payer)| payer)
    }
}

#[kunit_tests(rrxe_accounts)]
mod tests {
    use super::*;

    const OF_USER: Allowance = Allowance {
        objects: 2,
        release_threads: 1,
        attachments: 8,
        flows: 2,
        cqs_with_events: 1,
        objects_with_events: 1,
        device_memory: 1 << 20,
    };
    const OF_CGROUP: Allowance = Allowance {
        objects: 1,
        attachments: 5,
        flows: 1,
        device_memory: 512 << 10,
        ..OF_USER
    };

    /// Creates the payer of a process of user `user`, in the memory cgroup of number `cgroup` if
    /// any.
    fn payer(accounts: &Arc<Accounts>, cgroup: Option<u64>, user: u32) -> Result<Payer> {
        let cgroup = match cgroup {
            Some(number) => Some(accounts.open(Identity::MemoryCgroup(number), &OF_CGROUP)?),
            None => None,
        };
        let user = accounts.open(Identity::User(user), &OF_USER)?;
        Ok(Payer { cgroup, user })
    }

    /// Returns whether the payer has no attachment left.
    fn is_spent(payer: &Payer) -> bool {
        payer.claim_attachment().is_err_and(|error| error == ENOMEM)
    }

    /// Claims attachments until the payer has none left.
    fn exhaust(payer: &Payer) -> Result<KVec<PayerClaim>> {
        let mut claims = KVec::new();
        while let Ok(claim) = payer.claim_attachment() {
            claims.push(claim, GFP_KERNEL)?;
        }
        Ok(claims)
    }

    #[test]
    fn payers_share_the_account_of_a_user_or_of_a_cgroup() -> Result {
        let accounts = Accounts::new(1)?;
        let one = payer(&accounts, Some(1), 1)?;
        for (cgroup, user, shares) in [
            (Some(1), 1, true),
            (Some(1), 2, true),
            (Some(2), 1, true),
            (None, 1, true),
            (Some(2), 2, false),
            (None, 2, false),
        ] {
            let other = payer(&accounts, cgroup, user)?;
            assert_eq!(other.shares_with(&one), shares);
            assert_eq!(other.has_accounts_of(&one), (cgroup, user) == (Some(1), 1));
        }
        Ok(())
    }

    #[test]
    fn limit_the_attachments_of_a_user() -> Result {
        let accounts = Accounts::new(1)?;
        let first = payer(&accounts, None, 1)?;
        let second = payer(&accounts, Some(7), 1)?;
        let other = payer(&accounts, Some(7), 2)?;
        let mut claims = exhaust(&first)?;
        assert_eq!(claims.len(), 8);
        assert!(is_spent(&second));
        assert!(!is_spent(&other));
        drop(claims.pop());
        assert!(!is_spent(&second));
        Ok(())
    }

    /// Returns whether the packets of both payers count for the same memory cgroup, and whether
    /// they count for the same user.
    fn common(one: &Payer, other: &Payer) -> [bool; 2] {
        let (one, other) = (one.backlogs(), other.backlogs());
        core::array::from_fn(|index| match (&one[index], &other[index]) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        })
    }

    #[test]
    fn share_the_packets_of_users_and_cgroups() -> Result {
        let accounts = Accounts::new(1)?;
        let first = payer(&accounts, Some(7), 1)?;
        let of_user = payer(&accounts, Some(8), 1)?;
        let of_cgroup = payer(&accounts, Some(7), 2)?;
        let beyond = payer(&accounts, None, 1)?;
        assert_eq!(common(&first, &of_user), [false, true]);
        assert_eq!(common(&first, &of_cgroup), [true, false]);
        assert_eq!(common(&of_user, &of_cgroup), [false, false]);
        assert_eq!(common(&first, &beyond), [false, true]);
        assert_eq!(common(&beyond, &beyond), [false, true]);
        Ok(())
    }

    #[test]
    fn limit_the_attachments_of_a_cgroup() -> Result {
        let accounts = Accounts::new(1)?;
        let first = payer(&accounts, Some(7), 1)?;
        let second = payer(&accounts, Some(7), 2)?;
        let other = payer(&accounts, Some(8), 2)?;
        let claims = exhaust(&first)?;
        assert_eq!(claims.len(), 5);
        assert!(is_spent(&second));
        assert!(!is_spent(&other));
        drop(claims);
        assert!(!is_spent(&second));
        Ok(())
    }

    #[test]
    fn limit_the_bytes_of_device_memory() -> Result {
        let accounts = Accounts::new(1)?;
        let first = payer(&accounts, Some(7), 1)?;
        let second = payer(&accounts, None, 1)?;
        let spent = |payer: &Payer, bytes| payer.claim_device_memory(bytes).is_err();
        assert!(spent(&first, (512 << 10) + 1));
        let claim = first.claim_device_memory(512 << 10)?;
        assert!(spent(&first, 1));
        // A refused claim is charged to no account.
        assert!(spent(&second, (512 << 10) + 1));
        let rest = second.claim_device_memory(512 << 10)?;
        assert!(spent(&second, 1));
        drop(claim);
        assert!(!spent(&first, 512 << 10));
        drop(rest);
        assert!(!spent(&second, 1 << 20));
        Ok(())
    }

    #[test]
    fn limit_the_rules_of_a_cgroup_and_of_its_user() -> Result {
        let accounts = Accounts::new(1)?;
        let contained = payer(&accounts, Some(7), 1)?;
        let free = payer(&accounts, None, 1)?;
        let other = payer(&accounts, None, 2)?;
        let spent = |payer: &Payer| payer.claim_flow().is_err_and(|error| error == ENOMEM);
        let first = contained.claim_flow()?;
        assert!(spent(&contained));
        let second = free.claim_flow()?;
        assert!(spent(&free));
        assert!(!spent(&other));
        drop(first);
        assert!(!spent(&contained));
        drop(second);
        Ok(())
    }

    #[test]
    fn limit_the_objects_of_a_user_and_not_the_kernels() -> Result {
        let accounts = Accounts::new(1)?;
        let shared = |cgroup, user| -> Result<Arc<Payer>> {
            Ok(Arc::new(payer(&accounts, cgroup, user)?, GFP_KERNEL)?)
        };
        let spent =
            |payer: &Arc<Payer>| ObjectClaim::new(Some(payer)).is_err_and(|error| error == ENOMEM);
        let (contained, free) = (shared(Some(7), 1)?, shared(None, 1)?);
        let first = ObjectClaim::new(Some(&contained))?;
        assert!(spent(&contained));
        let second = ObjectClaim::new(Some(&free))?;
        assert!(spent(&free));
        let other = shared(None, 2)?;
        assert!(!spent(&other));
        assert!(ObjectClaim::new(None)?.payer().is_none());
        // A claim keeps the accounts that it is charged to.
        drop((free, contained, second));
        let again = shared(None, 1)?;
        let third = ObjectClaim::new(Some(&again))?;
        assert!(spent(&again));
        drop((first, third));
        assert!(!spent(&again));
        Ok(())
    }

    #[test]
    fn leave_attachments_to_other_cgroups_of_a_user() -> Result {
        let accounts = Accounts::new(1)?;
        let first = payer(&accounts, Some(7), 0)?;
        let second = payer(&accounts, Some(8), 0)?;
        let hoard = exhaust(&first)?;
        assert_eq!(exhaust(&second)?.len(), 3);
        drop(hoard);
        assert_eq!(exhaust(&second)?.len(), 5);
        Ok(())
    }
}
