// SPDX-License-Identifier: GPL-2.0

//! Threads of processes that do the kernel's work there: wraps `include/linux/sched/vhost_task.h`.
//!
//! Such a thread is one of its process. A call of the process makes the first one, and each makes further ones. So their CPU time,
//! memory and block I/O count for the cgroups of the process. Each has the credentials, the CPUs and the NUMA policy that its maker had
//! at that moment; later changes of the process's other threads don't change them. A signal that stops, freezes or kills the process
//! does so with the thread. The thread has no files of the process: these are closed though it lives. It never returns to user space,
//! so what the kernel puts off until then (`resume_user_mode_work()`) does not happen, but for task work.
//! `blkcg_maybe_throttle_current()` (block/blk-cgroup.c) does not have the thread wait when its cgroup swaps too much. Beyond `memory.high`
//! it waits where it is charged for more than 64 pages (`try_charge_memcg()`, mm/memcontrol.c).

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

/// Work for threads of a process.
pub trait Job: Send + Sync {
    /// Does some of it, in the thread. Returns whether there is more: then it is called again after other jobs.
    fn run(self: Arc<Self>) -> bool;

    /// The process has ended, or whoever had the threads needs them no more: nothing more is done. Process context.
    fn cancel(self: Arc<Self>);
}

/// The place of a job in the queue.
#[pin_data]
struct Node {
    #[pin]
    links: ListLinks,
    job: Arc<dyn Job>,
}

/// A job that waits for a thread, is done by one, or has ended.
pub struct Pending {
    shared: Arc<Shared>,
    node: Arc<Node>,
}

impl Pending {
    /// Takes the job out of the queue, unless a thread has it. It is not cancelled. Process context.
    pub fn withdraw(self) {
        let mut queue = self.shared.queue.lock();
        // SAFETY: `UserThreads::begin` made the node and gave it to `shared`, and nothing else puts it into a list.
        let node = unsafe { queue.nodes.remove(&self.node) };
        drop(queue);
        // Without the lock: this may be the last count of the job.
        drop(node);
    }
}

impl_list_arc_safe! { impl ListArcSafe<0> for Node { untracked; } }
impl_list_item! { impl ListItem<0> for Node { using ListLinks { self.links }; } }

/// Most threads of one process: so many jobs may wait for memory that does not come before others wait for these.
const MOST: usize = 16;

/// A `vhost_task` that was started.
///
/// # Invariants
///
/// Valid until it is stopped, which consumes it.
struct Thread(NonNull<bindings::vhost_task>);

// SAFETY: `vhost_task_stop()`, which is all that is called with it, may be called by any thread.
unsafe impl Send for Thread {}

impl Thread {
    /// Ends it once its process lets it run. Process context; sleeps.
    fn stop(self) {
        if UserThreads::EXISTS {
            // SAFETY: Valid by the type invariant: only this function ends it, and takes it by value.
            unsafe { bindings::vhost_task_stop(self.0.as_ptr()) };
        }
    }
}

/// The place of a thread.
#[derive(Default)]
enum Place {
    #[default]
    Free,
    /// One is being made.
    Making,
    Made(Thread),
}

struct Queue {
    nodes: List<Node>,
    /// Nothing more is done.
    ended: bool,
    threads: [Place; MOST],
    /// Threads that do a job.
    busy: usize,
    /// Threads that sleep until there is a job.
    idle: [Option<ARef<Task>>; MOST],
}

impl Queue {
    /// Takes a place for another thread. `None` if a thread does no job, if there are [`MOST`] threads, or after the end.
    fn take_place(&mut self) -> Option<usize> {
        let free = |place: &Place| matches!(place, Place::Free);
        let has_idle = self.threads.iter().filter(|place| !free(place)).count() > self.busy;
        let number = self.threads.iter().position(free)?;
        if has_idle || self.ended {
            return None;
        }
        self.set_place(number, Place::Making);
        Some(number)
    }

    fn set_place(&mut self, number: usize, place: Place) {
        if let Some(entry) = self.threads.get_mut(number) {
            *entry = place;
        }
    }

    /// The calling thread does a job, or sleeps until there is one.
    fn note_idle(&mut self, is_idle: bool) {
        let current: &Task = current!();
        let is_current = |entry: &Option<ARef<Task>>| {
            let is_current = |task: &ARef<Task>| core::ptr::eq(&**task, current);
            entry.as_ref().is_some_and(is_current)
        };
        let own = self.idle.iter().position(is_current);
        let place = own.or_else(|| self.idle.iter().position(Option::is_none));
        if let Some(entry) = place.and_then(|place| self.idle.get_mut(place)) {
            *entry = is_idle.then(|| current.into());
        }
    }

    /// Wakes a thread that sleeps until there is a job, and no thread that waits for memory: its fault would begin anew.
    fn wake_one(&mut self) {
        if let Some(task) = self.idle.iter_mut().find_map(Option::take) {
            task.wake_up();
        }
    }
}

#[pin_data]
struct Shared {
    name: &'static CStr,
    #[pin]
    queue: SpinLock<Queue>,
}

impl Shared {
    /// Queues a job. Gives it back if the threads have ended.
    fn push(&self, node: ListArc<Node>) -> Result<(), ListArc<Node>> {
        let mut queue = self.queue.lock();
        if queue.ended {
            return Err(node);
        }
        queue.nodes.push_back(node);
        queue.wake_one();
        Ok(())
    }

    /// The next job, for the calling thread, which is busy until [`Self::end_turn`]; without a job it is to sleep.
    fn take_job(&self) -> Option<ListArc<Node>> {
        let mut queue = self.queue.lock();
        let node = queue.nodes.pop_front();
        queue.note_idle(node.is_none());
        if node.is_some() {
            queue.busy = queue.busy.saturating_add(1);
        }
        node
    }

    /// The calling thread doesn't begin the job that it took: it is the next one again. Returns it if it is to be cancelled.
    fn put_back(&self, node: ListArc<Node>) -> Option<ListArc<Node>> {
        let mut queue = self.queue.lock();
        queue.busy = queue.busy.saturating_sub(1);
        if queue.ended {
            return Some(node);
        }
        queue.nodes.push_front(node);
        // One that became idle meanwhile: the calling thread may have to stop first.
        queue.wake_one();
        None
    }

    /// A thread has done some of a job, of which there is more if it is given back: that thread takes the next one. Returns
    /// what is to be cancelled.
    fn end_turn(&self, job: Option<ListArc<Node>>) -> Option<ListArc<Node>> {
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

    /// Makes another thread of the calling process, if all are busy and there may be more. Process context.
    ///
    /// # Errors
    ///
    /// Those of [`UserThreads::start`].
    fn add_thread(&self) -> Result {
        // Not `if let`, whose guard would live on.
        let place = self.queue.lock().take_place();
        let Some(number) = place else {
            return Ok(());
        };
        let made = self.make_thread();
        let (place, result) = match made {
            Ok(thread) => (Place::Made(thread), Ok(())),
            Err(error) => (Place::Free, Err(error)),
        };
        self.queue.lock().set_place(number, place);
        result
    }

    fn make_thread(&self) -> Result<Thread> {
        if !UserThreads::EXISTS {
            return Err(crate::support::error::unsupported());
        }
        let data = core::ptr::from_ref(self).cast_mut().cast();
        let name = self.name.as_char_ptr();
        // SAFETY: `vhost_task_fn()` calls the functions with `data`, which they take for what it is. By the invariant of
        // `UserThreads`, which owns this, it is valid until the thread has ended. The name is static.
        let task = from_err_ptr(unsafe {
            bindings::vhost_task_create(Some(work), Some(killed), data, name)
        })?;
        let task = NonNull::new(task).ok_or(ENOMEM)?;
        // SAFETY: It was just made, and is started once, here.
        unsafe { bindings::vhost_task_start(task.as_ptr()) };
        // INVARIANT: It was just started, and nobody else has it.
        Ok(Thread(task))
    }

    /// Cancels all jobs, and takes none from now on.
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

    /// Takes a thread out.
    fn take_thread(&self) -> Option<Thread> {
        let mut queue = self.queue.lock();
        let made = |place: &&mut Place| matches!(place, Place::Made(_));
        match core::mem::take(queue.threads.iter_mut().find(made)?) {
            Place::Made(thread) => Some(thread),
            Place::Free | Place::Making => None,
        }
    }
}

/// Threads of a process. There is one more than have a job, up to [`MOST`], if the process's limits allow it: a job may wait for
/// memory as long as the process likes, and whoever gives the memory may need another job done before.
///
/// # Invariants
///
/// `shared` is valid until all threads have ended: a thread has a place there from before it is made until [`Self::stop`] waits for its
/// end, and `shared` is freed after [`Self::stop`] has found no thread.
pub(crate) struct UserThreads {
    shared: Arc<Shared>,
}

impl UserThreads {
    /// Whether the kernel has such threads. One that has none lacks their functions, too: each call of these depends on this.
    pub(crate) const EXISTS: bool = cfg!(CONFIG_VHOST_TASK);

    /// No thread yet. They will be called `name`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
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

    /// Makes the first of the calling process's threads. Process context.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the process's user or cgroup may have no more threads, `ENOMEM`; `ERESTARTNOINTR` if the calling thread must
    /// take a signal before; `EOPNOTSUPP` on a kernel without `CONFIG_VHOST_TASK`.
    pub(crate) fn start(&self) -> Result {
        self.shared.add_thread()
    }

    /// Has a thread do `job`, after the jobs that wait already. Process context; waits for nobody.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process has ended, or [`Self::stop`] has begun; `ENOMEM`.
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

    /// Cancels the jobs that wait, and ends the threads once the process lets them run. Process context; sleeps. Not from a
    /// [`Job`], whose thread would wait for its own end, and not while [`Self::start`] runs.
    pub(crate) fn stop(&self) {
        self.shared.end();
        // Only a thread makes another one from now on, and that has its place before the one that made it ends.
        while let Some(thread) = self.shared.take_thread() {
            thread.stop();
        }
    }
}

impl Drop for UserThreads {
    /// As [`Self::stop`].
    fn drop(&mut self) {
        self.stop();
    }
}

/// Does some of one job in the thread. Returns whether there was one: otherwise the thread sleeps, in the state that it was
/// given before the call, unless it was woken meanwhile.
///
/// # Safety
///
/// To be called by `vhost_task_fn()`, with a [`Shared`] that lives as long as the thread.
unsafe extern "C" fn work(data: *mut c_void) -> bool {
    // SAFETY: As the caller promises.
    let shared = unsafe { &*data.cast::<Shared>() };
    let Some(node) = shared.take_job() else {
        return false;
    };
    // SAFETY: No requirements.
    unsafe { bindings::set_current_running() };
    // Without another thread the next job waits for this one. If limits don't allow one, the next job that begins tries again.
    // If a signal was in the way, the thread takes it between two jobs.
    let cancelled = if shared.add_thread() == Err(ERESTARTNOINTR) {
        shared.put_back(node)
    } else {
        let again = node.job.clone().run().then_some(node);
        shared.end_turn(again)
    };
    if let Some(node) = cancelled {
        node.job.clone().cancel();
    }
    request_task_work();
    true
}

/// Has `vhost_task_fn()` call `get_signal()`, which does the task work of the thread, if there is such work. Other threads do
/// theirs when they return to user space, which this one never does. The scheduler stops a thread by task work if its cgroup
/// has used up its quota of CPU time.
fn request_task_work() {
    // SAFETY: No requirements.
    if unsafe { bindings::current_task_work_pending() } {
        // SAFETY: No requirements.
        unsafe { bindings::current_notify_signal() };
    }
}

/// The process was killed, or executes another program: the thread ends.
///
/// # Safety
///
/// As for [`work`].
unsafe extern "C" fn killed(data: *mut c_void) {
    // SAFETY: As the caller promises.
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
        // It has ended: there is nothing to withdraw.
        other.withdraw();
        assert!(Arc::into_unique_or_drop(second).is_some());
        assert!(threads.begin(job()?).is_err());
        Ok(())
    }
}
