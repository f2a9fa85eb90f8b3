// SPDX-License-Identifier: GPL-2.0

//! The limits on objects, threads of work queues, multicast attachments, rules of flow steering, device memory, unread
//! events and packets that wait for QPs, for each user and for each memory cgroup.
//!
//! All users share the objects of a device: there is an end of each kind. The `rdma` cgroup divides them where an
//! administrator has set its limits; the accounts do everywhere.
//!
//! All users share the threads of work queues, and accounts limit each user's part of two of them.
//! `rrxe_release` waits for processes' invalidations of memory, and until stopped processes let their threads end.
//! `rrxe_deferred` runs QPs, ends those of CQs that overflowed, and serves last doorbells: a work queue begins its
//! items in the order of their arrival, so a user's time would grow with the number of its QPs, CQs and
//! contexts. One whose account has no thread left waits in a list of the account, not in the work queue.
//!
//! All users share the multicast groups of a device, which no other limit divides: attachments are no objects of uverbs,
//! so the `rdma` cgroup does not count them.
//!
//! All users share the rules of a device, and each frame of the host may meet all rules. For the
//! `rdma` cgroup a rule is an object like any other.
//!
//! All users share the memory of a device. The `rdma` cgroup counts its pieces, but not their bytes.
//!
//! All users of a namespace share the memory of packets that wait for QPs. QPs that stand still keep theirs.
//!
//! Two limits hold at once. The limit of a memory cgroup is lower than that of a user, and counts what belongs to that cgroup
//! itself: each cgroup within it has an account of its own. It bounds a container, which can't leave its cgroup, and makes
//! none within it unless these were delegated to it, but whose root may become any user. The limit of a user bounds users to
//! whom a part of the tree of cgroups was delegated, for they make as many cgroups there as they like. It also bounds users
//! in the root's cgroup, which has no limit. Root of a container without a user namespace to which cgroups were delegated
//! evades both.

use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::Arc,
};
use rdma::{
    net::skb::{Share, Shares},
    new_bh_spinlock,
    support::{
        identity::Identity,
        quota::{Claims, Quota},
        sync::BhSpinLock,
    },
};

use crate::limits::{self, semaphore::Semaphore, thread_permit::Waiter, Allowance};

/// Threads that a QP, a CQ, a page of doorbells or an address space needs at times.
#[derive(Clone, Copy)]
pub(crate) enum Threads {
    /// Those of `rrxe_deferred`.
    Rests,
    /// Those of `rrxe_release`.
    Releases,
}

/// The objects of one user or one memory cgroup, the threads that work for it, its attachments to multicast groups, its
/// rules, its device memory, its objects with unread events, and the packets that wait for its QPs.
#[pin_data]
pub(crate) struct Account {
    /// Objects of all kinds.
    objects: Arc<Quota>,
    /// Threads that run QPs, end those of CQs and serve last doorbells.
    #[pin]
    deferred: Semaphore<Waiter>,
    /// Threads that release what ended of regions on demand.
    #[pin]
    releases: Semaphore<Waiter>,
    /// Advice that is followed, or waits.
    advice: Arc<Quota>,
    /// Attachments to multicast groups.
    attachments: Arc<Quota>,
    /// Rules of flow steering.
    flows: Arc<Quota>,
    /// Bytes of device memory.
    device_memory: Arc<Quota>,
    /// CQs with more than one unread completion event.
    events: Arc<Quota>,
    /// Objects with more than two unread asynchronous events.
    async_events: Arc<Quota>,
    /// Packets that wait for QPs.
    packets: Arc<Share>,
}

impl Account {
    /// That of `of`, with `runners` threads that run QPs.
    fn new(of: &Identity, allowance: &Allowance, runners: u32) -> Result<Arc<Self>> {
        let packets = match of {
            Identity::MemoryCgroup(_) => Share::of_cgroup()?,
            Identity::User(_) | Identity::UserNamespace(_) => Share::of_user()?,
        };
        let objects = Quota::new(allowance.objects)?;
        let advice = Quota::new(allowance.sleepers)?;
        let attachments = Quota::new(allowance.attachments)?;
        let flows = Quota::new(allowance.flows)?;
        let device_memory = Quota::new(allowance.device_memory)?;
        let events = Quota::new(allowance.cqs_with_events)?;
        let async_events = Quota::new(allowance.objects_with_events)?;
        let account = pin_init!(Self {
            objects,
            deferred <- Semaphore::new(runners),
            releases <- Semaphore::new(allowance.sleepers),
            advice,
            attachments,
            flows,
            device_memory,
            events,
            async_events,
            packets,
        });
        Arc::pin_init(account, GFP_KERNEL_ACCOUNT)
    }

    /// Those of one kind.
    pub(crate) fn threads(&self, of: Threads) -> &Semaphore<Waiter> {
        match of {
            Threads::Rests => &self.deferred,
            Threads::Releases => &self.releases,
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
    /// Threads of `rrxe_deferred` that each has.
    runners: u32,
    #[pin]
    entries: BhSpinLock<RBTree<Identity, Entry>>,
}

impl Accounts {
    /// None yet. Each will have `runners` threads of `rrxe_deferred`. Process context.
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

    /// Finds the account of `of`, or makes it.
    fn open(self: &Arc<Self>, of: Identity, allowance: &Allowance) -> Result<Open> {
        let account = Account::new(&of, allowance, self.runners)?;
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
    of: Identity,
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
        let cgroup = match Identity::current_memory_cgroup() {
            Some(cgroup) => Some(accounts.open(cgroup, &limits::OF_CGROUP)?),
            None => None,
        };
        let user = accounts.open(Identity::current_user(), &limits::OF_USER)?;
        Ok(Self { cgroup, user })
    }

    /// Its accounts. A thread that works for it counts in each, and takes them in this order.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Account> {
        let every = [self.cgroup.as_ref(), Some(&self.user)];
        every.into_iter().flatten().map(|open| &*open.account)
    }

    /// Whether it has an account in common with `other`: the user's, or the memory cgroup's.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        self.accounts()
            .any(|ours| other.accounts().any(|theirs| core::ptr::eq(ours, theirs)))
    }

    /// Whether it has the same accounts as `other`: the user's, and the memory cgroup's.
    pub(crate) fn has_accounts_of(&self, other: &Self) -> bool {
        let account = |open: &Open| core::ptr::from_ref::<Account>(&open.account);
        let same_user = account(&self.user) == account(&other.user);
        same_user && self.cgroup.as_ref().map(account) == other.cgroup.as_ref().map(account)
    }

    /// A number that no other user has at the same time.
    pub(crate) fn user_number(&self) -> u64 {
        core::ptr::from_ref(&*self.user.account).addr() as u64
    }

    /// The shares of the packets that wait for its QPs.
    pub(crate) fn shares(&self) -> Shares {
        let permit = |open: &Open| open.account.packets.clone();
        [self.cgroup.as_ref().map(permit), Some(permit(&self.user))]
    }

    /// Takes the room for a piece of advice, if the limits allow one more. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if they don't.
    pub(crate) fn claim_advice(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.advice)
    }

    /// Takes an attachment to a multicast group, if the limits allow one more. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if they don't.
    pub(crate) fn claim_attachment(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.attachments)
    }

    /// Takes a rule of flow steering, if the limits allow one more. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if they don't.
    pub(crate) fn claim_flow(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.flows)
    }

    /// Takes so many bytes of device memory, if the limits allow them. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if they don't.
    pub(crate) fn claim_device_memory(&self, bytes: u32) -> Result<PayerClaim> {
        self.claim(bytes, |account| &account.device_memory)
    }

    /// Takes the room for more than one unread event of a CQ, if the limits allow one more such CQ. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if they don't.
    pub(crate) fn claim_events(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.events)
    }

    /// Takes the room for more than two unread asynchronous events of an object, if the limits allow one more such object.
    /// Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if they don't.
    pub(crate) fn claim_async_events(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.async_events)
    }

    /// Takes the room for an object, if the limits allow one more. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if they don't.
    fn claim_object(&self) -> Result<PayerClaim> {
        self.claim(1, |account| &account.objects)
    }

    fn claim(&self, count: u32, quota: impl Fn(&Account) -> &Arc<Quota>) -> Result<PayerClaim> {
        let claim = |open: &Open| quota(&open.account).claim_many(count);
        Ok([
            self.cgroup.as_ref().map(claim).transpose()?,
            Some(claim(&self.user)?),
        ])
    }
}

/// A part of what the accounts of a process limit, given back when this is dropped.
pub(crate) type PayerClaim = Claims;

/// The room that an object takes of what its process's accounts allow. The kernel's objects take none. To be dropped in
/// any context up to softirq.
pub(crate) struct ObjectClaim(Option<(PayerClaim, Arc<Payer>)>);

impl ObjectClaim {
    /// Takes it of `payer`, or of nobody for the kernel. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits don't allow one more.
    pub(crate) fn new(payer: Option<&Arc<Payer>>) -> Result<Self> {
        let claim = |payer: &Arc<Payer>| Ok((payer.claim_object()?, payer.clone()));
        payer.map(claim).transpose().map(Self)
    }

    /// The payer; `None` for the kernel.
    pub(crate) fn payer(&self) -> Option<&Arc<Payer>> {
        self.0.as_ref().map(|(_, payer)| payer)
    }
}

#[kunit_tests(rrxe_accounts)]
mod tests {
    use super::*;

    const OF_USER: Allowance = Allowance {
        objects: 2,
        sleepers: 1,
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

    /// One in the memory cgroup of number `cgroup`, if any.
    fn payer(accounts: &Arc<Accounts>, cgroup: Option<u64>, user: u32) -> Result<Payer> {
        let cgroup = match cgroup {
            Some(number) => Some(accounts.open(Identity::MemoryCgroup(number), &OF_CGROUP)?),
            None => None,
        };
        let user = accounts.open(Identity::User(user), &OF_USER)?;
        Ok(Payer { cgroup, user })
    }

    fn is_spent(payer: &Payer) -> bool {
        payer.claim_attachment().is_err_and(|error| error == ENOMEM)
    }

    /// Claims until the payer has no attachment left.
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

    /// Whether packets of both count for the same share, of their cgroups and of their users.
    fn common(one: &Payer, other: &Payer) -> [bool; 2] {
        let (one, other) = (one.shares(), other.shares());
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
        // A refused claim counts for no account.
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
        // A claim keeps the accounts that it counts for.
        drop((free, contained, second));
        let again = shared(None, 1)?;
        let third = ObjectClaim::new(Some(&again))?;
        assert!(spent(&again));
        drop((first, third));
        assert!(!spent(&again));
        Ok(())
    }

    #[test]
    fn leave_attachments_of_a_user_to_his_other_cgroups() -> Result {
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
