// SPDX-License-Identifier: GPL-2.0

//! Address spaces with regions on demand, and the release of their chunks.
//!
//! `ib_umem_odp_release()` waits, without being interruptible, until at one moment nothing of the address space is being
//! invalidated: a process whose threads change its mappings all the time decides when that is. So no call of anybody
//! releases a chunk. A chunk that ends forgets its pages, and its remains go to a list of the address space; a work item
//! of the address space releases them. It ends the chunks of a device, too, when the last region there has ended: who ended
//! the region does not wait for as many chunks as the process likes. It ends the threads of an owner that isn't in use: a
//! process that is stopped or frozen does not let them end. One that has to wait occupies one thread, however many chunks wait. Those of a user
//! or a memory cgroup occupy no more threads than its share ([`Threads`]); the others wait for these, and occupy none.
//!
//! Remains that wait are bounded: whoever makes another chunk waits for room first ([`Owner::wait_for_room`]).
//!
//! A thread of the process has memory faulted in ([`Owner::begin_job`]): as if the process used it itself, and no longer than
//! the process lives.

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
        module::InUse,
        sync::{check_no_signal, cond_resched},
        user_thread::{Job, Pending, UserThreads},
        workqueue::OwnedQueue,
    },
};

/// Between two looks at whether there is room.
const NAP: Delta = Delta::from_millis(20);

/// What is left of a chunk. Its memory stays charged to its process.
///
/// # Invariants
///
/// `umem` is valid, and its `private` is null or points to `pages`.
pub(super) struct Remains {
    pub(super) umem: NonNull<bindings::ib_umem_odp>,
    pub(super) pages: Pages,
    /// The release looks at it.
    _device: ARef<IbDevice>,
    next: Option<KBox<Remains>>,
}

impl Remains {
    /// What will be left of a chunk of `umem`, which is of `device`.
    ///
    /// # Safety
    ///
    /// `umem` must be valid until it is released, which this does, and its `private` null.
    pub(super) unsafe fn new(
        umem: NonNull<bindings::ib_umem_odp>,
        pages: Pages,
        device: &IbDevice,
    ) -> Self {
        // INVARIANT: As the caller promises.
        Self {
            umem,
            pages,
            _device: device.into(),
            next: None,
        }
    }
}

// SAFETY: The functions of `ib_umem_odp` lock; the pages are atomics.
unsafe impl Send for Remains {}
// SAFETY: As above.
unsafe impl Sync for Remains {}

impl Drop for Remains {
    /// In the work item of an [`Owner`] only: waits for the MMU notifiers of the process.
    fn drop(&mut self) {
        // SAFETY: `umem` is valid by the type invariant, and released once, here;
        // the notifier doesn't run any more when this returns.
        unsafe { bindings::ib_umem_odp_release(self.umem.as_ptr()) };
    }
}

/// No two address spaces that live have the same.
fn number(mm: &Mm) -> usize {
    mm.as_raw() as usize
}

/// The share of an address space in the threads that release chunks.
pub trait Threads: Send + Sync {
    /// Takes a thread for `owner`, whose share it is and which has none. Returns whether there is one now; if not,
    /// [`Owner::begin`] is to be called once there is. Process context.
    fn take(self: Arc<Self>, owner: &Arc<Owner>) -> bool;

    /// Gives the thread back. Process context.
    fn give_back(&self);
}

/// Makes the share of an [`Owner`]. Process context.
pub type NewThreads<'a> = &'a dyn Fn() -> Result<Arc<dyn Threads>>;

/// The work that is left to the work item.
struct Waiting {
    /// Chunks that wait for their release.
    first: Option<KBox<Remains>>,
    /// Those in the list, and the one that is being released.
    count: u32,
    /// There may be an address space without regions, or the owner itself isn't in use.
    unused: bool,
    /// The owner has a thread or waits for one.
    busy: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.first.is_none() && !self.unused
    }
}

/// An address space that has regions on demand, or chunks that wait for their release.
#[pin_data]
pub struct Owner {
    /// Keeps the structure, but no mappings.
    mm: ARef<Mm>,
    /// Serve faults and follow advice. If more than one process has the address space, they are threads of the one that
    /// came first. They have the credentials of the thread that made the owner, as they were then.
    fault_threads: UserThreads,
    threads: Arc<dyn Threads>,
    #[pin]
    waiting: SpinLock<Waiting>,
    #[pin]
    work: Work<Self>,
    owners: Arc<Owners>,
    _in_use: InUse,
}

impl_has_work! { impl HasWork<Self> for Owner { self.work } }

impl Owner {
    /// The calling process's, whose address space is `mm`; without threads.
    fn new(owners: &Arc<Owners>, mm: ARef<Mm>, threads: NewThreads<'_>) -> Result<Arc<Self>> {
        let in_use = InUse::begin()?;
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
                _in_use: in_use,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Has the space ready for the notifier of a chunk. For a thread of the process; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` in a thread of another process, and those of [`first_notifier::prepare`].
    pub(super) fn prepare_for_notifiers(&self) -> Result {
        if !self.is_here() {
            return Err(EFAULT);
        }
        // SAFETY: The calling thread has this address space.
        unsafe { first_notifier::prepare(self.mm.as_raw().cast()) }
    }

    /// Those of the module.
    pub(super) fn owners(&self) -> &Arc<Owners> {
        &self.owners
    }

    /// No two address spaces that have owners have the same.
    pub(super) fn number(&self) -> usize {
        number(&self.mm)
    }

    /// Has a thread of the process do `job`. To be called by who has the owner in use ([`Open`]). Process context.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process has ended, `ENOMEM`.
    pub(super) fn begin_job(&self, job: Arc<dyn Job>) -> Result<Pending> {
        self.fault_threads.begin(job)
    }

    /// Whether the calling thread has this address space.
    pub(super) fn is_here(&self) -> bool {
        is_current_mm(self.mm.as_raw().cast())
    }

    /// Has `remains`, whose pages are forgotten, released soon. Process context; waits for nobody and allocates nothing.
    pub(super) fn release(self: &Arc<Self>, mut remains: KBox<Remains>) {
        self.add(|waiting| {
            remains.next = waiting.first.take();
            waiting.first = Some(remains);
            waiting.count = waiting.count.saturating_add(1);
        });
    }

    /// Has what isn't in use any more ended soon: address spaces without regions, and then the owner itself with its threads.
    /// Process context; waits for nobody and allocates nothing.
    pub(super) fn end_unused(self: &Arc<Self>) {
        self.add(|waiting| waiting.unused = true);
    }

    /// Has the work item do what `add` adds.
    fn add(self: &Arc<Self>, add: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.waiting.lock();
        add(&mut waiting);
        let was_busy = core::mem::replace(&mut waiting.busy, true);
        drop(waiting);
        if !was_busy {
            self.take_thread();
        }
    }

    /// Queues the work item, now or once there is a thread for it.
    fn take_thread(self: &Arc<Self>) {
        if self.threads.clone().take(self) {
            self.clone().begin();
        }
    }

    /// Queues the work item of an owner that was given a thread. Any context.
    pub fn begin(self: Arc<Self>) {
        let owners = self.owners.clone();
        let _ = owners.queue.enqueue(self);
    }

    /// How many chunks wait for their release.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting.lock().count
    }

    /// Waits until at most so many chunks wait for their release. In a thread of the process; sleeps.
    ///
    /// # Errors
    ///
    /// `EINTR` if the thread was killed, `ERESTARTNOINTR` if it has to take another signal first.
    pub(super) fn wait_for_room(&self, most: u32) -> Result {
        while self.waiting() > most {
            check_no_signal()?;
            fsleep(NAP);
        }
        Ok(())
    }

    /// Whether there may be an address space without regions. From now on there is none, but for those that lose theirs.
    fn take_unused(&self) -> bool {
        core::mem::take(&mut self.waiting.lock().unused)
    }

    /// The next chunk to be released.
    fn take_first(&self) -> Option<KBox<Remains>> {
        let mut waiting = self.waiting.lock();
        let mut first = waiting.first.take()?;
        waiting.first = first.next.take();
        Some(first)
    }

    /// Gives the thread back, and takes another one if there is more to do meanwhile. `forgotten` owners have nothing to do.
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

    fn note_released(&self) {
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
            // Here it waits for the MMU notifiers of the process.
            drop(remains);
            this.note_released();
            cond_resched();
        }
        let forgotten = this.owners.forget_unused(&this);
        if forgotten {
            // Before others have the work queue's thread: this may wait for the process. And before the item gives up its count: a
            // thread of the owner that had the last one would wait for its own end.
            this.fault_threads.stop();
        }
        this.end(forgotten);
    }
}

struct Entry {
    owner: Arc<Owner>,
    /// Devices with regions of it, and registrations that are going on.
    uses: u32,
}

/// The address spaces that have regions on demand, and the work queue that releases their chunks. While there is one, the
/// module can't be removed: its removal would wait for MMU notifiers.
#[pin_data]
pub struct Owners {
    queue: OwnedQueue,
    /// By the place of the `mm_struct`, which the owner keeps.
    #[pin]
    entries: SpinLock<RBTree<usize, Entry>>,
    #[pin]
    pub(super) spaces: Spaces,
}

impl Owners {
    /// None yet. The work queue `name` has so many threads. Process context.
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

    /// Waits for the releases that have begun to end. The module's end calls it, when there is no region any more.
    /// Process context.
    pub fn flush(&self) {
        self.queue.flush();
    }

    /// The owner of the calling process's address space, which is in use as long as the result lives. `threads` gives the
    /// share of an owner that is made. Process context.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the module is being removed, `EAGAIN` if the process's user or cgroup may have no more threads, `ENOMEM`, those of `threads`;
    /// `ERESTARTNOINTR` if a signal is pending: the system call begins again after that; `EOPNOTSUPP` on a kernel without
    /// `CONFIG_VHOST_TASK`; `EINVAL` if the process's next children belong to another PID namespace than itself
    /// (`unshare(CLONE_NEWPID)`).
    pub(super) fn open(self: &Arc<Self>, threads: NewThreads<'_>) -> Result<Open> {
        // Processes register regions on demand, and these have address spaces.
        let mm = ARef::<Mm>::from(&**current!().mm().ok_or(EINVAL)?);
        let number = number(&mm);
        if let Some(owner) = self.use_again(number) {
            return Ok(owner);
        }
        let owner = Owner::new(self, mm, threads)?;
        let entry = Entry {
            owner: owner.clone(),
            uses: 1,
        };
        let node = RBTreeNode::new(number, entry, GFP_KERNEL_ACCOUNT)?;
        // After all that may fail: from now on only a work item may end the owner, which then waits for the thread.
        owner.fault_threads.start()?;
        let mut entries = self.entries.lock();
        // Another thread of the process may have come first.
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

    /// The owner with this number, if there is one.
    fn use_again(&self, number: usize) -> Option<Open> {
        self.entries.lock().get_mut(&number).map(Self::use_entry)
    }

    fn use_entry(entry: &mut Entry) -> Open {
        entry.uses = entry.uses.saturating_add(1);
        Open(entry.owner.clone())
    }

    /// Forgets `owner` if it isn't in use and no chunk of it waits. A space without regions is a use. Returns whether `owner`
    /// is forgotten, or never was known: then nobody can come to use it, and the caller ends its threads. In its work item.
    fn forget_unused(&self, owner: &Owner) -> bool {
        let number = owner.number();
        let mut entries = self.entries.lock();
        // Once `owner` is forgotten, a registration gives its process another one.
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

/// An [`Owner`] that is in use: whoever of the process comes later has the same.
pub(super) struct Open(Arc<Owner>);

impl Open {
    /// The owner.
    pub(super) fn owner(&self) -> &Arc<Owner> {
        &self.0
    }
}

impl Drop for Open {
    /// After the chunks of who used it. Process context; waits for nobody: the caller may be a call of the process, which holds
    /// locks of uverbs.
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
