// SPDX-License-Identifier: GPL-2.0

//! Kernel memory that a process may map through its verbs context.
//!
//! Pages are inserted one by one and counted by the mapping: a mapping outlives the object it
//! belonged to, needs no callback, and pins neither the module nor the process. What ends with the
//! object is only the *offset* under which new mappings are made.
//!
//! An offset is entered in the core's `rdma_user_mmap_entry` table of the context, and must have
//! left it before the context is freed. Objects may live longer than that (a late packet holds
//! them), so each context has a [`Mappings`] that knows all its entries and withdraws what is left
//! when the context goes; a [`Mapping`] dropped later than that takes no lock, and may be dropped in
//! softirq, where the last reference to a QP may be dropped.

use core::{ops::RangeInclusive, ptr::NonNull};

use kernel::{
    bindings as core_bindings,
    ffi::c_int,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        Mutex, //
    },
};

use crate::{
    bindings,
    support::sync::{check_not_killed, cond_resched},
};

/// Bytes that [`SharedMemory::insert_into`] inserts before other tasks may run.
const INSERTED_AT_ONCE: usize = 512 * PAGE_SIZE;

/// Zeroed, page-aligned kernel memory made of single pages, charged to the caller's memory cgroup.
///
/// # Invariants
///
/// `start` is valid for reads and writes of `len` bytes, a multiple of the page size, allocated by
/// vmalloc. A process may have mapped it and may change any of it at any time.
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: Vmalloc memory is reachable and freeable from every thread; all accesses go through raw
// pointers by those who uphold the rules for memory that a process can change.
unsafe impl Send for SharedMemory {}
// SAFETY: As above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Allocates at least `len` bytes.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for zero or an absurd size, `ENOMEM`.
    pub(crate) fn new(len: usize) -> Result<Self> {
        if len == 0 || len > u32::MAX as usize {
            return Err(EINVAL);
        }
        let len = len.next_multiple_of(PAGE_SIZE);
        // A process chooses the size, and a warning in the kernel's log may be anybody's.
        let quiet = bindings::GFP_KERNEL_ACCOUNT | bindings::__GFP_NOWARN;
        let flags = quiet | bindings::__GFP_ZERO;
        // SAFETY: No requirements.
        let start = unsafe { bindings::__vmalloc_noprof(len, flags) };
        // INVARIANT: Vmalloc returned at least `len` bytes, which nobody else uses.
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(ENOMEM)?,
            len,
        })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Inserts the first `pages` pages into `vma`, at its start.
    ///
    /// # Safety
    ///
    /// `vma` is a mapping that is being made, with its lock held, and spans `pages` pages at least.
    ///
    /// # Errors
    ///
    /// Those of `vm_insert_page()`; `EINTR` if the caller is killed.
    unsafe fn insert_into(&self, vma: *mut core_bindings::vm_area_struct, pages: usize) -> Result {
        // SAFETY: The caller promises that `vma` is valid.
        let mut address = unsafe { (*vma).__bindgen_anon_1.__bindgen_anon_1.vm_start };
        let memory = self.start.as_ptr();
        for offset in (0..self.len).step_by(PAGE_SIZE).take(pages) {
            if offset % INSERTED_AT_ONCE == 0 {
                check_not_killed()?;
                cond_resched();
            }
            // SAFETY: `offset` is within the allocation, and vmalloc memory has a page everywhere.
            let page = unsafe { core_bindings::vmalloc_to_page(memory.add(offset).cast()) };
            // SAFETY: The caller promises that `vma` is valid, locked, and spans `address`; `page`
            // is a counted page of order 0.
            let code = unsafe { core_bindings::vm_insert_page(vma, address, page) };
            kernel::error::to_result(code)?;
            address = address.wrapping_add(PAGE_SIZE);
        }
        Ok(())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `start` came from vmalloc; mapped pages live on by their
        // own counts. In softirq `vfree()` defers itself.
        unsafe { bindings::vfree(self.start.as_ptr().cast()) };
    }
}

/// An entry of the core's table, with the memory it stands for.
#[repr(C)]
struct Entry {
    base: bindings::rdma_user_mmap_entry,
    memory: Arc<SharedMemory>,
}

/// Entries that are in the core's table, by serial number.
struct Entries {
    live: RBTree<u64, NonNull<Entry>>,
    next: u64,
}

// SAFETY: The pointers are to entries in the core's table, which any thread may withdraw.
unsafe impl Send for Entries {}

/// All that may be mapped through one verbs context.
///
/// # Invariants
///
/// `ucontext` is valid until [`Mappings::close`] has run; each pointer in `entries` is in its table
/// and has not been withdrawn.
#[pin_data]
pub struct Mappings {
    ucontext: NonNull<bindings::ib_ucontext>,
    /// Nothing is listed any more. Set under the lock of `entries`.
    closed: Atomic<bool>,
    #[pin]
    entries: Mutex<Entries>,
}

// SAFETY: `ucontext` is only handed to the core, which locks its tables; the rest is a mutex.
unsafe impl Send for Mappings {}
// SAFETY: As above.
unsafe impl Sync for Mappings {}

impl Mappings {
    /// The still empty table of `ucontext`.
    ///
    /// # Safety
    ///
    /// `ucontext` stays valid until [`Mappings::close`] has run on the result, or the result is
    /// dropped.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) unsafe fn new(ucontext: NonNull<bindings::ib_ucontext>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ucontext,
                closed: Atomic::new(false),
                entries <- new_mutex!(Entries {
                    live: RBTree::new(),
                    next: 0,
                }, "rrxe_mappings"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Withdraws all that is left; afterwards the context may be freed. Process context.
    pub(crate) fn close(&self) {
        let mut entries = self.entries.lock();
        self.closed.store(true, Relaxed);
        while let Some(cursor) = entries.live.cursor_front_mut() {
            let (_, node) = cursor.remove_current();
            let (_, entry) = node.to_key_value();
            // SAFETY: By the type invariant `entry` is in the table and the context is valid.
            unsafe { withdraw(entry) };
        }
    }

    /// Gives `memory` an offset that begins with one of `pages`.
    fn insert(
        self: &Arc<Self>,
        memory: Arc<SharedMemory>,
        pages: RangeInclusive<u32>,
    ) -> Result<Mapping> {
        // `rdma_user_mmap_entry_get_pgoff()` (ib_core_uverbs.c) takes an entry for that of page 0 while it is being inserted,
        // and the insertion may still fail.
        if pages.contains(&0) {
            return Err(EINVAL);
        }
        let len = memory.len;
        let entry = KBox::new(
            Entry {
                base: pin_init::zeroed(),
                memory,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut entries = self.entries.lock();
        if self.closed.load(Relaxed) {
            return Err(EIO);
        }
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let serial = entries.next;
        entries.next = serial.wrapping_add(1);
        let entry = NonNull::from(KBox::leak(entry));
        let base = entry.as_ptr().cast();
        // SAFETY: The context is valid since the table is not closed; `entry` is zeroed, pinned by
        // its box and starts with the core's part.
        let code = unsafe {
            let (first, last) = pages.into_inner();
            let context = self.ucontext.as_ptr();
            bindings::rdma_user_mmap_entry_insert_range(context, base, len, first, last)
        };
        if let Err(error) = kernel::error::to_result(code) {
            // SAFETY: The pointer came from the box above, and the core did not take it: nobody found it, for its offset
            // is not 0.
            drop(unsafe { KBox::from_raw(entry.as_ptr()) });
            return Err(error);
        }
        // INVARIANT: `entry` has just entered the table.
        entries.live.insert(node.into_node(serial, entry));
        // SAFETY: `start_pgoff` was set above and does not change again.
        let page_offset = unsafe { (*entry.as_ptr()).base.start_pgoff };
        Ok(Mapping {
            owner: self.clone(),
            serial,
            offset: (page_offset as u64).wrapping_mul(PAGE_SIZE as u64),
        })
    }
}

/// The page that begins at `offset`.
fn page(offset: u64) -> Result<u32> {
    u32::try_from(offset / PAGE_SIZE as u64).map_err(|_| ENOMEM)
}

/// Withdraws `entry` from the core's table. It is freed by [`mmap_free`] once no mmap call uses it.
///
/// # Safety
///
/// `entry` is in the table of a context that is still valid, and is not withdrawn twice.
unsafe fn withdraw(entry: NonNull<Entry>) {
    // SAFETY: The caller's promise; the core's part comes first.
    unsafe { bindings::rdma_user_mmap_entry_remove(entry.as_ptr().cast()) };
}

/// An offset under which a process may map some memory, until it is dropped.
///
/// Dropping it sleeps, unless its context is closed.
pub(crate) struct Mapping {
    owner: Arc<Mappings>,
    serial: u64,
    offset: u64,
}

impl Mapping {
    /// Lets the process of `owner` map `memory`.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the context is going away.
    pub(crate) fn new(owner: &Arc<Mappings>, memory: Arc<SharedMemory>) -> Result<Self> {
        owner.insert(memory, 1..=page(bindings::RRXE_DM_OFFSET - 1)?)
    }

    /// Lets the process of `owner` map `memory` at `offset`, in bytes, which only one caller may use at a time.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also for an offset beyond what the core's table can hold; `EIO` if the context is going away.
    pub(crate) fn at(
        owner: &Arc<Mappings>,
        memory: Arc<SharedMemory>,
        offset: u64,
    ) -> Result<Self> {
        let page = page(offset)?;
        owner.insert(memory, page..=page)
    }

    /// The file offset to give to mmap, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The offset may still be in the core's table. Once this is false it stays so.
    fn is_listed(&self) -> bool {
        !self.owner.closed.load(Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_listed() {
            return;
        }
        let mut entries = self.owner.entries.lock();
        if let Some(entry) = entries.live.remove(&self.serial) {
            // SAFETY: By the invariant of `Mappings` the entry was in the table, and since it was
            // still listed the context is not closed; the lock keeps it so.
            unsafe { withdraw(entry) };
        }
    }
}

/// `ib_device_ops.mmap`: maps the memory at the offset of `vma`.
///
/// # Safety
///
/// Called by the core with a valid context of this provider and a mapping being made.
pub(crate) unsafe extern "C" fn mmap(
    ucontext: *mut bindings::ib_ucontext,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: The core passes valid pointers. It checks for a shared mapping of the entry's size.
    let base = unsafe { bindings::rdma_user_mmap_entry_get(ucontext, vma) };
    let Some(entry) = NonNull::new(base.cast::<Entry>()) else {
        return EINVAL.to_errno();
    };
    // SAFETY: All entries of this provider's contexts are of this type, and a count is held.
    let memory: &SharedMemory = unsafe { &(*entry.as_ptr()).memory };
    // SAFETY: `vma` is being made, and as large as the entry, which is as large as the memory.
    let inserted = unsafe { memory.insert_into(vma.cast(), memory.len / PAGE_SIZE) };
    // SAFETY: This is the count taken above.
    unsafe { bindings::rdma_user_mmap_entry_put(base) };
    kernel::error::from_result(|| inserted.map(|()| 0))
}

/// `ib_device_ops.mmap_free`: the core no longer uses an entry.
///
/// # Safety
///
/// Called by the core once for an entry of this provider.
pub(crate) unsafe extern "C" fn mmap_free(base: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: All entries of this provider's contexts came from a box of this type.
    drop(unsafe { KBox::<Entry>::from_raw(base.cast()) });
}

#[kunit_tests(rrxe_mmap)]
mod tests {
    use super::*;
    use crate::new_bh_spinlock;

    /// A page of doorbells lives as long as the last QP, whose last reference a softirq may drop.
    #[test]
    fn a_mapping_of_a_closed_context_takes_no_lock() -> Result {
        // SAFETY: Nothing is entered, so the pointer is never used.
        let mappings = unsafe { Mappings::new(NonNull::dangling()) }?;
        let mapping = Mapping {
            owner: mappings.clone(),
            serial: 0,
            offset: 0,
        };
        assert!(mapping.is_listed());
        mappings.close();
        assert!(!mapping.is_listed());
        // As in a softirq: lockdep reports a mutex that is taken inside.
        let lock = KBox::pin_init(new_bh_spinlock!((), "rrxe_mmap_test"), GFP_KERNEL)?;
        let guard = lock.lock();
        drop(mapping);
        drop(guard);
        Ok(())
    }
}
