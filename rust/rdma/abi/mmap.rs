// SPDX-License-Identifier: GPL-2.0

//! Kernel memory that a process may map through its verbs context.
//!
//! A process's mapping (`struct vm_area_struct`) holds a count of each of its pages, which are
//! inserted one by one (`vm_insert_page()`). So the mapping may outlive the object that the memory
//! belonged to. The mapping needs no callback of the driver, so it does not pin the module. When
//! the object ends, only the *offset* under which new mappings are made ends with it.
//!
//! An offset is an entry (`struct rdma_user_mmap_entry`) in ib_core's table of the context
//! (`ib_ucontext.mmap_xa`). The entry must be removed before the context is freed. Objects may live
//! longer than the context: for example, a late packet holds a reference to a QP. So each context
//! has an [`MmapEntries`], which knows all its entries and removes the remaining ones when the
//! context ends. The drop of an [`MmapEntry`] (the driver's handle of an entry) after that takes no
//! lock. So a QP may have an `MmapEntry` although the QP's last reference may be dropped in
//! softirq.

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

/// Number of bytes that [`SharedMemory::insert_into`] inserts before it yields the CPU.
const BYTES_PER_YIELD: usize = 512 * PAGE_SIZE;

/// Kernel memory that a process may map: zeroed, page-aligned, made of single pages, and charged to
/// the memory cgroup of the process that allocates it.
///
/// # Invariants
///
/// `start` is valid for reads and writes of `len` bytes and was allocated by vmalloc. `len` is a
/// multiple of the page size. A process may have mapped the memory and may change any byte at any
/// time.
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: Vmalloc memory may be accessed and freed by every thread. All accesses go through raw
// pointers. The code that makes them takes into account that a process can change the memory.
unsafe impl Send for SharedMemory {}
// SAFETY: A shared reference only gives out a raw pointer. The code that uses it takes into account
// that a process can change the memory.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Allocates `len` bytes, rounded up to whole pages.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is zero or above 4 GiB - 1; `ENOMEM`.
    pub(crate) fn new(len: usize) -> Result<Self> {
        if len == 0 || len > u32::MAX as usize {
            return Err(EINVAL);
        }
        let len = len.next_multiple_of(PAGE_SIZE);
        // The process chooses the size, so a failure must not cause a warning in the kernel's log.
        let quiet = bindings::GFP_KERNEL_ACCOUNT | bindings::__GFP_NOWARN;
        let flags = quiet | bindings::__GFP_ZERO;
        // SAFETY: `__vmalloc_noprof()` has no requirements.
        let start = unsafe { bindings::__vmalloc_noprof(len, flags) };
        // INVARIANT: Vmalloc returned at least `len` bytes, which nothing else uses.
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(ENOMEM)?,
            len,
        })
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Maps the first `pages` pages at the start of `vma`.
    ///
    /// # Safety
    ///
    /// `vma` must be a mapping that is being created, with the mmap lock held for writing. It must
    /// span at least `pages` pages.
    ///
    /// # Errors
    ///
    /// Those of `vm_insert_page()`; `EINTR` if the calling process was killed.
    unsafe fn insert_into(&self, vma: *mut core_bindings::vm_area_struct, pages: usize) -> Result {
        // SAFETY: The caller guarantees that `vma` is valid (see `# Safety`).
        let mut address = unsafe { (*vma).__bindgen_anon_1.__bindgen_anon_1.vm_start };
        let memory = self.start.as_ptr();
        for offset in (0..self.len).step_by(PAGE_SIZE).take(pages) {
            if offset % BYTES_PER_YIELD == 0 {
                check_not_killed()?;
                cond_resched();
            }
            // SAFETY: `offset` is within the allocation, and each address of vmalloc memory has a
            // page.
            let page = unsafe { core_bindings::vmalloc_to_page(memory.add(offset).cast()) };
            // SAFETY: The caller guarantees that `vma` is valid and spans `address`, with the mmap
            // lock held for writing (see `# Safety`). `page` is a counted page of order 0.
            let code = unsafe { core_bindings::vm_insert_page(vma, address, page) };
            kernel::error::to_result(code)?;
            address = address.wrapping_add(PAGE_SIZE);
        }
        Ok(())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `start` came from vmalloc. Pages that are mapped live on by
        // their own counts. In softirq `vfree()` defers itself.
        unsafe { bindings::vfree(self.start.as_ptr().cast()) };
    }
}

/// Entry of ib_core's table, together with the memory that it stands for.
#[repr(C)]
struct Entry {
    base: bindings::rdma_user_mmap_entry,
    memory: Arc<SharedMemory>,
}

/// Entries that are in ib_core's table, by serial number.
struct Entries {
    live: RBTree<u64, NonNull<Entry>>,
    next: u64,
}

// SAFETY: The pointers are to entries of ib_core's table, which any thread may remove.
unsafe impl Send for Entries {}

/// Entries of one verbs context: all memory that its process may map through the context.
///
/// # Invariants
///
/// `ucontext` is valid until [`MmapEntries::close`] has run. Each pointer in `entries` is to an
/// entry that is in the context's table.
#[pin_data]
pub struct MmapEntries {
    ucontext: NonNull<bindings::ib_ucontext>,
    /// Set when the context ends, with the lock of `entries` held. The table gets no more entries,
    /// and [`MmapEntries::close`] removes those that it has.
    closed: Atomic<bool>,
    #[pin]
    entries: Mutex<Entries>,
}

// SAFETY: `ucontext` is only passed to ib_core, which locks its tables; the rest is a mutex.
unsafe impl Send for MmapEntries {}
// SAFETY: `ucontext` is only passed to ib_core, which locks its tables; the rest is a mutex.
unsafe impl Sync for MmapEntries {}

impl MmapEntries {
    /// Creates the table of `ucontext`, without entries. Process context; may sleep.
    ///
    /// # Safety
    ///
    /// `ucontext` must stay valid until [`MmapEntries::close`] has run on the result, or the result
    /// is dropped.
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

    /// Removes all remaining entries. Afterwards the context may be freed. Process context; sleeps.
    pub(crate) fn close(&self) {
        let mut entries = self.entries.lock();
        self.closed.store(true, Relaxed);
        while let Some(cursor) = entries.live.cursor_front_mut() {
            let (_, node) = cursor.remove_current();
            let (_, entry) = node.to_key_value();
            // SAFETY: By the type invariant `entry` is in the table, and the context is valid.
            unsafe { remove_entry(entry) };
        }
    }

    /// Enters `memory` into the table at an offset whose first page is one of `pages`. Process
    /// context; sleeps.
    fn insert(
        self: &Arc<Self>,
        memory: Arc<SharedMemory>,
        pages: RangeInclusive<u32>,
    ) -> Result<MmapEntry> {
        // While an entry is being inserted, `rdma_user_mmap_entry_get_pgoff()` (ib_core_uverbs.c)
        // takes it for the entry of page 0, and the insertion may still fail. So page 0 is never
        // used.
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
        // SAFETY: The context is valid, since the table is not closed. `entry` stays in its box and
        // starts with ib_core's structure, which is zeroed.
        let code = unsafe {
            let (first, last) = pages.into_inner();
            let context = self.ucontext.as_ptr();
            bindings::rdma_user_mmap_entry_insert_range(context, base, len, first, last)
        };
        if let Err(error) = kernel::error::to_result(code) {
            // SAFETY: The pointer came from the box above, and ib_core did not take it. No look-up
            // found it, since its offset is not 0.
            drop(unsafe { KBox::from_raw(entry.as_ptr()) });
            return Err(error);
        }
        // INVARIANT: `entry` was just entered into the table.
        entries.live.insert(node.into_node(serial, entry));
        // SAFETY: `start_pgoff` was set above and does not change again.
        let page_offset = unsafe { (*entry.as_ptr()).base.start_pgoff };
        Ok(MmapEntry {
            owner: self.clone(),
            serial,
            offset: (page_offset as u64).wrapping_mul(PAGE_SIZE as u64),
        })
    }
}

/// Largest length in bytes of one allocation of device memory.
pub(crate) const DM_STRIDE: u64 = bindings::RRXE_DM_STRIDE as u64;

/// Returns the mmap offset in bytes of the device memory with the uverbs handle `handle`, or `None`
/// if the offset overflows.
pub(crate) fn dm_offset(handle: u32) -> Option<u64> {
    u64::from(handle)
        .checked_mul(DM_STRIDE)?
        .checked_add(bindings::RRXE_DM_OFFSET)
}

/// Returns the number of the page that contains the byte at `offset`.
fn page(offset: u64) -> Result<u32> {
    u32::try_from(offset / PAGE_SIZE as u64).map_err(|_| ENOMEM)
}

/// Removes `entry` from ib_core's table. [`mmap_free`] frees it once no mmap call uses it.
///
/// # Safety
///
/// `entry` must be in the table of a context that is still valid, and must not be removed twice.
unsafe fn remove_entry(entry: NonNull<Entry>) {
    // SAFETY: The caller guarantees that `entry` is in the table of a valid context (see `#
    // Safety`); ib_core's structure comes first.
    unsafe { bindings::rdma_user_mmap_entry_remove(entry.as_ptr().cast()) };
}

/// Offset under which a process may map some memory, until the `MmapEntry` is dropped.
///
/// The drop may sleep, so it must be in process context, unless [`MmapEntries::close`] has run.
pub(crate) struct MmapEntry {
    owner: Arc<MmapEntries>,
    serial: u64,
    offset: u64,
}

impl MmapEntry {
    /// Lets the process of `owner` map `memory`, at an offset that ib_core chooses below
    /// `RRXE_DM_OFFSET`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the context is going away.
    pub(crate) fn new(owner: &Arc<MmapEntries>, memory: Arc<SharedMemory>) -> Result<Self> {
        owner.insert(memory, 1..=page(bindings::RRXE_DM_OFFSET - 1)?)
    }

    /// Lets the process of `owner` map `memory` at `offset` (in bytes). Each offset may be in use
    /// only once at a time.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the offset is in page 0; `ENOMEM` if memory is short, or if the offset is in use
    /// or beyond the range of ib_core's table; `EIO` if the context is going away.
    pub(crate) fn at(
        owner: &Arc<MmapEntries>,
        memory: Arc<SharedMemory>,
        offset: u64,
    ) -> Result<Self> {
        let page = page(offset)?;
        owner.insert(memory, page..=page)
    }

    /// Returns the offset to pass to `mmap()`, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns false once [`MmapEntries::close`] has removed the entry from ib_core's table, or is
    /// about to. Once this is false, it stays false.
    fn may_be_in_table(&self) -> bool {
        !self.owner.closed.load(Relaxed)
    }
}

impl Drop for MmapEntry {
    fn drop(&mut self) {
        if !self.may_be_in_table() {
            return;
        }
        let mut entries = self.owner.entries.lock();
        if let Some(entry) = entries.live.remove(&self.serial) {
            // SAFETY: `entries` had the entry, so by the invariant of `MmapEntries` it is in the
            // table. `close` removes every entry, with the lock held, before the context ends, so
            // the context is valid.
            unsafe { remove_entry(entry) };
        }
    }
}

/// Implements `mmap` of `struct ib_device_ops`: maps the memory at the offset of `vma`.
///
/// # Safety
///
/// To be called by ib_core only, with a valid context of this driver and a mapping that is being
/// created.
pub(crate) unsafe extern "C" fn mmap(
    ucontext: *mut bindings::ib_ucontext,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: ib_core passes valid pointers. The callee checks that the mapping is shared and has
    // the size of the entry.
    let base = unsafe { bindings::rdma_user_mmap_entry_get(ucontext, vma) };
    let Some(entry) = NonNull::new(base.cast::<Entry>()) else {
        return EINVAL.to_errno();
    };
    // SAFETY: All entries of this driver's contexts have the type `Entry`, and a count of this one
    // is held.
    let memory: &SharedMemory = unsafe { &(*entry.as_ptr()).memory };
    // SAFETY: `vma` is being created. It is as large as the entry, and so as the memory.
    let inserted = unsafe { memory.insert_into(vma.cast(), memory.len / PAGE_SIZE) };
    // SAFETY: This gives up the count that `rdma_user_mmap_entry_get()` took.
    unsafe { bindings::rdma_user_mmap_entry_put(base) };
    kernel::error::from_result(|| inserted.map(|()| 0))
}

/// Implements `mmap_free` of `struct ib_device_ops`: frees an entry that ib_core no longer uses.
///
/// # Safety
///
/// To be called by ib_core only, once for each entry of this driver.
pub(crate) unsafe extern "C" fn mmap_free(base: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: All entries of this driver's contexts came from a box of this type.
    drop(unsafe { KBox::<Entry>::from_raw(base.cast()) });
}

#[kunit_tests(rrxe_mmap)]
mod tests {
    use super::*;
    use crate::new_bh_spinlock;

    /// A doorbell page lives as long as the last QP that uses it. A softirq may drop the last
    /// reference to that QP.
    #[test]
    fn the_drop_of_an_entry_of_a_closed_context_takes_no_lock() -> Result {
        // SAFETY: No entry is inserted, so the pointer is never used.
        let mmap_entries = unsafe { MmapEntries::new(NonNull::dangling()) }?;
        let mmap_entry = MmapEntry {
            owner: mmap_entries.clone(),
            serial: 0,
            offset: 0,
        };
        assert!(mmap_entry.may_be_in_table());
        mmap_entries.close();
        assert!(!mmap_entry.may_be_in_table());
        // The lock disables bottom halves, as in softirq. lockdep reports a mutex that is taken
        // inside.
        let lock = KBox::pin_init(new_bh_spinlock!((), "rrxe_mmap_test"), GFP_KERNEL)?;
        let guard = lock.lock();
        drop(mmap_entry);
        drop(guard);
        Ok(())
    }
}
