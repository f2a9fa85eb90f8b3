// SPDX-License-Identifier: GPL-2.0

//! Kernel threads of a user process, which run jobs in its address space. Wraps
//! `include/linux/sched/vhost_task.h`.
//!
//! A system call of the process creates the first thread, and each thread creates further ones. So
//! their CPU time, memory and block I/O are charged to the cgroups of the process. A thread has the
//! credentials, the CPU affinity and the NUMA policy that its creator had at the time of creation.
//! Later changes to other threads of the process do not affect it. When the process is stopped,
//! frozen or killed, so is the thread. The thread holds no files of the process. So the files are
//! closed when the process ends, although the thread still exists.
//!
//! The thread never returns to user space. Work that the kernel defers until then
//! (`resume_user_mode_work()`) is not done, except task work. `blkcg_maybe_throttle_current()`
//! (block/blk-cgroup.c) does not throttle the thread when its cgroup swaps too much. Above
//! `memory.high` the kernel adds up the pages that are charged to the thread. When the sum exceeds
//! 64, it throttles the thread and starts again from 0 (`try_charge_memcg()`, mm/memcontrol.c).

use core::ptr::NonNull;

use kernel::{
    error::{code::ERESTARTNOINTR, from_err_ptr},
    ffi::c_void,
    list::{impl_list_arc_safe, impl_list_item, List, ListArc, ListLinks},
    new_spinlock,
    prelude::*,
    str::CStr,
    sync::{aref::ARef, Arc, SpinLock},
    task::Task,
};

use crate::bindings;

/// A job for threads of a process.
pub trait Job: Send + Sync {
    /// Does a part of the job, in a thread of the process. Returns whether there is more to do; a
    /// thread then calls this again after other jobs.
    fn run(self: Arc<Self>) -> bool;

    /// Ends the job, because the process has ended or [`UserThreads::stop`] was called. `run` is
    /// not called any more. Called in process context.
    fn cancel(self: Arc<Self>);
}

/// A job's entry in the queue.
#[pin_data]
struct Node {
    #[pin]
    links: ListLinks,
    job: Arc<dyn Job>,
}

/// A job that was begun. It waits for a thread, runs in one, or has ended.
pub struct Pending {
    shared: Arc<Shared>,
    node: Arc<Node>,
}

impl Pending {
    /// Takes the job out of the queue, unless a thread runs it. Does not call [`Job::cancel`]. Must
    /// be called in process context.
    pub fn withdraw(self) {
        let mut queue = self.shared.queue.lock();
        // SAFETY: `UserThreads::begin` created the node and passed it to `shared`. No other code
        // puts it into a list.
        let node = unsafe { queue.nodes.remove(&self.node) };
        drop(queue);
        // The node is dropped without the lock: it may hold the last reference to the job.
        drop(node);
    }
}

impl_list_arc_safe! { impl ListArcSafe<0> for Node { untracked; } }
impl_list_item! { impl ListItem<0> for Node { using ListLinks { self.links }; } }

/// Maximum number of threads of one process.
///
/// A thread whose job waits for memory is busy. If so many jobs wait for memory that does not come,
/// further jobs wait for them.
const MOST: usize = 16;

/// A thread (`struct vhost_task`) that was started.
///
/// # Invariants
///
/// The pointer is valid until the thread is stopped, which consumes the value.
struct Thread(NonNull<bindings::vhost_task>);

// SAFETY: `vhost_task_stop()` is the only function that is called with the pointer, and may be
// called by any thread.
unsafe impl Send for Thread {}

impl Thread {
    /// Ends the thread, and waits until its process lets it run to its end. Must be called in
    /// process context; sleeps.
    fn stop(self) {
        if UserThreads::EXISTS {
            // SAFETY: The pointer is valid by the type invariant. Only this function stops the
            // thread, and it takes the value.
            unsafe { bindings::vhost_task_stop(self.0.as_ptr()) };
        }
    }
}

/// A slot for a thread of the process.
#[derive(Default)]
enum ThreadSlot {
    #[default]
    Free,
    /// A thread is being created.
    Starting,
    Started(Thread),
}

/// The jobs and the threads of one process.
struct Queue {
    nodes: List<Node>,
    /// Whether [`Shared::end`] was called: no job is queued any more.
    ended: bool,
    threads: [ThreadSlot; MOST],
    /// Number of threads that run a job.
    busy: usize,
    /// Threads that sleep until there is a job.
    idle: [Option<ARef<Task>>; MOST],
}

impl Queue {
    /// Takes a slot for another thread.
    ///
    /// Returns `None` if a thread without a job exists, if there are [`MOST`] threads, or if
    /// `ended` is set.
    fn reserve_slot(&mut self) -> Option<usize> {
        let free = |slot: &ThreadSlot| matches!(slot, ThreadSlot::Free);
        let has_idle = self.threads.iter().filter(|slot| !free(slot)).count() > self.busy;
        let number = self.threads.iter().position(free)?;
        if has_idle || self.ended {
            return None;
        }
        self.set_slot(number, ThreadSlot::Starting);
        Some(number)
    }

    /// Sets the state of slot `number`.
    fn set_slot(&mut self, number: usize, slot: ThreadSlot) {
        if let Some(entry) = self.threads.get_mut(number) {
            *entry = slot;
        }
    }

    /// Records that the calling thread sleeps until there is a job, or that it runs one.
    fn set_idle(&mut self, is_idle: bool) {
        let current: &Task = current!();
        let is_current = |entry: &Option<ARef<Task>>| {
            let is_current = |task: &ARef<Task>| core::ptr::eq(&**task, current);
            entry.as_ref().is_some_and(is_current)
        };
        let own = self.idle.iter().position(is_current);
        let slot = own.or_else(|| self.idle.iter().position(Option::is_none));
        if let Some(entry) = slot.and_then(|slot| self.idle.get_mut(slot)) {
            *entry = is_idle.then(|| current.into());
        }
    }

    /// Wakes a thread that sleeps until there is a job. A thread whose job waits for memory is not
    /// woken, since its page fault would start again.
    fn wake_one(&mut self) {
        if let Some(task) = self.idle.iter_mut().find_map(Option::take) {
            task.wake_up();
        }
    }
}

/// The state that a process's threads and the owner of their [`UserThreads`] share.
#[pin_data]
struct Shared {
    name: &'static CStr,
    #[pin]
    queue: SpinLock<Queue>,
}

impl Shared {
    /// Queues a job. Returns the node if `ended` is set.
    fn push(&self, node: ListArc<Node>) -> Result<(), ListArc<Node>> {
        let mut queue = self.queue.lock();
        if queue.ended {
            return Err(node);
        }
        queue.nodes.push_back(node);
        queue.wake_one();
        Ok(())
    }

    /// Takes the next job for the calling thread, which counts as busy until [`Self::finish_part`].
    /// If there is none, the thread is recorded as idle and must sleep.
    fn take_job(&self) -> Option<ListArc<Node>> {
        let mut queue = self.queue.lock();
        let node = queue.nodes.pop_front();
        queue.set_idle(node.is_none());
        if node.is_some() {
            queue.busy = queue.busy.saturating_add(1);
        }
        node
    }

    /// Puts a job that the calling thread took, but does not run, back to the head of the queue.
    /// Returns the node if the job must be cancelled.
    fn put_back(&self, node: ListArc<Node>) -> Option<ListArc<Node>> {
        let mut queue = self.queue.lock();
        queue.busy = queue.busy.saturating_sub(1);
        if queue.ended {
            return Some(node);
        }
        queue.nodes.push_front(node);
        // Wakes a thread that became idle meanwhile, since the calling thread may be stopped by a
        // signal first.
        queue.wake_one();
        None
    }

    /// Records that the calling thread has done a part of a job, and will take the next one. `job`
    /// is the job's node if there is more to do, and goes to the tail of the queue. Returns the
    /// node if the job must be cancelled.
    fn finish_part(&self, job: Option<ListArc<Node>>) -> Option<ListArc<Node>> {
        let mut queue = self.queue.lock();
        queue.busy = queue.busy.saturating_sub(1);
        if queue.ended {
            return job;
        }
        if let Some(node) = job {
            queue.nodes.push_back(node);
        }
        None
    }

    /// Creates another thread of the calling process, if all threads are busy and there are fewer
    /// than [`MOST`]. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`UserThreads::start`].
    fn add_thread(&self) -> Result {
        // The guard of an `if let` would live until the end of its block.
        let slot = self.queue.lock().reserve_slot();
        let Some(number) = slot else {
            return Ok(());
        };
        let started = self.make_thread();
        let (slot, result) = match started {
            Ok(thread) => (ThreadSlot::Started(thread), Ok(())),
            Err(error) => (ThreadSlot::Free, Err(error)),
        };
        self.queue.lock().set_slot(number, slot);
        result
    }

    /// Creates and starts a thread of the calling process.
    fn make_thread(&self) -> Result<Thread> {
        if !UserThreads::EXISTS {
            return Err(crate::support::error::unsupported());
        }
        let data = core::ptr::from_ref(self).cast_mut().cast();
        let name = self.name.as_char_ptr();
        // SAFETY: `vhost_task_fn()` calls the functions with `data`, which points to a `Shared` as
        // they expect. By the invariant of `UserThreads`, which owns it, the `Shared` is valid
        // until the thread has ended. The name is static.
        let task = from_err_ptr(unsafe {
            bindings::vhost_task_create(Some(work), Some(killed), data, name)
        })?;
        let task = NonNull::new(task).ok_or(ENOMEM)?;
        // SAFETY: The thread was just created, and is started once, here.
        unsafe { bindings::vhost_task_start(task.as_ptr()) };
        // INVARIANT: The thread was just started, and no other code has the pointer.
        Ok(Thread(task))
    }

    /// Cancels all queued jobs, and accepts none from now on.
    fn end(&self) {
        self.queue.lock().ended = true;
        loop {
            let node = self.queue.lock().nodes.pop_front();
            let Some(node) = node else {
                break;
            };
            node.job.clone().cancel();
        }
    }

    /// Takes a thread out of its slot. Returns `None` if no slot has a thread that has been
    /// created.
    fn take_thread(&self) -> Option<Thread> {
        let mut queue = self.queue.lock();
        let started = |slot: &&mut ThreadSlot| matches!(slot, ThreadSlot::Started(_));
        match core::mem::take(queue.threads.iter_mut().find(started)?) {
            ThreadSlot::Started(thread) => Some(thread),
            ThreadSlot::Free | ThreadSlot::Starting => None,
        }
    }
}

/// The threads of one process.
///
/// If the process's limits allow it, there is one thread more than there are running jobs, up to
/// [`MOST`]. A job may wait for memory for as long as the process likes. The code that supplies
/// that memory, such as a userfaultfd handler, may first need another job to be done.
///
/// # Invariants
///
/// `shared` is valid until all threads have ended. A thread has a slot in `shared` from before its
/// creation until [`Self::stop`] waits for its end. `shared` is freed after [`Self::stop`] has
/// found no thread.
pub(crate) struct UserThreads {
    shared: Arc<Shared>,
}

impl UserThreads {
    /// Whether the kernel supports such threads. Otherwise it lacks their functions, too, so each
    /// call of these functions depends on this constant.
    pub(crate) const EXISTS: bool = cfg!(CONFIG_VHOST_TASK);

    /// Creates the state without a thread. The threads will have the name `name`. Must be called in
    /// process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub(crate) fn new(name: &'static CStr) -> Result<Self> {
        let queue = Queue {
            nodes: List::new(),
            ended: false,
            threads: Default::default(),
            busy: 0,
            idle: Default::default(),
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
                name,
                queue <- new_spinlock!(queue, "rrxe_user_threads"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        // INVARIANT: There is no thread yet. `vhost_task_stop()` waits for the thread that it ends.
        Ok(Self { shared })
    }

    /// Creates the first thread of the calling process. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `EAGAIN` if the process's user or cgroup may have no more threads; `ENOMEM` if there
    /// is no memory; `ERESTARTNOINTR` if the calling thread must take a signal first; `EOPNOTSUPP`
    /// if the kernel has no `CONFIG_VHOST_TASK`.
    pub(crate) fn start(&self) -> Result {
        self.shared.add_thread()
    }

    /// Queues `job` for a thread, behind the jobs that wait already. Must be called in process
    /// context; does not wait for a thread.
    ///
    /// # Errors
    ///
    /// Returns `EFAULT` if the process has ended or [`Self::stop`] has begun; `ENOMEM` if there is
    /// no memory.
    pub(crate) fn begin(&self, job: Arc<dyn Job>) -> Result<Pending> {
        let node = try_pin_init!(Node {
            links <- ListLinks::new(),
            job,
        }? Error);
        let node = ListArc::pin_init(node, GFP_KERNEL_ACCOUNT)?;
        let pending = Pending {
            shared: self.shared.clone(),
            node: node.clone_arc(),
        };
        self.shared.push(node).map_err(|_| EFAULT)?;
        Ok(pending)
    }

    /// Cancels the jobs that wait, and ends all threads. Waits until the process lets the threads
    /// run to their end.
    ///
    /// Must be called in process context; sleeps. Must not be called from a [`Job`], whose thread
    /// would wait for its own end, nor while [`Self::start`] runs.
    pub(crate) fn stop(&self) {
        self.shared.end();
        // From now on only a thread creates another one. The new thread has its slot before the
        // creating thread ends.
        while let Some(thread) = self.shared.take_thread() {
            thread.stop();
        }
    }
}

impl Drop for UserThreads {
    /// Does the same as [`Self::stop`].
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a part of one job in the thread. Returns whether there was a job.
///
/// Otherwise the thread sleeps, in the task state that it had before the call, unless it was woken
/// meanwhile.
///
/// # Safety
///
/// Only `vhost_task_fn()` may call this function, with a pointer to a [`Shared`] that lives as long
/// as the thread.
unsafe extern "C" fn work(data: *mut c_void) -> bool {
    // SAFETY: The caller guarantees that `data` points to a `Shared` that lives as long as the
    // thread (see `# Safety`).
    let shared = unsafe { &*data.cast::<Shared>() };
    let Some(node) = shared.take_job() else {
        return false;
    };
    // SAFETY: The function has no requirements. It sets the state of the current task.
    unsafe { bindings::set_current_running() };
    // Without another thread, the next job would wait for this one. If the process's limits refuse
    // a thread, the thread that takes the next job tries again. If a signal is pending, the thread
    // takes the signal first, between two jobs.
    let cancelled = if shared.add_thread() == Err(ERESTARTNOINTR) {
        shared.put_back(node)
    } else {
        let again = node.job.clone().run().then_some(node);
        shared.finish_part(again)
    };
    if let Some(node) = cancelled {
        node.job.clone().cancel();
    }
    request_task_work();
    true
}

/// Requests a call of `get_signal()` by `vhost_task_fn()` if the thread has pending task work,
/// which that call does.
///
/// Other threads do their task work when they return to user space, which this thread never does.
/// The scheduler throttles a thread by task work if its cgroup has used up its quota of CPU time.
fn request_task_work() {
    // SAFETY: The function has no requirements. It reads the state of the current task.
    if unsafe { bindings::current_task_work_pending() } {
        // SAFETY: The function has no requirements. It sets a flag of the current task.
        unsafe { bindings::current_notify_signal() };
    }
}

/// Ends the jobs when the process was killed or executes another program. The thread ends.
///
/// # Safety
///
/// Only `vhost_task_fn()` may call this function, with a pointer to a [`Shared`] that lives as long
/// as the thread.
unsafe extern "C" fn killed(data: *mut c_void) {
    // SAFETY: The caller guarantees that `data` points to a `Shared` that lives as long as the
    // thread (see `# Safety`).
    unsafe { &*data.cast::<Shared>() }.end();
}

#[kunit_tests(rrxe_user_thread)]
mod tests {
    use super::*;
    use kernel::sync::atomic::{ordering::Relaxed, Atomic};

    struct Counted(Atomic<u32>);

    impl Job for Counted {
        fn run(self: Arc<Self>) -> bool {
            false
        }

        fn cancel(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_job_that_is_withdrawn_is_gone() -> Result {
        let threads = UserThreads::new(c"rrxe_test")?;
        let job = || Arc::new(Counted(Atomic::new(0)), GFP_KERNEL);
        let (first, second) = (job()?, job()?);
        let pending = threads.begin(first.clone())?;
        let other = threads.begin(second.clone())?;
        pending.withdraw();
        assert!(Arc::into_unique_or_drop(first).is_some());
        threads.stop();
        assert_eq!(second.0.load(Relaxed), 1);
        // The job has ended, so there is nothing to withdraw.
        other.withdraw();
        assert!(Arc::into_unique_or_drop(second).is_some());
        assert!(threads.begin(job()?).is_err());
        Ok(())
    }
}
