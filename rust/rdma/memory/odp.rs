// SPDX-License-Identifier: GPL-2.0

//! On-demand paging (ODP): memory of a process that a region exposes without pinning it.
//!
//! A [`Chunk`] stores the addresses of the present pages of a 2 MiB range. The data path looks
//! pages up and uses them within one read-side section of
//! [`ReadSections`](crate::support::read_section::ReadSections). If a page is absent, a thread of
//! the process faults it in ([`OnDemand::fault_in`]), and the data path tries again.
//!
//! Before the process loses a page, or the right to write to it, the MMU notifier removes the page
//! from the chunk. It then waits for the sections that may have found the page. So the data path
//! never uses a page that the process has lost. A section lasts as long as the copy of one packet.
//! The wait costs other CPUs nothing, which matters because a process may have tens of thousands of
//! chunks, and reclaim may call the notifier of each.
//!
//! A chunk covers 2 MiB of an address space, at a multiple of 2 MiB. It is created when a region is
//! first used there. All regions of a process on a device share its chunks. So an invalidation
//! visits at most one chunk of a device for each 2 MiB that its range touches, however many regions
//! are registered. Before the number of chunks exceeds both 64 and twice the number that remained
//! the last time, the chunks without present pages are freed. All chunks are freed soon after the
//! last region of the process on the device has ended. A region only determines to which addresses
//! its keys give access. A region may be the whole address space.
//!
//! A process can cause invalidations of its mappings without a pause. The kernel's functions that
//! wait for the end of all invalidations then wait for as long as the process likes. So system
//! calls on a region do not call these functions. Only the threads of the process that fault memory
//! in (module `walk`) and the work items that release chunks (module `owner`) do.

mod address_space;
mod first_notifier;
mod hold;
mod owner;
mod pages;
mod walk;

use core::{
    mem::{offset_of, ManuallyDrop},
    ptr::NonNull,
};

use kernel::{
    ffi::c_ulong,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    time::{Delta, Instant, Monotonic},
};

use crate::{
    bindings,
    device::IbDevice,
    memory::{direct_map, span::Span},
    support::{sync::check_not_killed, user_thread::UserThreads},
    verbs::mr::Access,
};

pub use crate::support::user_thread::{Job, Pending};
use address_space::{AddressSpace, OpenSpace, CHUNK};
use hold::Hold;
use owner::Remains;
pub use owner::{NewPermit, Owner, Owners, ReleaseThreads};
use pages::{Pages, PRESENT, WRITABLE};
use walk::{walk, Found};

const PAGE_SHIFT: u32 = PAGE_SIZE.trailing_zeros();
const PAGE_MASK: usize = !(PAGE_SIZE - 1);

/// Length in bytes of the longest span that every region serves: the largest payload of a RoCE
/// packet.
pub const LONGEST_SPAN: u32 = 4096;
/// Largest number of pages that a span of [`LONGEST_SPAN`] bytes touches. A span may start anywhere
/// in a page.
const SPAN_PAGES: usize = (LONGEST_SPAN as usize).div_ceil(PAGE_SIZE) + 1;

/// Number of bytes of a range that are checked, or faulted in, at a time.
const AHEAD: u32 = 1 << 20;
/// [`AHEAD`] as a `usize`. A chunk is a whole number of pieces of this size.
const PIECE: usize = AHEAD as usize;
const _: () = assert!(CHUNK % PIECE == 0);

/// Time for which a thread of a process faults in one range before it takes the next job.
const SLICE: Delta = Delta::from_millis(1);

/// Reason why memory cannot be used at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The range is not within the region.
    OutOfRange,
    /// A page of the range must be faulted in: it is absent, or it is read-only and the access
    /// writes.
    NotResident,
}

/// Way in which pages are made present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Page faults for reading.
    Read,
    /// Page faults for writing.
    Write,
    /// No page faults: only pages that the process has already mapped are made present.
    MappedOnly,
}

/// [`CHUNK`] bytes of a process's on-demand memory, at a multiple of [`CHUNK`].
struct Chunk {
    /// Moved to the owner's list of [`Remains`] when the chunk is dropped.
    parts: ManuallyDrop<KBox<Remains>>,
    owner: Arc<Owner>,
}

/// Operations of the MMU notifier of each [`Chunk`].
static NOTIFIER: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    invalidate_start: None,
    invalidate_finish: None,
};

/// Implements `invalidate` of `struct mmu_interval_notifier_ops`. The kernel calls it before the
/// process loses pages, or rights to them. Removes the pages of the range from the chunk and waits
/// for the sections that may use them. Returns false, with nothing changed, if the call must not
/// sleep and another task holds the lock of the `ib_umem_odp`.
///
/// # Safety
///
/// To be called by the MMU notifier of a [`Chunk`] only.
unsafe extern "C" fn invalidate(
    notifier: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    seq: c_ulong,
) -> bool {
    // SAFETY: The notifier passes a range that is valid during the call.
    let blockable = unsafe { bindings::mmu_notifier_range_blockable(range) };
    // SAFETY: The notifier is part of an `ib_umem_odp`, valid while it is registered.
    let umem: *mut bindings::ib_umem_odp = unsafe {
        notifier
            .byte_sub(offset_of!(bindings::ib_umem_odp, notifier))
            .cast()
    };
    // SAFETY: The pointer is that of a valid `ib_umem_odp`, so it is not null.
    let umem = unsafe { NonNull::new_unchecked(umem) };
    // The OOM reaper must not sleep. It tries again if the notifier returns false
    // (`oom_reap_task()`, mm/oom_kill.c).
    let hold = match blockable {
        // SAFETY: `umem` is valid during the call, and the result is dropped before its end.
        true => Some(unsafe { Hold::new(umem) }),
        // SAFETY: `umem` is valid during the call, and the result is dropped before its end.
        false => unsafe { Hold::try_new(umem) },
    };
    let Some(_hold) = hold else {
        return false;
    };
    // SAFETY: The sequence number belongs to a valid `ib_umem_odp`, whose lock `_hold` holds.
    unsafe { bindings::mmu_interval_set_seq(notifier, seq) };
    // SAFETY: `umem` is valid and locked. By the invariant of `Remains` its `private` is null or
    // points to the pages of the chunk.
    let pages = unsafe { (*umem.as_ptr()).private.cast::<Pages>().as_ref() };
    // SAFETY: The notifier passes a range that is valid during the call.
    let (start, end) = unsafe { ((*range).start, (*range).end) };
    if let Some(pages) = pages {
        pages.forget(start, end, |_| true);
    }
    true
}

impl Chunk {
    /// Creates the chunk of `space` that starts at the address `start`. Process context; sleeps.
    ///
    /// The array of pages that ib_core allocates (`ib_init_umem_odp()`,
    /// drivers/infiniband/core/umem_odp.c) is charged to no memory cgroup. The array in [`Pages`]
    /// has as many entries and is charged. It is allocated first, and both arrays are freed
    /// together. So a process has no more of ib_core's arrays than its memory cgroup lets it have
    /// of this driver's.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process has ended; `ENOMEM`; those of [`AddressSpace::make_umem`].
    fn new(space: &AddressSpace, start: usize) -> Result<Self> {
        let pages = Pages::new(start, space.readers().clone())?;
        let parts = KBox::<Remains>::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let umem = space.make_umem(start)?;
        // SAFETY: `make_umem` just created `umem` with a null `private`, and this is the only
        // pointer to it.
        let parts = parts.write(unsafe { Remains::new(umem, pages, space.device()) });
        let chunk = Self {
            parts: ManuallyDrop::new(parts),
            owner: space.owner().clone(),
        };
        let pages = core::ptr::from_ref(chunk.pages()).cast_mut();
        chunk.locked(|| chunk.set_private(pages));
        Ok(chunk)
    }

    /// Runs `f`, which must not sleep, with the lock of the `ib_umem_odp` held. The MMU notifier
    /// takes the same lock. Process context; sleeps.
    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: `umem` is valid by the invariant of `Remains`, which lives as long as the chunk.
        let _hold = unsafe { Hold::new(self.parts.umem) };
        f()
    }

    /// Stores the pointer through which the MMU notifier finds the pages: `pages` is those of this
    /// chunk, or null. The caller holds the lock.
    fn set_private(&self, pages: *mut Pages) {
        let umem = self.parts.umem.as_ptr();
        // SAFETY: `umem` is valid by the invariant of `Remains`; the notifier reads it under the
        // lock.
        unsafe { (*umem).private = pages.cast() };
    }

    /// Returns the present pages of the chunk.
    fn pages(&self) -> &Pages {
        &self.parts.pages
    }

    /// Makes the `len` bytes at the address `va` present. They must be within the chunk. Pages of a
    /// smaller order than `order` are refused. In a thread of the process; sleeps.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the range is not within the chunk, if the process has not mapped it or may not
    ///   read it, or if the kernel cannot access a page through its direct mapping.
    /// - `EPERM` if the process may not write to the range, for [`Fault::Write`].
    /// - `EINVAL` if a page has a smaller order than `order`.
    /// - `EINTR` if the calling task was killed.
    /// - `EBUSY` if the process keeps changing its mappings; `ENOMEM`.
    fn fault_in(&self, va: usize, len: usize, how: Fault, order: u32) -> Result {
        let start = va & PAGE_MASK;
        let last = va.checked_add(len.saturating_sub(1)).ok_or(EFAULT)?;
        self.pages().entry(start).ok_or(EFAULT)?;
        self.pages().entry(last).ok_or(EFAULT)?;
        let end = (last & PAGE_MASK).checked_add(PAGE_SIZE).ok_or(EFAULT)?;
        if how == Fault::Write {
            self.forget_read_only(start, end);
        }
        let store_pages = |found: Found<'_>| {
            let mut stored = Ok(());
            for (index, at) in (start..end).step_by(PAGE_SIZE).enumerate() {
                let page = found.page(index);
                stored = page
                    .and_then(|page| self.store_page(at, page, how))
                    .and(stored);
            }
            stored
        };
        // SAFETY: `umem` is valid by the invariant of `Remains`. The chunk has entries for the
        // first and the last byte of the range, so the range is within `umem`. `OnDemand::fault_in`
        // checked that the calling thread belongs to the process.
        unsafe { walk(self.parts.umem, &(start..end), how, order, store_pages) }
    }

    /// Removes the present pages of the range that may not be written. A write fault usually
    /// replaces such a page, and the MMU notifier would then wait for readers once for each page.
    /// To remove all of them here takes one wait.
    fn forget_read_only(&self, start: usize, end: usize) {
        let read_only = |entry| entry & WRITABLE == 0;
        self.locked(|| self.pages().forget(start, end, read_only));
    }

    /// Stores the result of a walk for the address `va`: `found` is the page and whether it may be
    /// written. The caller holds the lock.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the kernel cannot access the page through its direct mapping, or if the page is
    /// still absent after a fault. Without the latter error, the access that needs the page would
    /// be tried again for ever.
    fn store_page(
        &self,
        va: usize,
        found: Option<(NonNull<bindings::page>, bool)>,
        how: Fault,
    ) -> Result {
        let entry = self.pages().entry(va).ok_or(EFAULT)?;
        let Some((page, writable)) = found else {
            return match how {
                Fault::MappedOnly => Ok(()),
                Fault::Read | Fault::Write => Err(EFAULT),
            };
        };
        // SAFETY: HMM returned the pointer, as that of a page of the process.
        let address = unsafe { direct_map::address_of(page.as_ptr()) }.ok_or(EFAULT)?;
        let flags = if writable {
            PRESENT | WRITABLE
        } else {
            PRESENT
        };
        // INVARIANT: The page belongs to the process: `walk` checked under the lock that no
        // notifier ran since it found it.
        self.pages().set(entry, address.as_ptr() as usize | flags);
        Ok(())
    }
}

impl Drop for Chunk {
    /// After this, no reader can use a page of the chunk, and no walk can store another page: a
    /// thread that walks holds a reference to the chunk. Waits for read-side sections and for the
    /// lock, but not for the end of invalidations. Process context; sleeps.
    fn drop(&mut self) {
        self.locked(|| {
            self.pages().forget(0, usize::MAX, |_| true);
            // From here on the MMU notifier finds no pages.
            self.set_private(core::ptr::null_mut());
        });
        // SAFETY: The parts are taken once, here, and are not used any more.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        self.owner.release(parts);
    }
}

/// Returns the smallest order of pages that is acceptable for the rights `access`: the order of a
/// huge page for `IB_ACCESS_HUGETLB`, else 0.
fn least_order(access: Access) -> u32 {
    if !access.is_huge() {
        return 0;
    }
    // SAFETY: `HPAGE_SIZE()` has no requirements.
    let huge = unsafe { bindings::HPAGE_SIZE() };
    huge.trailing_zeros().saturating_sub(PAGE_SHIFT)
}

/// On-demand memory of a region: a range of a process's address space that is not pinned. Its
/// pages are tracked in chunks of 2 MiB, each with a `struct ib_umem_odp`.
pub struct OnDemand {
    space: OpenSpace,
    /// Address of the first byte in the process's address space.
    start: usize,
    len: usize,
    writable: bool,
    /// Smallest order that a page of the region may have.
    order: u32,
}

impl OnDemand {
    /// Whether the kernel provides threads of processes (`CONFIG_VHOST_TASK`), which on-demand
    /// memory needs to serve page faults.
    pub(crate) const IS_SUPPORTED: bool = UserThreads::EXISTS;

    /// Registers `len` bytes at the address `start` of the calling process, which may have a tag. A
    /// `start` of zero with a `len` of `u64::MAX` registers the whole address space. `owners` has
    /// or gets an entry for the process. For a new entry, `threads` creates the permit for a thread
    /// that releases chunks.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is empty, or if it is the whole address space and `access` demands
    ///   huge pages.
    /// - `EOVERFLOW` if the range wraps.
    /// - The errors of [`Owners::open`].
    pub(crate) fn new(
        owners: &Arc<Owners>,
        threads: NewPermit<'_>,
        device: &IbDevice,
        start: u64,
        len: u64,
        access: Access,
    ) -> Result<Self> {
        let (first, bytes) = (usize::try_from(start)?, usize::try_from(len)?);
        // Page tables know no tags. `pin_user_pages_fast()` removes them for pinned regions.
        // SAFETY: `untagged_addr()` has no requirements.
        let first = unsafe { bindings::untagged_addr(first) };
        if (start, len) == (0, u64::MAX) {
            // `ib_umem_odp_alloc_implicit()` refuses this, too.
            if access.is_huge() {
                return Err(EINVAL);
            }
        } else if len == 0 {
            return Err(EINVAL);
        } else {
            let end = first.checked_add(bytes).ok_or(EOVERFLOW)?;
            end.checked_next_multiple_of(PAGE_SIZE).ok_or(EOVERFLOW)?;
        }
        Ok(Self {
            space: owners.open_space(threads, device)?,
            start: first,
            len: bytes,
            writable: access.writes(),
            order: least_order(access),
        })
    }

    /// Returns the length of the range in bytes.
    pub fn length(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether the rights of the region include writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the address in the process of the `len` bytes at `offset`, or `None` if they are not
    /// within the range.
    fn locate(&self, offset: u64, len: u64) -> Option<usize> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let within = offset <= self.len && len <= self.len.wrapping_sub(offset);
        within.then(|| self.start.wrapping_add(offset))
    }

    /// Returns whether `len` bytes at `offset` (in bytes) are within the range.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        self.locate(offset, len).is_some()
    }

    /// Runs `f` on the span of `len` bytes at `offset` (in bytes) and returns its result. `len` is
    /// at most [`LONGEST_SPAN`]. The span may be written if `write`. Any context; `f` must not
    /// sleep.
    ///
    /// # Errors
    ///
    /// [`Absence::OutOfRange`] if the bytes are not within the range, or are too many;
    /// [`Absence::NotResident`] if a page is absent, or is read-only and `write` is set.
    #[inline]
    pub fn with_span<R>(
        &self,
        offset: u64,
        len: u32,
        write: bool,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, Absence> {
        let (mut f, mut used) = (Some(f), None);
        self.find_span(offset, len, write, &mut |span| {
            used = f.take().map(|f| f(span));
        })?;
        used.ok_or(Absence::OutOfRange)
    }

    /// Calls `f` once if no page must be faulted in. This is a separate cold function, so that its
    /// code is not inlined where callers use pinned memory only.
    #[cold]
    fn find_span(
        &self,
        offset: u64,
        len: u32,
        write: bool,
        f: &mut dyn FnMut(Span<'_>),
    ) -> Result<(), Absence> {
        let va = self.locate(offset, len.into()).ok_or(Absence::OutOfRange)?;
        let within = va & !PAGE_MASK;
        let count = within.wrapping_add(len as usize).div_ceil(PAGE_SIZE);
        let mut pages = [NonNull::<u8>::dangling(); SPAN_PAGES];
        let pages = pages.get_mut(..count).ok_or(Absence::OutOfRange)?;
        // The pages are used within this section only.
        self.space.readers().within(|| {
            let mut at = va & PAGE_MASK;
            for page in pages.iter_mut() {
                *page = self.space.find(at, write).ok_or(Absence::NotResident)?;
                at = at.wrapping_add(PAGE_SIZE);
            }
            // SAFETY: The `len` bytes at `within` are within `pages`. `find` just returned each
            // page, for writing if `write`. The pages stay valid until the section ends.
            f(unsafe { Span::new(pages, PAGE_SHIFT, within, len as usize, write) });
            Ok(())
        })
    }

    /// Checks that `len` bytes at `offset` are present, and writable if `write`, so that they can
    /// probably be used soon. Checks no more than the first 1 MiB of the range. Any context.
    ///
    /// # Errors
    ///
    /// [`Absence::OutOfRange`] if the bytes are not within the range; [`Absence::NotResident`] if a
    /// page of the checked part is absent, or is read-only and `write` is set.
    #[cold]
    pub fn check_ahead(&self, offset: u64, len: u32, write: bool) -> Result<(), Absence> {
        let va = self.locate(offset, len.into()).ok_or(Absence::OutOfRange)?;
        let end = va.saturating_add(len.min(AHEAD) as usize);
        let mut pages = (va & PAGE_MASK..end).step_by(PAGE_SIZE);
        let present = |at| self.space.find(at, write).is_some();
        let present = self.space.readers().within(|| pages.all(present));
        present.then_some(()).ok_or(Absence::NotResident)
    }

    /// Queues `job` for a thread of the process. Only threads of the process make memory present.
    /// So the time and the memory are charged to the process, as if it had accessed the memory
    /// itself. Process context.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process has ended; `ENOMEM`.
    pub fn begin(&self, job: Arc<dyn Job>) -> Result<Pending> {
        self.space.owner().begin_job(job)
    }

    /// Returns whether the calling thread has the address space of this memory. Only such a thread
    /// may make it present.
    pub fn is_here(&self) -> bool {
        self.space.owner().is_here()
    }

    /// Makes the range present that [`Self::check_ahead`] checks: at most the first 1 MiB of the
    /// `len` bytes at `offset`. Pages may be absent again when this returns. In a thread of the
    /// process; sleeps.
    ///
    /// # Errors
    ///
    /// Those of [`Self::fault_in`].
    pub fn serve(&self, offset: u64, len: u32, write: bool) -> Result {
        let how = if write { Fault::Write } else { Fault::Read };
        let (mut offset, mut left) = (offset, u64::from(len).min(AHEAD.into()));
        while left != 0 {
            let done = self.fault_in(offset, left, how)?;
            offset = offset.saturating_add(done);
            left = left.saturating_sub(done);
        }
        Ok(())
    }

    /// Makes the beginning of the `len` bytes at `offset` present. Returns the number of bytes that
    /// were made present: `len`, or as many as took a [`SLICE`] of time. Pages may be absent again
    /// when this returns. The work is divided into pieces of 1 MiB, so that the MMU notifier, and
    /// with it a change of the address space, waits for one piece only.
    ///
    /// # Context
    ///
    /// In a thread of the process; sleeps.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the range is not within the region, if the process has not mapped it or may
    ///   not read it, if its addresses are 8 PiB or higher, if the kernel cannot access a page
    ///   through its direct mapping, or if the calling thread belongs to another process.
    /// - `EPERM` if the process may not write to the range, for [`Fault::Write`].
    /// - `EINVAL` if a page is small, in a region of huge pages.
    /// - `EINTR` if the process was killed.
    /// - `ERESTARTNOINTR` if the thread has to take another signal first.
    /// - `EBUSY` if the process keeps changing its mappings; `ENOMEM`.
    pub fn fault_in(&self, offset: u64, len: u64, how: Fault) -> Result<u64> {
        let va = self.locate(offset, len).ok_or(EFAULT)?;
        let len = usize::try_from(len)?;
        if !self.is_here() {
            return Err(EFAULT);
        }
        let (begin, mut done) = (Instant::<Monotonic>::now(), 0);
        while done < len && (done == 0 || begin.elapsed() < SLICE) {
            check_not_killed()?;
            let at = va.saturating_add(done);
            // A piece ends at a multiple of its size, so it is within one chunk.
            let piece = PIECE.wrapping_sub(at & (PIECE - 1));
            let piece = piece.min(len.saturating_sub(done));
            self.fault_in_piece(at, piece, how)?;
            done = done.saturating_add(piece);
        }
        Ok(done as u64)
    }

    /// Makes the `len` bytes at the address `va` present. They must be within one chunk. In a
    /// thread of the process; sleeps.
    fn fault_in_piece(&self, va: usize, len: usize, how: Fault) -> Result {
        // The chunk stays even if no page of it could be made present. If it were freed, repeated
        // faults would create and free it again and again, and many chunks would wait for their
        // release.
        let chunk = self.space.chunk(va)?;
        chunk.fault_in(va, len, how, self.order)
    }
}
