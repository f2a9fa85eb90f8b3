// SPDX-License-Identifier: GPL-2.0

//! Work queues that belong to this kernel module, so that the module's exit can wait for them.
//!
//! The kernel crate offers the kernel's shared work queues only. A module must wait for its work
//! items before its code is unloaded. The items of a shared queue cannot be waited for as a whole.

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

/// A work queue (`struct workqueue_struct`, include/linux/workqueue.h). Dropping it waits for all
/// items and destroys it.
///
/// # Invariants
///
/// The pointer comes from `alloc_workqueue()`. The work queue is destroyed only when the value is
/// dropped.
pub struct OwnedQueue(NonNull<core_bindings::workqueue_struct>);

// SAFETY: Any thread may use the C functions of work queues, and `OwnedQueue` owns the pointer.
unsafe impl Send for OwnedQueue {}
// SAFETY: Any thread may use the C functions of work queues, which synchronise queueing and
// flushing.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Creates a work queue that runs its items in softirq (`WQ_BH`), on the CPU that queued them.
    /// An item that runs while it is queued again runs again on the same CPU.
    ///
    /// `name` is shown to the administrator. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new_bh(name: &'static CStr) -> Result<Self> {
        let flags = core_bindings::wq_flags_WQ_BH | core_bindings::wq_flags_WQ_PERCPU;
        Self::new(name, flags, 0)
    }

    /// Creates a work queue that runs its items in threads, up to `max_active` at a time, on any
    /// CPU near the one that queued them.
    ///
    /// The administrator may change `max_active` and the set of CPUs in
    /// `/sys/devices/virtual/workqueue`, where `name` is shown. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new_unbound(name: &'static CStr, max_active: u32) -> Result<Self> {
        let flags = core_bindings::wq_flags_WQ_UNBOUND | core_bindings::wq_flags_WQ_SYSFS;
        let max_active = max_active.min(core_bindings::wq_consts_WQ_MAX_ACTIVE);
        Self::new(name, flags, max_active)
    }

    /// Creates a work queue (`alloc_workqueue()`). `max_active` of zero stands for the kernel's
    /// default.
    fn new(name: &'static CStr, flags: u32, max_active: u32) -> Result<Self> {
        // SAFETY: The format takes one string. `name` is NUL-terminated and lives for ever.
        let raw = unsafe {
            core_bindings::alloc_workqueue_noprof(
                c"%s".as_char_ptr(),
                flags,
                max_active as c_int,
                name.as_char_ptr(),
            )
        };
        // INVARIANT: `alloc_workqueue()` has just returned the pointer, and no other code has it.
        NonNull::new(raw).map(Self).ok_or(ENOMEM)
    }

    /// Queues `item`, as `Queue::enqueue` of the kernel crate does. Callable in any context.
    ///
    /// The type gives no access to the [`Queue`], because `destroy_workqueue()` does not wait for
    /// the timers of `Queue::enqueue_delayed()`.
    pub fn enqueue<W, const ID: u64>(&self, item: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // SAFETY: The work queue is valid by the type invariant, and the reference does not leave
        // this function.
        unsafe { Queue::from_raw(self.0.as_ptr()) }.enqueue(item)
    }

    /// Queues `item` of a [`Self::new_bh`] queue. If softirqs may run, this CPU runs its pending
    /// softirqs before the return, and usually runs `item` with them.
    ///
    /// The item runs later if it is still running on another CPU, which then runs it again, or if
    /// the kernel's time limits end the softirqs first (`bh_worker()`, kernel/workqueue.c).
    ///
    /// Softirqs may run in process context with neither interrupts nor bottom halves disabled.
    /// Callable in any context. The caller may hold any lock that is held with softirqs enabled: a
    /// softirq takes no such lock, so the item does not.
    pub fn enqueue_eagerly<W, const ID: u64>(&self, item: W)
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // SAFETY: The function has no requirements. It reads the state of this CPU.
        if unsafe { bindings::irqs_disabled() } {
            let _ = self.enqueue(item);
            return;
        }
        // Pending softirqs run when `_off` is dropped.
        let _off = bottom_halves_off();
        let _ = self.enqueue(item);
    }

    /// Queues `item` to run on `cpu`, or on this CPU if `cpu` is offline. An item that runs now is
    /// queued on the CPU where it runs. Returns the result of [`Self::enqueue`].
    ///
    /// Callable in any context with interrupts enabled.
    pub fn enqueue_on<W, const ID: u64>(&self, cpu: CpuId, item: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // No CPU goes offline while bottom halves are disabled.
        let _off = bottom_halves_off();
        if !is_online(cpu) {
            return self.enqueue(item);
        }
        let (queue, cpu) = (self.0.as_ptr(), cpu.as_u32() as c_int);
        // SAFETY: `queue_work_on()` returns `false` only if the item is in a queue already. The
        // work queue is valid by the type invariant. `__enqueue` guarantees that the item is valid
        // until it has run. `cpu` is online.
        unsafe { item.__enqueue(move |work| core_bindings::queue_work_on(cpu, queue, work)) }
    }

    /// Waits until all items that were queued before the call have run. Must be called in process
    /// context, and not from an item of the work queue.
    pub fn flush(&self) {
        // SAFETY: The work queue is valid by the type invariant.
        unsafe { core_bindings::__flush_workqueue(self.0.as_ptr()) }
    }
}

impl Drop for OwnedQueue {
    /// Waits for all items. Must be called in process context, and not from an item of the work
    /// queue.
    fn drop(&mut self) {
        // SAFETY: The work queue is valid by the type invariant, and no other code can use it any
        // more.
        unsafe { core_bindings::destroy_workqueue(self.0.as_ptr()) }
    }
}

/// Returns whether the caller runs as a work item in a worker thread. Callable in any context.
///
/// Returns `false` in an interrupt that interrupts a work item.
pub fn is_in_work_item() -> bool {
    // SAFETY: The function has no requirements. It reads the state of the calling task.
    !unsafe { core_bindings::current_work() }.is_null()
}
