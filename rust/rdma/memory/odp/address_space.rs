// SPDX-License-Identifier: GPL-2.0

//! A process's address space on demand: chunks that are made where it is used, the same for all regions of a device.

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
    owner::{NewThreads, Open, Owner, Owners},
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

/// Bytes of a chunk of an address space, log₂: what one page of a page table maps.
const CHUNK_SHIFT: u32 = 21;
pub(super) const CHUNK: usize = 1 << CHUNK_SHIFT;

/// So many chunks may be without pages before anybody looks for such, and so many may wait for their release.
const FEW_CHUNKS: u32 = 64;

/// The anchor of a whole address space: an implicit `ib_umem_odp`, of which chunks are made. They don't need it
/// afterwards.
struct Root(NonNull<bindings::ib_umem_odp>);

// SAFETY: Only `ib_umem_odp_*` use it, from any thread.
unsafe impl Send for Root {}
// SAFETY: As above.
unsafe impl Sync for Root {}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: It is released once, here, and no chunk of it is being made. It has no notifier to wait for.
        unsafe { bindings::ib_umem_odp_release(self.0.as_ptr()) };
    }
}

/// An address space, as a device has it.
#[pin_data]
pub(super) struct AddressSpace {
    /// By address.
    #[pin]
    chunks: Table<Chunk>,
    /// Held to add and to take away.
    #[pin]
    count: Mutex<Count>,
    readers: Arc<ReadSections>,
    root: Root,
    device: ARef<IbDevice>,
    /// Dropped after the chunks.
    owner: Open,
}

/// How many chunks there are, and at how many those without pages are looked for.
struct Count {
    chunks: u32,
    most: u32,
}

impl AddressSpace {
    /// That of the calling process, which is `owner`, without chunks. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(owner: Open, device: &IbDevice) -> Result<Arc<Self>> {
        let readers = Arc::new(ReadSections::new()?, GFP_KERNEL_ACCOUNT)?;
        // Whether a region writes is asked for with each walk, not here.
        let access = bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE as c_int;
        // SAFETY: The device is valid while it is borrowed.
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

    /// The process.
    pub(super) fn owner(&self) -> &Arc<Owner> {
        self.owner.owner()
    }

    /// The device.
    pub(super) fn device(&self) -> &IbDevice {
        &self.device
    }

    /// Within their sections the pages are used.
    pub(super) fn readers(&self) -> &Arc<ReadSections> {
        &self.readers
    }

    /// The page at `va`, if it may be used so. Within a section.
    pub(super) fn find(&self, va: usize, write: bool) -> Option<NonNull<u8>> {
        let find = |chunk: ArcBorrow<'_, Chunk>| chunk.pages().find(va, write);
        self.chunks.with(number_of(va)?, find).flatten()
    }

    /// The chunk at `va`, made if it isn't there; before that, waits while more chunks of the process wait for their
    /// release than there are. For a thread of the process; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` for an address that no process has, and when the process is gone; `EINTR` if it was killed; `ERESTARTNOINTR` if
    /// the thread has to take another signal first; `ENOMEM`.
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
                self.discard_empty(&mut count);
            }
            let most = count.chunks.max(FEW_CHUNKS);
            if self.owner().waiting() <= most {
                return self.add(&mut count, number);
            }
            drop(count);
            self.owner().wait_for_room(most)?;
        }
    }

    /// Makes the chunk of this number, which isn't there.
    fn add(&self, count: &mut Count, number: u32) -> Result<Arc<Chunk>> {
        self.owner().prepare_for_notifiers()?;
        let place = self.chunks.reserve_exact(number)?;
        let chunk = Chunk::new(self, (number as usize) << CHUNK_SHIFT)?;
        let chunk = Arc::new(chunk, GFP_KERNEL_ACCOUNT)?;
        place.publish(chunk.clone());
        count.chunks = count.chunks.saturating_add(1);
        Ok(chunk)
    }

    /// Makes an `ib_umem_odp` for a chunk at `start`; its `private` is null. Process context.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process is gone, `ENOMEM`, those of [`check_no_signal`](crate::support::sync::check_no_signal).
    pub(super) fn make_umem(&self, start: usize) -> Result<NonNull<bindings::ib_umem_odp>> {
        let start = start as c_ulong;
        // SAFETY: The root is alive, and its owner keeps its address space.
        let umem = unsafe {
            bindings::ib_umem_odp_alloc_child(self.root.0.as_ptr(), start, CHUNK, &NOTIFIER)
        };
        // The kernel gives up for any signal if the space has had notifiers of other kinds only.
        NonNull::new(from_err_ptr(umem).map_err(signal_or)?).ok_or(ENOMEM)
    }

    /// Takes away all chunks without pages, and so leaves at most one for each page of a page table that the process
    /// has; the next time when there are twice as many chunks as are left. Somebody who is just having memory of such a
    /// chunk faulted in comes to absent memory again.
    fn discard_empty(&self, count: &mut Count) {
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

    fn remove(&self, count: &mut Count, number: u32) {
        if let Some(chunk) = self.chunks.remove(number) {
            count.chunks = count.chunks.saturating_sub(1);
            drop(chunk);
        }
    }
}

/// Which chunk an address is in, if any is: an address of 8 PiB or more is in none.
fn number_of(va: usize) -> Option<u32> {
    u32::try_from(va >> CHUNK_SHIFT).ok()
}

/// An address space and how many regions have it. One without regions waits for [`Spaces::end_unused`].
struct Entry {
    space: Arc<AddressSpace>,
    regions: u32,
}

/// The places of an `mm_struct` and of a device. The space keeps both, so no two that live have the same.
type Key = (usize, usize);

/// The address spaces that devices have regions of.
#[pin_data]
pub(super) struct Spaces {
    #[pin]
    entries: SpinLock<RBTree<Key, Entry>>,
}

impl Spaces {
    /// None yet.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            entries <- new_spinlock!(RBTree::new(), "rrxe_spaces"),
        })
    }

    /// Counts one more region of the space of this key, or inserts `node` if there is a node and no space. Returns the
    /// space.
    fn open(&self, key: Key, node: Option<RBTreeNode<Key, Entry>>) -> Option<Arc<AddressSpace>> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&key) {
            entry.regions = entry.regions.saturating_add(1);
            let space = entry.space.clone();
            // `node` may have the last count of a space, which isn't to end under the lock.
            drop(entries);
            return Some(space);
        }
        let _ = entries.insert(node?);
        entries.get(&key).map(|entry| entry.space.clone())
    }

    /// Counts one region less of the space of this key, and gives up the region's count of it, which is not the last one.
    /// Returns whether the space has no region now.
    fn close(&self, key: Key, space: Arc<AddressSpace>) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&key) else {
            return false;
        };
        // The entry has one as well, and nobody takes the entry before the lock is released.
        drop(space);
        entry.regions = entry.regions.saturating_sub(1);
        entry.regions == 0
    }

    /// Ends the spaces without regions of the process with this number, which gives its owner their chunks. Process
    /// context; sleeps.
    pub(super) fn end_unused(&self, owner: usize) {
        while let Some(unused) = self.take_unused(owner) {
            drop(unused);
        }
    }

    /// Takes out a space without regions of the process with this number.
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
    /// The calling process's address space, as `device` has it, for one more region; `threads` as for [`Self::open`].
    /// Process context.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], `ENOMEM`.
    pub(super) fn open_space(
        self: &Arc<Self>,
        threads: NewThreads<'_>,
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

/// An [`AddressSpace`] that a region has: each later region of the process and device has the same.
pub(super) struct OpenSpace(ManuallyDrop<Arc<AddressSpace>>);

impl OpenSpace {
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
    /// With the last one, all chunks end soon. Process context; waits for nobody.
    fn drop(&mut self) {
        // SAFETY: It is taken once, here, and not used any more.
        let space = unsafe { ManuallyDrop::take(&mut self.0) };
        let owner = space.owner().clone();
        let key = (owner.number(), space.device().as_raw() as usize);
        if owner.owners().spaces.close(key, space) {
            owner.end_unused();
        }
    }
}
