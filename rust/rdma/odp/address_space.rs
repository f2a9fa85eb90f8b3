// SPDX-License-Identifier: GPL-2.0

//! A process's whole address space on demand: chunks that are made where it is used.

use core::ptr::NonNull;

use kernel::{
    error::from_err_ptr,
    ffi::c_ulong,
    new_mutex,
    prelude::*,
    sync::{aref::ARef, Arc, ArcBorrow, Mutex},
};

use super::{Chunk, Owner, NOTIFIER};
use crate::{
    bindings, device::IbDevice, mr::Access, section::Sections, sync::cond_resched, table::Table,
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

/// A whole address space.
#[pin_data]
pub(super) struct AddressSpace {
    /// By address.
    #[pin]
    chunks: Table<Chunk>,
    /// Held to add and to take away.
    #[pin]
    count: Mutex<Count>,
    readers: Arc<Sections>,
    root: Root,
    device: ARef<IbDevice>,
    owner: Arc<Owner>,
}

/// How many chunks there are, and at how many those without pages are looked for.
struct Count {
    chunks: u32,
    most: u32,
}

impl AddressSpace {
    /// That of the calling process, which is `owner`; its pages are used within sections of `readers`. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for access to huge pages only, `ENOMEM`.
    pub(super) fn new(
        owner: &Arc<Owner>,
        device: &IbDevice,
        access: Access,
        readers: Arc<Sections>,
    ) -> Result<Arc<Self>> {
        // SAFETY: The device is valid while it is borrowed.
        let umem =
            unsafe { bindings::ib_umem_odp_alloc_implicit(device.as_raw(), access.as_raw()) };
        let root = Root(NonNull::new(from_err_ptr(umem)?).ok_or(ENOMEM)?);
        Arc::pin_init(
            pin_init!(Self {
                chunks <- Table::new(u32::MAX, &readers),
                count <- new_mutex!(Count { chunks: 0, most: FEW_CHUNKS }, "rrxe_odp"),
                readers,
                root,
                device: device.into(),
                owner: owner.clone(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Within their sections the pages are used.
    pub(super) fn readers(&self) -> &Sections {
        &self.readers
    }

    /// The page at `va`, if it may be used so. Within a section.
    pub(super) fn find(&self, va: usize, write: bool) -> Option<NonNull<u8>> {
        let find = |chunk: ArcBorrow<'_, Chunk>| chunk.pages().find(va, write);
        self.chunks.with(number_of(va)?, find).flatten()
    }

    /// The chunk at `va`, made if it isn't there; before that, waits while more chunks of the process wait for their
    /// release than there are, and asks `goes_on` meanwhile. For work items only: process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` for an address that no process has, and when the process is gone; `ENOMEM`; those of `goes_on`.
    pub(super) fn chunk(&self, va: usize, goes_on: impl Fn() -> Result) -> Result<Arc<Chunk>> {
        let number = number_of(va).ok_or(EFAULT)?;
        loop {
            let mut count = self.count.lock();
            if let Some(chunk) = self.chunks.get(number) {
                return Ok(chunk);
            }
            if count.chunks >= count.most {
                self.discard_empty(&mut count);
            }
            let most = count.chunks.max(FEW_CHUNKS);
            if self.owner.waiting() <= most {
                return self.add(&mut count, number);
            }
            drop(count);
            self.owner.wait_for_room(most, &goes_on)?;
        }
    }

    /// Makes the chunk of this number, which isn't there.
    fn add(&self, count: &mut Count, number: u32) -> Result<Arc<Chunk>> {
        let place = self.chunks.reserve_exact(number)?;
        // SAFETY: The root is alive, and its owner keeps its address space.
        let make = || unsafe {
            bindings::ib_umem_odp_alloc_child(
                self.root.0.as_ptr(),
                (number as c_ulong) << CHUNK_SHIFT,
                CHUNK,
                &NOTIFIER,
            )
        };
        let readers = self.readers.clone();
        let chunk = Chunk::new(&self.owner, &self.device, readers, CHUNK, make)?;
        let chunk = Arc::new(chunk, GFP_KERNEL_ACCOUNT)?;
        place.publish(chunk.clone());
        count.chunks = count.chunks.saturating_add(1);
        Ok(chunk)
    }

    /// Takes the chunk at `va` away again: there was nothing to be had.
    pub(super) fn discard(&self, va: usize) {
        if let Some(number) = number_of(va) {
            self.remove(&mut self.count.lock(), number);
        }
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
            next = number.saturating_add(1);
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

fn number_of(va: usize) -> Option<u32> {
    u32::try_from(va >> CHUNK_SHIFT).ok()
}
