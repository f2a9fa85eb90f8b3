// SPDX-License-Identifier: GPL-2.0

//! Threads of processes that do the kernel's work there: wraps `include/linux/sched/vhost_task.h`.
//!
//! Such a thread is one of its process, made by a call of it. So its CPU time, memory and block I/O count for the cgroups of
//! the process, and the process's credentials, CPUs and NUMA nodes are the thread's. A signal that stops, freezes or kills the
//! process does so with the thread, which has no files of the process: these are closed though the thread lives.

use core::{
    ptr::{null_mut, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};

use kernel::{
    error::from_err_ptr,
    ffi::c_void,
    list::{impl_list_arc_safe, impl_list_item, List, ListArc, ListLinks},
    new_spinlock,
    prelude::*,
    str::CStr,
    sync::{Arc, SpinLock},
};

use crate::bindings;

/// Work for a thread of a process.
pub trait Job: Send + Sync {
    /// Does some of it, in the thread. Returns whether there is more: then it is called again after other jobs.
    fn run(self: Arc<Self>) -> bool;

    /// The process has ended: nothing more is done. Process context.
    fn cancel(self: Arc<Self>);
}

/// The place of a job in the queue.
#[pin_data]
struct Node {
    #[pin]
    links: ListLinks,
    job: Arc<dyn Job>,
}

impl_list_arc_safe! { impl ListArcSafe<0> for Node { untracked; } }
impl_list_item! { impl ListItem<0> for Node { using ListLinks { self.links }; } }

struct Queue {
    nodes: List<Node>,
    /// Nothing more is done.
    ended: bool,
}

#[pin_data]
struct Shared {
    #[pin]
    queue: SpinLock<Queue>,
}

impl Shared {
    /// Queues a job. Gives it back if the thread has ended.
    fn push(&self, node: ListArc<Node>) -> Result<(), ListArc<Node>> {
        let mut queue = self.queue.lock();
        if queue.ended {
            return Err(node);
        }
        queue.nodes.push_back(node);
        Ok(())
    }

    fn take_first(&self) -> Option<ListArc<Node>> {
        self.queue.lock().nodes.pop_front()
    }

    /// Cancels all jobs, and takes none from now on.
    fn end(&self) {
        self.queue.lock().ended = true;
        while let Some(node) = self.take_first() {
            node.job.clone().cancel();
        }
    }
}

/// A thread of a process.
///
/// # Invariants
///
/// `task` is null or valid; the thread uses `shared` until [`Self::stop`] has returned.
pub(crate) struct UserThread {
    task: AtomicPtr<bindings::vhost_task>,
    shared: Arc<Shared>,
}

impl UserThread {
    /// Whether the kernel has such threads. One that has none lacks their functions, too, so nothing here may refer to
    /// these then.
    pub(crate) const EXISTS: bool = cfg!(CONFIG_VHOST_TASK);

    /// Makes the calling process's thread `name`. Process context.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the process's user or cgroup may have no more threads, `ENOMEM`; `EOPNOTSUPP` on a kernel without
    /// `CONFIG_VHOST_TASK`.
    pub(crate) fn new(name: &'static CStr) -> Result<Self> {
        if !Self::EXISTS {
            return Err(crate::error::unsupported());
        }
        let queue = Queue {
            nodes: List::new(),
            ended: false,
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
                queue <- new_spinlock!(queue, "rrxe_user_thread"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let data = Arc::as_ptr(&shared).cast_mut().cast();
        // SAFETY: The functions take `data` for what it is, and the name is static.
        let task = from_err_ptr(unsafe {
            bindings::vhost_task_create(Some(work), Some(killed), data, name.as_char_ptr())
        })?;
        // SAFETY: It was just made.
        unsafe { bindings::vhost_task_start(task) };
        // INVARIANT: As was just done. `vhost_task_stop()` waits for the thread, and `shared` is dropped afterwards.
        Ok(Self {
            task: AtomicPtr::new(task),
            shared,
        })
    }

    /// Has the thread do `job`, after what it is to do already. Not to be called after [`Self::stop`] has begun. Process
    /// context.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process has ended, `ENOMEM`.
    pub(crate) fn begin(&self, job: Arc<dyn Job>) -> Result {
        if !Self::EXISTS {
            return Err(crate::error::unsupported());
        }
        let node = try_pin_init!(Node {
            links <- ListLinks::new(),
            job,
        }? Error);
        let node = ListArc::pin_init(node, GFP_KERNEL_ACCOUNT)?;
        self.shared.push(node).map_err(|_| EFAULT)?;
        // SAFETY: By the type invariant it is valid before `stop`.
        unsafe { bindings::vhost_task_wake(self.task.load(Ordering::Relaxed)) };
        Ok(())
    }

    /// Ends the thread, waits until the process lets it run, and cancels what it has not done. Process context; sleeps.
    pub(crate) fn stop(&self) {
        if !Self::EXISTS {
            return;
        }
        if let Some(task) = NonNull::new(self.task.swap(null_mut(), Ordering::Relaxed)) {
            // SAFETY: Valid by the type invariant, and stopped once.
            unsafe { bindings::vhost_task_stop(task.as_ptr()) };
            self.shared.end();
        }
    }
}

impl Drop for UserThread {
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
    let Some(node) = shared.take_first() else {
        return false;
    };
    // SAFETY: No requirements.
    unsafe { bindings::set_current_running() };
    if node.job.clone().run() {
        // Only this thread ends the queue before `stop` has waited for it, so the queue takes the job.
        let _ = shared.push(node);
    }
    true
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
