// SPDX-License-Identifier: GPL-2.0

//! A work queue of one's own, for work items whose code must not outlive the module.
//!
//! The kernel crate offers the shared queues only. Their items can't be waited for as a whole, and
//! a module must wait for its own before its code goes away.

use core::ptr::NonNull;
use kernel::{
    bindings as core_bindings,
    cpu::CpuId,
    ffi::c_int,
    prelude::*,
    str::CStr,
    workqueue::{Queue, RawWorkItem},
};

use crate::{
    bindings,
    support::{cpu::is_online, sync::bottom_halves_off},
};

/// A work queue.
///
/// # Invariants
///
/// The pointer came from `alloc_workqueue()` and is destroyed only when this is dropped.
pub struct OwnedQueue(NonNull<core_bindings::workqueue_struct>);

// SAFETY: The C API of work queues may be used from any thread; `OwnedQueue` owns the pointer.
unsafe impl Send for OwnedQueue {}
// SAFETY: As above: queueing and flushing synchronize inside.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Makes a queue that runs its items in softirq (`WQ_BH`), on the CPU that queued them; `name` is for
    /// humans. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new_bh(name: &'static CStr) -> Result<Self> {
        let flags = core_bindings::wq_flags_WQ_BH | core_bindings::wq_flags_WQ_PERCPU;
        Self::new(name, flags, 0)
    }

    /// Makes a queue that runs its items in threads, `max_active` at a time, on any CPU near the one that
    /// queued them. The administrator may change that, in `/sys/devices/virtual/workqueue`. Process
    /// context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new_unbound(name: &'static CStr, max_active: u32) -> Result<Self> {
        let flags = core_bindings::wq_flags_WQ_UNBOUND | core_bindings::wq_flags_WQ_SYSFS;
        let max_active = max_active.min(core_bindings::wq_consts_WQ_MAX_ACTIVE);
        Self::new(name, flags, max_active)
    }

    fn new(name: &'static CStr, flags: u32, max_active: u32) -> Result<Self> {
        // SAFETY: The format takes one string, which is NUL-terminated and lives for ever.
        let raw = unsafe {
            core_bindings::alloc_workqueue_noprof(
                c"%s".as_char_ptr(),
                flags,
                max_active as c_int,
                name.as_char_ptr(),
            )
        };
        // INVARIANT: The queue was just made and nobody else has the pointer.
        NonNull::new(raw).map(Self).ok_or(ENOMEM)
    }

    /// Queues `item`, as `Queue::enqueue` of the kernel crate does. Any context.
    ///
    /// There is no way to [`Queue`] itself: `destroy_workqueue()` does not wait for the timers of its `enqueue_delayed()`.
    pub fn enqueue<W, const ID: u64>(&self, item: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // SAFETY: The queue is alive by the type invariant, and the reference does not leave this function.
        unsafe { Queue::from_raw(self.0.as_ptr()) }.enqueue(item)
    }

    /// Queues `item`. It runs before this returns where softirq may run: in process context with
    /// neither interrupts nor bottom halves disabled. Any context.
    ///
    /// The caller may hold any lock with which a softirq may arrive, so nothing of what the item
    /// does can deadlock with it.
    pub fn enqueue_eagerly<W, const ID: u64>(&self, item: W)
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // SAFETY: No requirements.
        if unsafe { bindings::irqs_disabled() } {
            let _ = self.enqueue(item);
            return;
        }
        // They run when this ends.
        let _off = bottom_halves_off();
        let _ = self.enqueue(item);
    }

    /// Queues `item` to run on `cpu`, or on this one should that be offline. Returns what [`Self::enqueue`] does. Any
    /// context with interrupts enabled.
    pub fn enqueue_on<W, const ID: u64>(&self, cpu: CpuId, item: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // No CPU goes offline meanwhile.
        let _off = bottom_halves_off();
        if !is_online(cpu) {
            return self.enqueue(item);
        }
        let (queue, cpu) = (self.0.as_ptr(), cpu.as_u32() as c_int);
        // SAFETY: `false` is returned only if the item is in a queue already. The queue is alive by the type
        // invariant, and `__enqueue` promises that the item is until it has run; `cpu` is online.
        unsafe { item.__enqueue(move |work| core_bindings::queue_work_on(cpu, queue, work)) }
    }

    /// Waits until all items queued so far have run. Process context; not from an item.
    pub fn flush(&self) {
        // SAFETY: The queue is alive by the type invariant.
        unsafe { core_bindings::__flush_workqueue(self.0.as_ptr()) }
    }
}

impl Drop for OwnedQueue {
    /// Waits for all items. Process context; not from an item.
    fn drop(&mut self) {
        // SAFETY: The queue is alive by the type invariant, and nobody can use it any more.
        unsafe { core_bindings::destroy_workqueue(self.0.as_ptr()) }
    }
}

/// Whether the caller is a work item. Any context; an interrupt in the middle of an item is none.
pub fn is_in_work_item() -> bool {
    // SAFETY: No requirements: the function looks at the calling task alone.
    !unsafe { core_bindings::current_work() }.is_null()
}
