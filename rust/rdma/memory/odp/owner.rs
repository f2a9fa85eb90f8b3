// SPDX-License-Identifier: GPL-2.0

//! Processes with on-demand regions, and the release of their chunks.
//!
//! A chunk holds the addresses of the present pages of 2 MiB of on-demand memory, and an
//! `ib_umem_odp`, whose MMU notifier removes pages from the chunk. An [`Owner`] represents a
//! process that has chunks.
//!
//! `ib_umem_odp_release()` waits, uninterruptibly, for a moment at which no range of the address
//! space is being invalidated. A process whose threads change its mappings all the time decides
//! when this moment comes. So no system call releases a chunk:
//!
//! - A chunk that ends removes its pages. Its remains go to a list of its [`Owner`]. The owner's
//!   work item releases them.
//! - The work item also ends the process's chunks on a device after the process's last region on
//!   that device has ended. So the system call that ended the region does not wait, although the
//!   process decides how many chunks there are. These chunks belong to one `AddressSpace`.
//! - The work item ends the threads of an owner that is not in use. A process that is stopped or
//!   frozen does not let its threads end.
//!
//! A work item that waits occupies one thread of the work queue, however many chunks wait.
//! The work items of one user or one memory cgroup occupy no more threads than their quota
//! allows ([`ReleaseThreads`]). Further work items wait until one of these threads is free,
//! and occupy none.
//!
//! The number of waiting remains is bounded: a thread that creates a chunk waits for room first
//! ([`Owner::wait_for_room`]).
//!
//! Threads of the process fault memory in ([`Owner::begin_job`]). So the memory counts for the
//! process as if it had accessed the memory itself, and no fault outlives the process.

use core::ptr::NonNull;

use kernel::{
    impl_has_work,
    mm::Mm,
    new_spinlock, new_work,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    str::CStr,
    sync::{aref::ARef, Arc, SpinLock},
    time::{delay::fsleep, Delta},
    workqueue::{Work, WorkItem},
};

use super::{address_space::Spaces, first_notifier, Pages};
use crate::{
    bindings,
    device::IbDevice,
    memory::is_current_mm,
    support::{
        module::ModuleRef,
        sync::{check_no_signal, cond_resched},
        user_thread::{Job, Pending, UserThreads},
        workqueue::OwnedQueue,
    },
};

/// Pause between two checks for room in [`Owner::wait_for_room`].
const NAP: Delta = Delta::from_millis(20);

/// Part of a chunk that exists until the owner's work item releases it. Its memory stays charged to
/// the memory cgroup of the process.
///
/// # Invariants
///
/// `umem` is valid, and its `private` is null or points to `pages`.
pub(super) struct Remains {
    pub(super) umem: NonNull<bindings::ib_umem_odp>,
    pub(super) pages: Pages,
    /// Keeps the device, which `ib_umem_odp_release()` accesses.
    _device: ARef<IbDevice>,
    next: Option<KBox<Remains>>,
}

impl Remains {
    /// Creates the remains of a chunk whose `umem` belongs to `device`.
    ///
    /// # Safety
    ///
    /// `umem` must be valid until it is released, and its `private` must be null. Only the result
    /// may release it.
    pub(super) unsafe fn new(
        umem: NonNull<bindings::ib_umem_odp>,
        pages: Pages,
        device: &IbDevice,
    ) -> Self {
        // INVARIANT: The caller guarantees that `umem` is valid and that its `private` is null (see
        // `# Safety`).
        Self {
            umem,
            pages,
            _device: device.into(),
            next: None,
        }
    }
}

// SAFETY: The functions that take an `ib_umem_odp` lock it. The entries of `pages` are atomics.
unsafe impl Send for Remains {}
// SAFETY: The functions that take an `ib_umem_odp` lock it. The entries of `pages` are atomics.
unsafe impl Sync for Remains {}

impl Drop for Remains {
    /// Waits for the MMU notifiers of the process. So only the work item of an [`Owner`] drops
    /// remains.
    fn drop(&mut self) {
        // SAFETY: `umem` is valid by the type invariant, and released once, here; the notifier
        // doesn't run any more when this returns.
        unsafe { bindings::ib_umem_odp_release(self.umem.as_ptr()) };
    }
}

/// Returns the number of an address space: the address of its `mm_struct`. No two live address
/// spaces have the same number.
fn number(mm: &Mm) -> usize {
    mm.as_raw() as usize
}

/// Permit for one thread of the work queue that releases chunks. Each [`Owner`] has one. The driver
/// implements this trait by its quotas of threads.
pub trait ReleaseThreads: Send + Sync {
    /// Requests a thread for `owner`, to which this permit belongs and which has no thread. Returns
    /// whether `owner` has a thread now. If not, the implementation calls [`Owner::begin`] as soon
    /// as a thread is free. Process context.
    fn take(self: Arc<Self>, owner: &Arc<Owner>) -> bool;

    /// Gives the owner's thread back. Process context.
    fn give_back(&self);
}

/// Function that creates the permit of a new [`Owner`]. Process context.
pub type NewPermit<'a> = &'a dyn Fn() -> Result<Arc<dyn ReleaseThreads>>;

/// Work that an [`Owner`] leaves to its work item.
struct Waiting {
    /// List of the remains that wait for their release.
    first: Option<KBox<Remains>>,
    /// Number of remains in the list, including those that are being released.
    count: u32,
    /// Set if the process may have an `AddressSpace` without regions, or if the owner itself may be
    /// unused.
    unused: bool,
    /// Set while the owner has a thread of the work queue, or waits for one.
    busy: bool,
}

impl Waiting {
    /// Returns whether there is no work.
    fn is_empty(&self) -> bool {
        self.first.is_none() && !self.unused
    }
}

/// Process (more exactly: address space) that has on-demand regions, or chunks that wait for their
/// release.
#[pin_data]
pub struct Owner {
    /// Reference to the `mm_struct`. It keeps the structure, but no mappings.
    mm: ARef<Mm>,
    /// Threads that serve page faults and advice (`ibv_advise_mr()`). If several processes share
    /// the address space, the threads belong to the process that registered first. They have the
    /// credentials that the thread that created this owner had at that time.
    fault_threads: UserThreads,
    threads: Arc<dyn ReleaseThreads>,
    #[pin]
    waiting: SpinLock<Waiting>,
    #[pin]
    work: Work<Self>,
    owners: Arc<Owners>,
    _module: ModuleRef,
}

impl_has_work! { impl HasWork<Self> for Owner { self.work } }

impl Owner {
    /// Creates the owner of the calling process, whose address space is `mm`, without threads.
    /// Process context; sleeps.
    fn new(owners: &Arc<Owners>, mm: ARef<Mm>, threads: NewPermit<'_>) -> Result<Arc<Self>> {
        let module = ModuleRef::begin()?;
        let threads = threads()?;
        let fault_threads = UserThreads::new(c"rrxe_faults")?;
        let waiting = Waiting {
            first: None,
            count: 0,
            unused: false,
            busy: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                mm,
                fault_threads,
                threads,
                waiting <- new_spinlock!(waiting, "rrxe_owner"),
                work <- new_work!("Owner::work"),
                owners: owners.clone(),
                _module: module,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Prepares the address space for the MMU notifier of a chunk. In a thread of the process;
    /// sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the calling thread belongs to another process; those of
    /// [`first_notifier::prepare`].
    pub(super) fn prepare_for_notifiers(&self) -> Result {
        if !self.is_here() {
            return Err(EFAULT);
        }
        // SAFETY: `is_here` checked that the calling thread has this address space.
        unsafe { first_notifier::prepare(self.mm.as_raw().cast()) }
    }

    /// Returns the module's table of owners.
    pub(super) fn owners(&self) -> &Arc<Owners> {
        &self.owners
    }

    /// Returns the number of the address space. No two address spaces that have owners have the
    /// same number.
    pub(super) fn number(&self) -> usize {
        number(&self.mm)
    }

    /// Queues `job` for a thread of the process. The caller must have the owner in use ([`Open`]).
    /// Process context.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process has ended; `ENOMEM`.
    pub(super) fn begin_job(&self, job: Arc<dyn Job>) -> Result<Pending> {
        self.fault_threads.begin(job)
    }

    /// Returns whether the calling thread has this address space.
    pub(super) fn is_here(&self) -> bool {
        is_current_mm(self.mm.as_raw().cast())
    }

    /// Hands `remains`, whose pages have been removed, to the work item for release. Process
    /// context; neither waits nor allocates.
    pub(super) fn release(self: &Arc<Self>, mut remains: KBox<Remains>) {
        self.add(|waiting| {
            remains.next = waiting.first.take();
            waiting.first = Some(remains);
            waiting.count = waiting.count.saturating_add(1);
        });
    }

    /// Causes the work item to drop each `AddressSpace` without regions, and then the owner itself
    /// with its threads, if it is not in use. Process context; neither waits nor allocates.
    pub(super) fn end_unused(self: &Arc<Self>) {
        self.add(|waiting| waiting.unused = true);
    }

    /// Adds work by `add`, and starts the work item unless it is busy.
    fn add(self: &Arc<Self>, add: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.waiting.lock();
        add(&mut waiting);
        let was_busy = core::mem::replace(&mut waiting.busy, true);
        drop(waiting);
        if !was_busy {
            self.take_thread();
        }
    }

    /// Requests a thread and queues the work item: at once if a thread is free, else as soon as one
    /// is.
    fn take_thread(self: &Arc<Self>) {
        if self.threads.clone().take(self) {
            self.clone().begin();
        }
    }

    /// Queues the work item. The owner must have been given a thread by [`ReleaseThreads`].
    /// Any context.
    pub fn begin(self: Arc<Self>) {
        let owners = self.owners.clone();
        let _ = owners.queue.enqueue(self);
    }

    /// Returns the number of chunks that wait for their release.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting.lock().count
    }

    /// Waits until at most `most` chunks wait for their release. In a thread of the process;
    /// sleeps.
    ///
    /// # Errors
    ///
    /// `EINTR` if the thread was killed; `ERESTARTNOINTR` if it has to take another signal first.
    pub(super) fn wait_for_room(&self, most: u32) -> Result {
        while self.waiting() > most {
            check_no_signal()?;
            fsleep(NAP);
        }
        Ok(())
    }

    /// Clears the flag `unused` and returns its old value. An `AddressSpace` that loses its last
    /// region later sets the flag again.
    fn take_unused(&self) -> bool {
        core::mem::take(&mut self.waiting.lock().unused)
    }

    /// Removes the first remains from the list and returns them.
    fn take_first(&self) -> Option<KBox<Remains>> {
        let mut waiting = self.waiting.lock();
        let mut first = waiting.first.take()?;
        waiting.first = first.next.take();
        Some(first)
    }

    /// Gives the thread back. Requests another one if work was added meanwhile. Pass `forgotten` if
    /// the table has forgotten the owner, which then has no work.
    fn end(self: &Arc<Self>, forgotten: bool) {
        self.threads.give_back();
        let mut waiting = self.waiting.lock();
        waiting.busy = !forgotten && !waiting.is_empty();
        let goes_on = waiting.busy;
        drop(waiting);
        if goes_on {
            self.take_thread();
        }
    }

    /// Counts one waiting chunk less.
    fn count_released(&self) {
        let mut waiting = self.waiting.lock();
        waiting.count = waiting.count.saturating_sub(1);
    }
}

impl WorkItem for Owner {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.take_unused() {
            this.owners.spaces.end_unused(this.number());
        }
        while let Some(remains) = this.take_first() {
            // The drop waits for the MMU notifiers of the process.
            drop(remains);
            this.count_released();
            cond_resched();
        }
        let forgotten = this.owners.forget_unused(&this);
        if forgotten {
            // The threads are stopped before `end` gives the thread of the work queue back:
            // stopping may wait for the process, and a work item that waits must hold its permit.
            // They are stopped before this function drops its reference to the owner: a thread of
            // the owner that dropped the last reference would wait for its own end.
            this.fault_threads.stop();
        }
        this.end(forgotten);
    }
}

/// Entry of the table of owners.
struct Entry {
    owner: Arc<Owner>,
    /// Number of the process's `AddressSpace`s (one for each device), plus the number of
    /// registrations in progress.
    uses: u32,
}

/// Table of the processes with on-demand regions, and the work queue that releases their chunks.
/// While the table has an entry, the module cannot be removed, since its removal would wait for MMU
/// notifiers.
#[pin_data]
pub struct Owners {
    queue: OwnedQueue,
    /// Owners by the address of the `mm_struct`, to which the owner holds a reference.
    #[pin]
    entries: SpinLock<RBTree<usize, Entry>>,
    #[pin]
    pub(super) spaces: Spaces,
}

impl Owners {
    /// Creates an empty table, with a work queue `name` that has at most `threads` threads. Process
    /// context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(name: &'static CStr, threads: u32) -> Result<Arc<Self>> {
        let queue = OwnedQueue::new_unbound(name, threads)?;
        let owners = pin_init!(Self {
            queue,
            entries <- new_spinlock!(RBTree::new(), "rrxe_owners"),
            spaces <- Spaces::new(),
        });
        Arc::pin_init(owners, GFP_KERNEL)
    }

    /// Waits for the end of the releases that have begun. To be called at the end of the module,
    /// when no region exists any more. Process context; sleeps.
    pub fn flush(&self) {
        self.queue.flush();
    }

    /// Returns the owner of the calling process, and creates it if necessary. The owner is in use
    /// until the result is dropped. `threads` creates the permit of a new owner. Process context;
    /// sleeps.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the module is being removed.
    /// - `EAGAIN` if the user or the cgroup of the process may have no more threads.
    /// - `ERESTARTNOINTR` if a signal is pending: the system call is restarted afterwards.
    /// - `EOPNOTSUPP` if the kernel has no `CONFIG_VHOST_TASK`.
    /// - `EINVAL` if the next children of the process belong to another PID namespace than itself
    ///   (`unshare(CLONE_NEWPID)`).
    /// - `ENOMEM`, and the errors of `threads`.
    pub(super) fn open(self: &Arc<Self>, threads: NewPermit<'_>) -> Result<Open> {
        // Only processes register on-demand regions, and each process has an address space.
        let mm = ARef::<Mm>::from(&**current!().mm().ok_or(EINVAL)?);
        let number = number(&mm);
        if let Some(owner) = self.open_existing(number) {
            return Ok(owner);
        }
        let owner = Owner::new(self, mm, threads)?;
        let entry = Entry {
            owner: owner.clone(),
            uses: 1,
        };
        let node = RBTreeNode::new(number, entry, GFP_KERNEL_ACCOUNT)?;
        // This is the last step that may fail: once the thread runs, only a work item may end the
        // owner, because the end of the owner waits for the thread.
        owner.fault_threads.start()?;
        let mut entries = self.entries.lock();
        // Another thread of the process may have inserted an owner meanwhile.
        if let Some(entry) = entries.get_mut(&number) {
            let first = Self::use_entry(entry);
            drop(entries);
            owner.end_unused();
            return Ok(first);
        }
        let _ = entries.insert(node);
        drop(entries);
        Ok(Open(owner))
    }

    /// Returns the owner with this number, in use once more, or `None` if there is none.
    fn open_existing(&self, number: usize) -> Option<Open> {
        self.entries.lock().get_mut(&number).map(Self::use_entry)
    }

    /// Counts one more use of the owner of `entry`.
    fn use_entry(entry: &mut Entry) -> Open {
        entry.uses = entry.uses.saturating_add(1);
        Open(entry.owner.clone())
    }

    /// Removes `owner` from the table if it is not in use and none of its chunks waits. An
    /// `AddressSpace` without regions counts as a use. Returns whether `owner` is not in the table
    /// now: then no task can begin to use it, and the caller ends its threads. To be called in the
    /// owner's work item.
    fn forget_unused(&self, owner: &Owner) -> bool {
        let number = owner.number();
        let mut entries = self.entries.lock();
        // After `owner` was removed, a registration of its process creates another owner with the
        // same number.
        let own = |entry: &&Entry| core::ptr::eq(&*entry.owner, owner);
        let unused = match entries.get(&number).filter(own) {
            None => None,
            Some(entry) if entry.uses == 0 && owner.waiting() == 0 => entries.remove_node(&number),
            Some(_) => return false,
        };
        drop(entries);
        drop(unused);
        true
    }
}

/// Reference to an [`Owner`] that keeps the owner in use. All devices share the owner of a process.
pub(super) struct Open(Arc<Owner>);

impl Open {
    /// Returns the owner.
    pub(super) fn owner(&self) -> &Arc<Owner> {
        &self.0
    }
}

impl Drop for Open {
    /// Must be dropped after the chunks of the `AddressSpace` that holds it. Process context; does
    /// not wait: the caller may be a system call that holds locks of uverbs.
    fn drop(&mut self) {
        let mut entries = self.0.owners.entries.lock();
        let unused = entries.get_mut(&self.0.number()).is_some_and(|entry| {
            entry.uses = entry.uses.saturating_sub(1);
            entry.uses == 0
        });
        drop(entries);
        if unused {
            self.0.end_unused();
        }
    }
}
