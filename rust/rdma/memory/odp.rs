// SPDX-License-Identifier: GPL-2.0

//! Memory of a process that isn't pinned: on-demand paging.
//!
//! A [`Chunk`] knows the pages of a range that are present. Users of the data path find and use them within
//! [`ReadSections`]; what is absent they have faulted in by process context ([`OnDemand::fault_in`]) and try
//! again. Before the process loses a page, or the right to write it, the MMU notifier takes it out of
//! the chunk and waits for the sections that may have found it: so no user holds a page that the process has not.
//! A section lasts as long as the copy of one packet, and the wait costs no other CPU anything: a process may have
//! tens of thousands of chunks, and reclaim may come for each of them.
//!
//! A chunk is 2 MiB of an address space. It is made where a region is used, and all regions of a process on a device have
//! the same one: an invalidation looks at as many chunks as its range has pages of page tables, whatever is registered.
//! Chunks that have no page any more are freed when as many others have been made, and all soon after the
//! last of these regions has ended. A region, which may be the whole address space, only says which addresses its keys open.
//!
//! A process may have its mappings invalidated without a pause, and the kernel's functions that wait for the end of all
//! invalidations then wait for as long as the process likes. So no call of anybody makes them. A thread of the process
//! itself has memory faulted in (`walk`), and work items release chunks (`owner`).

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
pub use owner::{NewThreads, Owner, Owners, Threads};
use pages::{Pages, PRESENT, WRITABLE};
use walk::{walk, Found};

const PAGE_SHIFT: u32 = PAGE_SIZE.trailing_zeros();
const PAGE_MASK: usize = !(PAGE_SIZE - 1);

/// Bytes of the longest span that any range serves: those of the largest payload of a RoCE packet.
pub const LONGEST_SPAN: u32 = 4096;
/// The pages that it touches at most, for it starts anywhere.
const SPAN_PAGES: usize = (LONGEST_SPAN as usize).div_ceil(PAGE_SIZE) + 1;

/// How much of a range is looked at, and faulted in, at a time.
const AHEAD: u32 = 1 << 20;
/// The same as a size. Chunks are whole pieces.
const PIECE: usize = AHEAD as usize;
const _: () = assert!(CHUNK % PIECE == 0);

/// So long a thread of a process is busy with one range, before other jobs have their turn.
const SLICE: Delta = Delta::from_millis(1);

/// Why memory can't be used at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The range isn't within the region.
    OutOfRange,
    /// It must be faulted in.
    NotResident,
}

/// How pages are to be made present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// For reading.
    Read,
    /// For writing.
    Write,
    /// Only those that the process has already.
    Look,
}

/// [`CHUNK`] bytes of a process's memory that isn't pinned, at a multiple of that.
struct Chunk {
    /// Taken when this is dropped.
    parts: ManuallyDrop<KBox<Remains>>,
    owner: Arc<Owner>,
}

static NOTIFIER: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    invalidate_start: None,
    invalidate_finish: None,
};

/// The process is about to lose pages, or rights to them.
///
/// # Safety
///
/// To be called by the MMU notifier of a [`Chunk`].
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
    // SAFETY: As above, so it isn't null.
    let umem = unsafe { NonNull::new_unchecked(umem) };
    // The OOM reaper may not sleep, and tries again if it is refused (`oom_reap_task()`, mm/oom_kill.c).
    let hold = match blockable {
        // SAFETY: As above.
        true => Some(unsafe { Hold::new(umem) }),
        // SAFETY: As above.
        false => unsafe { Hold::attempt(umem) },
    };
    let Some(_hold) = hold else {
        return false;
    };
    // SAFETY: As above, and locked.
    unsafe { bindings::mmu_interval_set_seq(notifier, seq) };
    // SAFETY: As above; by the invariant of `Remains`.
    let pages = unsafe { (*umem.as_ptr()).private.cast::<Pages>().as_ref() };
    // SAFETY: The notifier passes a range that is valid during the call.
    let (start, end) = unsafe { ((*range).start, (*range).end) };
    if let Some(pages) = pages {
        pages.forget(start, end, |_| true);
    }
    true
}

impl Chunk {
    /// The chunk of `space` at `start`. Process context.
    ///
    /// ib_core's list of the pages (`ib_init_umem_odp()`, drivers/infiniband/core/umem_odp.c) counts for nobody. Ours,
    /// as long, is allocated before, and both are freed together: so no process has more of ib_core's than it can pay for.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process is gone, `ENOMEM`.
    fn new(space: &AddressSpace, start: usize) -> Result<Self> {
        let pages = Pages::new(start, space.readers().clone())?;
        let parts = KBox::<Remains>::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let umem = space.make_umem(start)?;
        // SAFETY: `umem` was just made, zeroed, and nobody else has it.
        let parts = parts.write(unsafe { Remains::new(umem, pages, space.device()) });
        let chunk = Self {
            parts: ManuallyDrop::new(parts),
            owner: space.owner().clone(),
        };
        let pages = core::ptr::from_ref(chunk.pages()).cast_mut();
        chunk.locked(|| chunk.set_private(pages));
        Ok(chunk)
    }

    /// Runs `f`, which must not sleep, under the lock, which the notifier takes as well.
    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: `umem` is valid by the invariant of `Remains`, which live as long as the chunk.
        let _hold = unsafe { Hold::new(self.parts.umem) };
        f()
    }

    /// Has the notifier find `pages`: those of this chunk, or null. Under the lock.
    fn set_private(&self, pages: *mut Pages) {
        let umem = self.parts.umem.as_ptr();
        // SAFETY: `umem` is valid by the invariant of `Remains`; the notifier reads it under the lock.
        unsafe { (*umem).private = pages.cast() };
    }

    /// The pages that are present.
    fn pages(&self) -> &Pages {
        &self.parts.pages
    }

    /// Makes `len` bytes at `va`, which are within the chunk, present, if no page there is of a smaller order than `order`.
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` for what the process has not, or may not read; `EPERM` for what it may not write; `EINVAL` for a page of a smaller
    /// order; `EINTR` if the calling task was killed; `EBUSY`, `ENOMEM`.
    fn fault_in(&self, va: usize, len: usize, how: Fault, order: u32) -> Result {
        let start = va & PAGE_MASK;
        let last = va.checked_add(len.saturating_sub(1)).ok_or(EFAULT)?;
        self.pages().entry(start).ok_or(EFAULT)?;
        self.pages().entry(last).ok_or(EFAULT)?;
        let end = (last & PAGE_MASK).checked_add(PAGE_SIZE).ok_or(EFAULT)?;
        if how == Fault::Write {
            self.forget_read_only(start, end);
        }
        let note = |found: Found<'_>| {
            let mut noted = Ok(());
            for (index, at) in (start..end).step_by(PAGE_SIZE).enumerate() {
                let page = found.page(index);
                noted = page.and_then(|page| self.note(at, page, how)).and(noted);
            }
            noted
        };
        // SAFETY: `umem` is valid by the invariant of `Remains`. The range is within it: it has entries. The caller is of the
        // process: `OnDemand::fault_in` has looked.
        unsafe { walk(self.parts.umem, &(start..end), how, order, note) }
    }

    /// Pages that can't be written yet will be replaced: better all with one wait than each with its own.
    fn forget_read_only(&self, start: usize, end: usize) {
        let read_only = |entry| entry & WRITABLE == 0;
        self.locked(|| self.pages().forget(start, end, read_only));
    }

    /// Notes what a walk found at `va`: a page, and whether it may be written. Under the lock.
    ///
    /// # Errors
    ///
    /// `EFAULT` for a page that the kernel can't reach, and for one that is still absent after a fault: the access
    /// that needs it would otherwise be tried again for ever.
    fn note(
        &self,
        va: usize,
        found: Option<(NonNull<bindings::page>, bool)>,
        how: Fault,
    ) -> Result {
        let entry = self.pages().entry(va).ok_or(EFAULT)?;
        let Some((page, writable)) = found else {
            return match how {
                Fault::Look => Ok(()),
                Fault::Read | Fault::Write => Err(EFAULT),
            };
        };
        // SAFETY: It came from HMM.
        let address = unsafe { direct_map::address_of(page.as_ptr()) }.ok_or(EFAULT)?;
        let flags = if writable {
            PRESENT | WRITABLE
        } else {
            PRESENT
        };
        // INVARIANT: The page is the process's: `walk` has seen under the lock that no notifier ran since it found it.
        self.pages().set(entry, address.as_ptr() as usize | flags);
        Ok(())
    }
}

impl Drop for Chunk {
    /// Nobody can use a page any more when this returns, and nobody notes another one: whoever notes has a count of the
    /// chunk. Waits for the sections, but for no notifier.
    fn drop(&mut self) {
        self.locked(|| {
            self.pages().forget(0, usize::MAX, |_| true);
            // From now on the notifier has nothing to do.
            self.set_private(core::ptr::null_mut());
        });
        // SAFETY: They are taken once, here, and not used any more.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        self.owner.release(parts);
    }
}

/// The least order of pages that the rights `access` promise.
fn least_order(access: Access) -> u32 {
    if !access.is_huge() {
        return 0;
    }
    // SAFETY: No requirements.
    let huge = unsafe { bindings::HPAGE_SIZE() };
    huge.trailing_zeros().saturating_sub(PAGE_SHIFT)
}

/// Memory of a process, registered without being pinned: a range of its address space.
pub struct OnDemand {
    space: OpenSpace,
    /// The process's address of its first byte.
    start: usize,
    len: usize,
    writable: bool,
    /// The least order that its pages may have.
    order: u32,
}

impl OnDemand {
    /// Whether the kernel has threads of processes, which serve the faults.
    pub(crate) const IS_SUPPORTED: bool = UserThreads::EXISTS;

    /// Registers `len` bytes at `start` of the calling process, which is or becomes one of `owners` with the share
    /// that `threads` gives; all of its address space for zero and `u64::MAX`.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range, and for a whole address space of huge pages; `EOVERFLOW` for a range that wraps;
    /// those of [`Owners::open`].
    pub(crate) fn new(
        owners: &Arc<Owners>,
        threads: NewThreads<'_>,
        device: &IbDevice,
        start: u64,
        len: u64,
        access: Access,
    ) -> Result<Self> {
        let (first, bytes) = (usize::try_from(start)?, usize::try_from(len)?);
        if (start, len) == (0, u64::MAX) {
            // As `ib_umem_odp_alloc_implicit()` has it.
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

    /// Bytes in the range.
    pub fn length(&self) -> u64 {
        self.len as u64
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Where `len` bytes at `offset` begin in the process, if they are within the range.
    fn locate(&self, offset: u64, len: u64) -> Option<usize> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let within = offset <= self.len && len <= self.len.wrapping_sub(offset);
        within.then(|| self.start.wrapping_add(offset))
    }

    /// Whether `len` bytes at `offset` are within the range.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        self.locate(offset, len).is_some()
    }

    /// Runs `f` on `len` bytes at `offset`, at most [`LONGEST_SPAN`]. Any context; `f` must not sleep.
    ///
    /// # Errors
    ///
    /// [`Absence`].
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

    /// Calls `f` once, if all is present. Apart, for the sake of those who never come here.
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
        // The pages are used only within this section.
        self.space.readers().within(|| {
            let mut at = va & PAGE_MASK;
            for page in pages.iter_mut() {
                *page = self.space.find(at, write).ok_or(Absence::NotResident)?;
                at = at.wrapping_add(PAGE_SIZE);
            }
            // SAFETY: `len` bytes at `within` are within the pages, which were just found, to be written if
            // `write`, and stay valid until the section ends.
            f(unsafe { Span::new(pages, PAGE_SHIFT, within, len as usize, write) });
            Ok(())
        })
    }

    /// Checks that `len` bytes at `offset` may be used soon. Any context.
    ///
    /// # Errors
    ///
    /// [`Absence`]; `NotResident` if something at the beginning is absent, however long the range.
    #[cold]
    pub fn check_ahead(&self, offset: u64, len: u32, write: bool) -> Result<(), Absence> {
        let va = self.locate(offset, len.into()).ok_or(Absence::OutOfRange)?;
        let end = va.saturating_add(len.min(AHEAD) as usize);
        let mut pages = (va & PAGE_MASK..end).step_by(PAGE_SIZE);
        let present = |at| self.space.find(at, write).is_some();
        let present = self.space.readers().within(|| pages.all(present));
        present.then_some(()).ok_or(Absence::NotResident)
    }

    /// Has a thread of the process do `job`: only its threads make memory present, so it costs the process as if it used
    /// the memory itself. Process context.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process has ended, `ENOMEM`.
    pub fn begin(&self, job: Arc<dyn Job>) -> Result<Pending> {
        self.space.owner().begin_job(job)
    }

    /// Whether the calling thread is one of the process, which may make memory present.
    pub fn is_here(&self) -> bool {
        self.space.owner().is_here()
    }

    /// Makes what [`Self::check_ahead`] found absent present; it may be gone again when this returns. In a thread of the
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

    /// Makes the beginning of `len` bytes at `offset` present, and returns how many bytes: all of them, or as many as a
    /// [`SLICE`] is enough for. They may be gone again when this returns. Goes by pieces of 1 MiB, so that the MMU notifier,
    /// and with it a change of the address space, waits for one piece only.
    ///
    /// # Context
    ///
    /// A thread of the process; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` for a range beyond the region's, for what the process has not, or may not read, for addresses from 8 PiB on, and
    /// in a thread of another process; `EPERM` for what the process may not write; `EINVAL` for small pages of a region of
    /// huge ones; `EINTR` if the process was killed; `ERESTARTNOINTR` if the thread has to take another signal first; `EBUSY`,
    /// `ENOMEM`.
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
            // A piece ends at a multiple of its size, so it is within a chunk.
            let piece = PIECE.wrapping_sub(at & (PIECE - 1));
            let piece = piece.min(len.saturating_sub(done));
            self.fault_in_piece(at, piece, how)?;
            done = done.saturating_add(piece);
        }
        Ok(done as u64)
    }

    /// Makes `len` bytes at `va`, which are within a chunk, present. In a thread of the process.
    fn fault_in_piece(&self, va: usize, len: usize, how: Fault) -> Result {
        // Where there is nothing to be had the chunk stays, too: whoever asks again and again would leave many there that
        // wait for their release.
        let chunk = self.space.chunk(va)?;
        chunk.fault_in(va, len, how, self.order)
    }
}
