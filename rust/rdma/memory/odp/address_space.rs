// SPDX-License-Identifier: GPL-2.0

//! Address spaces of processes with on-demand regions, divided into chunks of 2 MiB.
//!
//! A chunk holds the addresses of the present pages of its range, and an `ib_umem_odp`, whose MMU
//! notifier removes pages from the chunk. A device has one [`AddressSpace`] for each process. It
//! holds the chunks that all regions of the process on that device share.

use core::{mem::ManuallyDrop, ops::Deref, ptr::NonNull};

use kernel::{
    error::from_err_ptr,
    ffi::{c_int, c_ulong},
    new_mutex, new_spinlock,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{aref::ARef, Arc, ArcBorrow, Mutex, SpinLock},
};

use super::{
    owner::{NewPermit, Open, Owner, Owners},
    Chunk, NOTIFIER,
};
use crate::{
    bindings,
    device::IbDevice,
    support::{
        read_section::ReadSections,
        sync::{cond_resched, signal_or},
        table::Table,
    },
};

/// Size of a chunk, log₂ of bytes (2 MiB): the range that one last-level page table maps.
const CHUNK_SHIFT: u32 = 21;
/// Size of a chunk in bytes.
pub(super) const CHUNK: usize = 1 << CHUNK_SHIFT;

/// Number of chunks that an address space may have before chunks without pages are searched for and
/// removed. At least as many chunks of a process may always wait for their release.
const FEW_CHUNKS: u32 = 64;

/// Implicit `ib_umem_odp` of a whole address space. Chunks are created as its children
/// (`ib_umem_odp_alloc_child()`). Existing children do not depend on it.
struct Root(NonNull<bindings::ib_umem_odp>);

// SAFETY: Only the functions `ib_umem_odp_*` use the pointer, and any thread may call these.
unsafe impl Send for Root {}
// SAFETY: Only the functions `ib_umem_odp_*` use the pointer, and any thread may call these.
unsafe impl Sync for Root {}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: The root is valid and is released once, here. No child of it is being created, as
        // its address space is being dropped. It has no notifier to wait for.
        unsafe { bindings::ib_umem_odp_release(self.0.as_ptr()) };
    }
}

/// Address space of a process, as one device uses it.
#[pin_data]
pub(super) struct AddressSpace {
    /// Chunks by number: the address divided by [`CHUNK`].
    #[pin]
    chunks: Table<Chunk>,
    /// Held while a chunk is added or removed.
    #[pin]
    count: Mutex<Count>,
    readers: Arc<ReadSections>,
    root: Root,
    device: ARef<IbDevice>,
    /// Reference to the [`Owner`] that represents the process. Declared last, so that it is dropped
    /// after the chunks.
    owner: Open,
}

/// State under the lock of [`AddressSpace`].
struct Count {
    /// Number of chunks.
    chunks: u32,
    /// Maximum number of chunks until those without pages are removed.
    most: u32,
}

impl AddressSpace {
    /// Creates the address space of the calling process, which `owner` represents, without chunks.
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(owner: Open, device: &IbDevice) -> Result<Arc<Self>> {
        let readers = Arc::new(ReadSections::new()?, GFP_KERNEL_ACCOUNT)?;
        // Each walk states whether it needs the right to write. The root itself has all rights.
        let access = bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE as c_int;
        // SAFETY: `device` is borrowed, so it is valid during the call.
        let umem = unsafe { bindings::ib_umem_odp_alloc_implicit(device.as_raw(), access) };
        let root = Root(NonNull::new(from_err_ptr(umem)?).ok_or(ENOMEM)?);
        Arc::pin_init(
            pin_init!(Self {
                chunks <- Table::new(u32::MAX, &readers),
                count <- new_mutex!(Count { chunks: 0, most: FEW_CHUNKS }, "rrxe_odp"),
                readers,
                root,
                device: device.into(),
                owner,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the owner that represents the process.
    pub(super) fn owner(&self) -> &Arc<Owner> {
        self.owner.owner()
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &IbDevice {
        &self.device
    }

    /// Returns the read-side sections within which pages of this address space are used.
    pub(super) fn readers(&self) -> &Arc<ReadSections> {
        &self.readers
    }

    /// Returns the address (in the kernel's direct mapping) of the page at `va`, if it is present,
    /// and writable if `write`. To be called within a section of [`Self::readers`]. The result is
    /// valid until that section ends.
    pub(super) fn find(&self, va: usize, write: bool) -> Option<NonNull<u8>> {
        let find = |chunk: ArcBorrow<'_, Chunk>| chunk.pages().find(va, write);
        self.chunks.with(number_of(va)?, find).flatten()
    }

    /// Returns the chunk that contains the address `va`. Creates the chunk if necessary. Before the
    /// creation it waits as long as more than [`FEW_CHUNKS`] chunks of the process wait for their
    /// release, and more than this address space has chunks. In a thread of the process; sleeps.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the address is 8 PiB or higher, or the process has ended.
    /// - `EINTR` if the process was killed.
    /// - `ERESTARTNOINTR` if the thread has to take another signal first.
    /// - `ENOMEM`.
    pub(super) fn chunk(&self, va: usize) -> Result<Arc<Chunk>> {
        let number = number_of(va).ok_or(EFAULT)?;
        if let Some(chunk) = self.chunks.get(number) {
            return Ok(chunk);
        }
        loop {
            let mut count = self.count.lock();
            if let Some(chunk) = self.chunks.get(number) {
                return Ok(chunk);
            }
            if count.chunks >= count.most {
                self.remove_empty(&mut count);
            }
            let most = count.chunks.max(FEW_CHUNKS);
            if self.owner().waiting() <= most {
                return self.add(&mut count, number);
            }
            drop(count);
            self.owner().wait_for_room(most)?;
        }
    }

    /// Creates the chunk `number`, which does not exist, and publishes it in the table.
    fn add(&self, count: &mut Count, number: u32) -> Result<Arc<Chunk>> {
        self.owner().prepare_for_notifiers()?;
        let reservation = self.chunks.reserve_exact(number)?;
        let chunk = Chunk::new(self, (number as usize) << CHUNK_SHIFT)?;
        let chunk = Arc::new(chunk, GFP_KERNEL_ACCOUNT)?;
        reservation.publish(chunk.clone());
        count.chunks = count.chunks.saturating_add(1);
        Ok(chunk)
    }

    /// Creates the `ib_umem_odp` of a chunk that starts at the address `start`, with a null
    /// `private` pointer. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process has ended; `ENOMEM`; those of
    /// [`check_no_signal`](crate::support::sync::check_no_signal).
    pub(super) fn make_umem(&self, start: usize) -> Result<NonNull<bindings::ib_umem_odp>> {
        let start = start as c_ulong;
        // SAFETY: `self.root` is valid while `self` exists. Its owner holds a reference to the
        // `mm_struct`.
        let umem = unsafe {
            bindings::ib_umem_odp_alloc_child(self.root.0.as_ptr(), start, CHUNK, &NOTIFIER)
        };
        // If all notifiers of the address space so far are of the type `struct mmu_notifier`, the
        // kernel calls `mmu_notifier_register()`, which fails with `EINTR` for any signal.
        NonNull::new(from_err_ptr(umem).map_err(signal_or)?).ok_or(ENOMEM)
    }

    /// Removes all chunks without present pages. The chunks that remain are no more than the 2 MiB
    /// ranges in which the process has mapped pages. The next removal takes place before there are
    /// more than twice as many chunks as remain now, and more than [`FEW_CHUNKS`]. A thread that is
    /// faulting in memory of a removed chunk finds the memory absent afterwards and faults it in
    /// again.
    fn remove_empty(&self, count: &mut Count) {
        let mut next = 0;
        while let Some(chunk) = self.chunks.find_from(next, |_| true) {
            let Some(number) = number_of(chunk.pages().start) else {
                break;
            };
            if chunk.pages().is_empty() {
                self.remove(count, number);
            }
            let Some(beyond) = number.checked_add(1) else {
                break;
            };
            next = beyond;
            cond_resched();
        }
        count.most = count.chunks.saturating_mul(2).max(FEW_CHUNKS);
    }

    /// Removes the chunk `number`. It is released once no thread holds a reference to it.
    fn remove(&self, count: &mut Count, number: u32) {
        if let Some(chunk) = self.chunks.remove(number) {
            count.chunks = count.chunks.saturating_sub(1);
            drop(chunk);
        }
    }
}

/// Returns the number of the chunk that contains the address `va`, or `None` for an address of 8
/// PiB or higher, which is in no chunk.
fn number_of(va: usize) -> Option<u32> {
    u32::try_from(va >> CHUNK_SHIFT).ok()
}

/// Address space and number of its regions. An address space without regions stays until
/// [`Spaces::end_unused`].
struct Entry {
    space: Arc<AddressSpace>,
    regions: u32,
}

/// Addresses of an `mm_struct` and of an `ib_device`. The address space holds references to both,
/// so no two live address spaces have the same key.
type Key = (usize, usize);

/// Table of the address spaces in which devices have on-demand regions.
#[pin_data]
pub(super) struct Spaces {
    #[pin]
    entries: SpinLock<RBTree<Key, Entry>>,
}

impl Spaces {
    /// Creates an empty table.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            entries <- new_spinlock!(RBTree::new(), "rrxe_spaces"),
        })
    }

    /// Counts one more region of the address space with the key `key`. If the table has no such
    /// address space, inserts `node`, which already counts the region. Returns the address space,
    /// or `None` if the table has none and `node` is `None`.
    fn open(&self, key: Key, node: Option<RBTreeNode<Key, Entry>>) -> Option<Arc<AddressSpace>> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&key) {
            entry.regions = entry.regions.saturating_add(1);
            let space = entry.space.clone();
            // `node` may hold the last reference to an address space, which must not be destroyed
            // with the spinlock held.
            drop(entries);
            return Some(space);
        }
        let _ = entries.insert(node?);
        entries.get(&key).map(|entry| entry.space.clone())
    }

    /// Counts one region less of the address space `key`, and drops the reference `space` of that
    /// region. It is not the last reference. Returns whether the address space has no region now.
    fn close(&self, key: Key, space: Arc<AddressSpace>) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&key) else {
            return false;
        };
        // The entry holds a reference, too, and no other task removes the entry while the lock is
        // held.
        drop(space);
        entry.regions = entry.regions.saturating_sub(1);
        entry.regions == 0
    }

    /// Drops the address spaces without regions of the process with the number `owner` (see
    /// [`Owner::number`]). Their chunks go to the owner's list of chunks that wait for their
    /// release. Process context; sleeps.
    pub(super) fn end_unused(&self, owner: usize) {
        while let Some(unused) = self.take_unused(owner) {
            drop(unused);
        }
    }

    /// Removes and returns an address space without regions of the process with the number `owner`,
    /// or `None` if there is none.
    fn take_unused(&self, owner: usize) -> Option<RBTreeNode<Key, Entry>> {
        let mut entries = self.entries.lock();
        let mut cursor = entries.cursor_lower_bound_mut(&(owner, 0));
        loop {
            let at = cursor?;
            let (key, entry) = at.current();
            match (key.0 == owner, entry.regions) {
                (false, _) => return None,
                (true, 0) => return Some(at.remove_current().1),
                (true, _) => cursor = at.move_next(),
            }
        }
    }
}

impl Owners {
    /// Returns the address space of the calling process on `device`, for one more region. Creates
    /// it if necessary. `threads` is used as in [`Self::open`]. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`]; `ENOMEM`.
    pub(super) fn open_space(
        self: &Arc<Self>,
        threads: NewPermit<'_>,
        device: &IbDevice,
    ) -> Result<OpenSpace> {
        let owner = self.open(threads)?;
        let key = (owner.owner().number(), device.as_raw() as usize);
        if let Some(space) = self.spaces.open(key, None) {
            return Ok(OpenSpace::new(space));
        }
        let entry = Entry {
            space: AddressSpace::new(owner, device)?,
            regions: 1,
        };
        let node = RBTreeNode::new(key, entry, GFP_KERNEL_ACCOUNT)?;
        let space = self.spaces.open(key, Some(node)).ok_or(ENOMEM)?;
        Ok(OpenSpace::new(space))
    }
}

/// Reference of a region to its [`AddressSpace`]. All regions of a process on a device share one
/// address space.
pub(super) struct OpenSpace(ManuallyDrop<Arc<AddressSpace>>);

impl OpenSpace {
    /// Takes a reference that [`Spaces::open`] counted as a region.
    fn new(space: Arc<AddressSpace>) -> Self {
        Self(ManuallyDrop::new(space))
    }
}

impl Deref for OpenSpace {
    type Target = AddressSpace;

    fn deref(&self) -> &AddressSpace {
        &self.0
    }
}

impl Drop for OpenSpace {
    /// When the last region of an address space ends, all chunks of the address space are released
    /// soon. Process context; does not wait.
    fn drop(&mut self) {
        // SAFETY: The reference is taken once, here, and is not used any more.
        let space = unsafe { ManuallyDrop::take(&mut self.0) };
        let owner = space.owner().clone();
        let key = (owner.number(), space.device().as_raw() as usize);
        if owner.owners().spaces.close(key, space) {
            owner.end_unused();
        }
    }
}
