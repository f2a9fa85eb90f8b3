// SPDX-License-Identifier: GPL-2.0

//! Memory of in-kernel consumers (ULPs). A region is either the whole direct mapping, or a list of
//! pages or pieces that a work request registers (fast registration, `IB_WR_REG_MR`).
//!
//! Devices of this driver have no DMA device, so a "DMA address" is a virtual address of the
//! kernel. An address that is no memory of the direct mapping is refused. Otherwise the consumer is
//! responsible for the address: it alone has the keys, or gives them to peers.

use core::ptr::{self, NonNull};

use kernel::{page::PAGE_SIZE, prelude::*};

use crate::{
    bindings,
    memory::span::Piece,
    new_irq_spinlock,
    support::sync::IrqSpinLock,
    verbs::mr::{Access, Span},
};

/// Granularity in bytes at which memory is present or absent in the direct mapping:
/// `SUBSECTION_SIZE` (2 MiB).
const SUBSECTION: usize = 1 << 21;

/// Size in bytes of the smallest pages of a fast registration. Consumers such as NVMe use it
/// whatever the size of the kernel's pages is.
const LEAST_PAGE: usize = 1 << 12;

/// Returns the span of `len` bytes at `addr` of the kernel's direct mapping, or `None` if a byte of
/// the range is no memory there. Any context.
///
/// A holder of the key of such a region can name any memory of the kernel. This is intended.
#[inline]
pub fn kernel_span(addr: u64, len: u32) -> Option<Span<'static>> {
    let start = usize::try_from(addr).ok()?;
    let end = start.checked_add(len as usize)?;
    let mut probe = start;
    loop {
        let byte = ptr::without_provenance::<u8>(probe);
        // SAFETY: The callee checks the address and does not dereference it.
        if !unsafe { bindings::virt_addr_valid(byte.cast()) } {
            return None;
        }
        let next = (probe & !SUBSECTION.wrapping_sub(1)).checked_add(SUBSECTION)?;
        if next >= end {
            break;
        }
        probe = next;
    }
    // SAFETY: The loop found that the range is memory of the direct mapping. The kernel has made a
    // part of that memory read-only or inaccessible (`set_memory_ro()`,
    // `set_direct_map_invalid_noflush()`), but the consumer is responsible for the choice of the
    // range.
    Some(unsafe { Span::direct(start, len as usize) })
}

/// Reason why a registration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// The region is already registered.
    Valid,
    /// The access rights contradict one another ([`Access::is_consistent`]).
    Access,
}

/// Parameters of a REG_MR work request (`struct ib_reg_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Key under which the region becomes valid.
    pub key: u32,
    /// Address (IOVA) that peers and work requests use for the first byte.
    pub iova: u64,
    /// Access rights of the region.
    pub access: Access,
}

/// Memory of a region for fast registration (`ib_alloc_mr()`). The region is either free, or valid
/// under a key.
///
/// `map_mr_sg` lists the pages or pieces for the next registration. A REG_MR work request makes
/// them valid. A LOCAL_INV work request or a peer's SEND WITH INVALIDATE frees the region again.
///
/// All methods may be called in any context up to softirq. While the lock is held, the data path
/// takes locks that a hard interrupt may not wait for.
#[pin_data]
pub struct FastMemory {
    kind: FastKind,
    #[pin]
    state: IrqSpinLock<State>,
}

/// Kind of memory that a region for fast registration is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastKind {
    /// Pages (`IB_MR_TYPE_MEM_REG`). Only the first and the last page may be used in part.
    Pages,
    /// Pieces of any address and size (`IB_MR_TYPE_SG_GAPS`).
    Gaps,
}

/// State of the region, under the region's lock.
///
/// # Invariants
///
/// The memory that `listed` and `active` name was valid for reads and writes when it was listed;
/// the consumer keeps its memory valid while the region is valid. Both lists have the same kind and
/// the same capacity. The capacity is never exceeded.
struct State {
    listed: Listed,
    active: Listed,
    /// Present while the region is valid.
    registration: Option<Registration>,
}

/// List of the memory of a region, in the order of the region's bytes.
///
/// # Invariants
///
/// Pages: each has 2^`shift` bytes, and is aligned to its size. If `len` is not zero, the range of
/// `len` bytes at `first` is within the listed pages.
/// Pieces: each piece starts at the byte of the region at which the piece before it ends.
enum Listed {
    Pages {
        list: KVVec<NonNull<u8>>,
        /// Size of a page, log₂ of bytes.
        shift: u32,
        /// Offset in bytes of the range in the first page.
        first: usize,
        len: usize,
    },
    Pieces(KVVec<Piece>),
}

// SAFETY: Memory of the direct mapping is accessible from every thread. It is accessed only by raw
// copies and atomics.
unsafe impl Send for Listed {}

impl Listed {
    /// Creates an empty list with room for `capacity` pages or pieces.
    fn new(kind: FastKind, capacity: usize) -> Result<Self> {
        Ok(match kind {
            FastKind::Pages => Self::Pages {
                list: KVVec::with_capacity(capacity, GFP_KERNEL_ACCOUNT)?,
                shift: PAGE_SIZE.trailing_zeros(),
                first: 0,
                len: 0,
            },
            FastKind::Gaps => Self::Pieces(KVVec::with_capacity(capacity, GFP_KERNEL_ACCOUNT)?),
        })
    }

    /// Empties the list.
    fn clear(&mut self) {
        match self {
            Self::Pages {
                list, first, len, ..
            } => {
                list.clear();
                (*first, *len) = (0, 0);
            }
            Self::Pieces(list) => list.clear(),
        }
    }

    /// Appends `len` bytes of the direct mapping at `start`: one page, or one piece.
    fn add(&mut self, start: NonNull<u8>, len: usize) -> Result {
        let before = self.len();
        // INVARIANT: The new piece starts at the byte at which the list ended.
        // `push_within_capacity` keeps the capacity.
        match self {
            Self::Pages { list, .. } => list.push_within_capacity(start).map_err(|_| ENOMEM),
            Self::Pieces(list) => {
                let piece = Piece { start, before, len };
                before.checked_add(len).ok_or(EINVAL)?;
                list.push_within_capacity(piece).map_err(|_| ENOMEM)
            }
        }
    }

    /// Makes this list equal to `other`. Both lists have the same kind.
    fn copy(&mut self, other: &Self) {
        self.clear();
        // INVARIANT: `other` satisfies the invariants. Both lists have the same capacity, so
        // nothing is truncated.
        match (self, other) {
            (
                Self::Pages {
                    list,
                    shift,
                    first,
                    len,
                },
                Self::Pages {
                    list: from,
                    shift: s,
                    first: f,
                    len: l,
                },
            ) => {
                for page in from.iter() {
                    let _ = list.push_within_capacity(*page);
                }
                (*shift, *first, *len) = (*s, *f, *l);
            }
            (Self::Pieces(list), Self::Pieces(from)) => {
                for piece in from.iter() {
                    let _ = list.push_within_capacity(*piece);
                }
            }
            _ => {}
        }
    }

    /// Returns the length of the range in bytes.
    fn len(&self) -> usize {
        match self {
            Self::Pages { len, .. } => *len,
            // `add` checked that the sum does not overflow.
            Self::Pieces(list) => list
                .last()
                .map_or(0, |piece| piece.before.wrapping_add(piece.len)),
        }
    }

    /// Returns the span of `len` bytes at `offset`, or `None` if they are not within the range.
    ///
    /// # Safety
    ///
    /// The memory that the list names must be valid for reads and writes while the result is in
    /// use.
    unsafe fn span(&self, offset: usize, len: usize) -> Option<Span<'_>> {
        if offset > self.len() || len > self.len().wrapping_sub(offset) {
            return None;
        }
        Some(match self {
            Self::Pages {
                list, shift, first, ..
            } => {
                let start = first.wrapping_add(offset);
                // SAFETY: The check above, with the type invariant, shows that the bytes are within
                // the pages, so the sum does not overflow. The caller guarantees that the memory is
                // valid (see `# Safety`).
                unsafe { Span::new(list, *shift, start, len, true) }
            }
            // SAFETY: The check above shows that the bytes are within the pieces, which are in
            // order by the type invariant. The caller guarantees that the memory is valid (see `#
            // Safety`).
            Self::Pieces(list) => unsafe { Span::gathered(list, offset, len) },
        })
    }
}

impl FastMemory {
    /// Creates a free region for at most `max` pages or pieces. Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(kind: FastKind, max: u32) -> Result<Pin<KBox<Self>>> {
        let capacity = max as usize;
        let state = State {
            listed: Listed::new(kind, capacity)?,
            active: Listed::new(kind, capacity)?,
            registration: None,
        };
        KBox::pin_init(
            pin_init!(Self {
                kind,
                state <- new_irq_spinlock!(state, "rrxe_fast_mr"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the kind of memory that the region is made of.
    pub(crate) fn kind(&self) -> FastKind {
        self.kind
    }

    /// Empties the list for the next registration.
    pub(crate) fn begin(&self) {
        self.state.lock().listed.clear();
    }

    /// Empties the list for the next registration, whose pages have `size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `size` is no power of two from 4 KiB to the size of the kernel's pages, or if
    /// the region is not made of pages.
    pub(crate) fn begin_pages(&self, size: u32) -> Result {
        let allowed = LEAST_PAGE..=PAGE_SIZE;
        if !size.is_power_of_two() || !allowed.contains(&(size as usize)) {
            return Err(EINVAL);
        }
        let mut state = self.state.lock();
        // INVARIANT: The list becomes empty before the size of its pages changes.
        state.listed.clear();
        let Listed::Pages { shift, .. } = &mut state.listed else {
            return Err(EINVAL);
        };
        *shift = size.trailing_zeros();
        Ok(())
    }

    /// Appends the page at the kernel address `addr` to the list for the next registration.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the list is full; `EFAULT` if `addr` is not the start of a page of the direct
    /// mapping; `EINVAL` if the region is not made of pages.
    pub(crate) fn list(&self, addr: u64) -> Result {
        let start = ptr::with_exposed_provenance_mut::<u8>(usize::try_from(addr)?);
        // A page lies within one page of the kernel.
        // SAFETY: The callee checks the address and does not dereference it.
        if !unsafe { bindings::virt_addr_valid(start.cast()) } {
            return Err(EFAULT);
        }
        let start = NonNull::new(start).ok_or(EFAULT)?;
        let mut state = self.state.lock();
        let Listed::Pages { shift, .. } = &state.listed else {
            return Err(EINVAL);
        };
        let size = 1usize.wrapping_shl(*shift);
        if addr & (size as u64).wrapping_sub(1) != 0 {
            return Err(EFAULT);
        }
        state.listed.add(start, size)
    }

    /// Appends the piece of `len` bytes at the kernel address `addr` to the list for the next
    /// registration. The region must be of the kind [`FastKind::Gaps`].
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the list is full; `EFAULT` if the range is no memory of the direct mapping;
    /// `EINVAL` if the total length overflows.
    pub(crate) fn list_piece(&self, addr: u64, len: u32) -> Result {
        kernel_span(addr, len).ok_or(EFAULT)?;
        let start = ptr::with_exposed_provenance_mut(usize::try_from(addr)?);
        let start = NonNull::new(start).ok_or(EFAULT)?;
        self.state.lock().listed.add(start, len as usize)
    }

    /// Completes a list of pages: the range is `length` bytes. The offset of its first byte in the
    /// first page is that of `iova` in its page.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not within the listed pages, or the region is not made of pages.
    pub(crate) fn end(&self, iova: u64, length: u64) -> Result {
        let mut state = self.state.lock();
        let Listed::Pages {
            list,
            shift,
            first,
            len,
        } = &mut state.listed
        else {
            return Err(EINVAL);
        };
        let size = 1usize.wrapping_shl(*shift);
        let start = iova as usize & size.wrapping_sub(1);
        let room = list.len().saturating_mul(size);
        let length = usize::try_from(length)?;
        if start.checked_add(length).is_none_or(|end| end > room) {
            state.listed.clear();
            return Err(EINVAL);
        }
        // INVARIANT: The check above shows that the range is within the listed pages.
        (*first, *len) = (start, length);
        Ok(())
    }

    /// Makes the listed memory valid under the key of `registration`, as a REG_MR work request
    /// demands. The list is copied, so a later `map_mr_sg` does not change the valid region.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Access`] if the access rights contradict one another;
    /// [`RegisterError::Valid`] if the region is already registered.
    pub fn register(&self, registration: Registration) -> Result<(), RegisterError> {
        if !registration.access.is_consistent() {
            return Err(RegisterError::Access);
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.registration.is_some() {
            return Err(RegisterError::Valid);
        }
        state.active.copy(&state.listed);
        state.registration = Some(registration);
        Ok(())
    }

    /// Frees the region if it is valid under `key`. Returns whether it was.
    pub fn invalidate(&self, key: u32) -> bool {
        let mut state = self.state.lock();
        let valid = matches!(state.registration, Some(registration) if registration.key == key);
        if valid {
            state.registration = None;
        }
        valid
    }

    /// Returns whether the region is valid under `key` and `allows` returns true for its access
    /// rights.
    pub fn grants(&self, key: u32, allows: impl FnOnce(Access) -> bool) -> bool {
        let registration = self.state.lock().registration;
        registration.is_some_and(|found| found.key == key && allows(found.access))
    }

    /// Runs `f` on the span of `len` bytes at `addr` and returns its result. Returns `None` if the
    /// region is not valid under `key`, if `allows` refuses its access rights, or if the range is
    /// not within the region. `f` runs with a spinlock held and interrupts disabled. It must not
    /// sleep, nor use the region.
    #[inline]
    pub fn with<R>(
        &self,
        key: u32,
        addr: u64,
        len: u32,
        allows: impl FnOnce(Access) -> bool,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Option<R> {
        let state = self.state.lock();
        let registration = state
            .registration
            .filter(|found| found.key == key && allows(found.access))?;
        let offset = usize::try_from(addr.checked_sub(registration.iova)?).ok()?;
        // SAFETY: The region is valid. By the invariant of `State` the consumer keeps its memory
        // valid meanwhile.
        unsafe { state.active.span(offset, len as usize) }.map(f)
    }
}

#[kunit_tests(rrxe_fast_mr)]
mod tests {
    use super::*;
    use crate::abi::mmap::SharedMemory;

    const IOVA: u64 = 0x7000_0000_0123;

    fn registration(key: u32) -> Registration {
        Registration {
            key,
            iova: IOVA,
            access: Access::from_raw(1),
        }
    }

    fn length_at(memory: &FastMemory, key: u32, addr: u64, len: u32) -> Option<usize> {
        memory.with(key, addr, len, |_| true, |span| span.len())
    }

    /// Returns a region of two pages of the direct mapping, listed in reverse order, and the pages.
    fn listed() -> Result<(Pin<KBox<FastMemory>>, KVec<u8>)> {
        let pages = KVec::from_elem(0u8, 4 * PAGE_SIZE, GFP_KERNEL)?;
        let start = pages
            .as_ptr()
            .expose_provenance()
            .next_multiple_of(PAGE_SIZE) as u64;
        let memory = FastMemory::new(FastKind::Pages, 2)?;
        memory.begin();
        memory.list(start + PAGE_SIZE as u64)?;
        memory.list(start)?;
        assert_eq!(memory.list(start), Err(ENOMEM));
        memory.end(start + 0x123, 0x1800)?;
        Ok((memory, pages))
    }

    /// The list is completed a second time, with a range that is too long.
    #[test]
    fn a_refused_end_leaves_no_range() -> Result {
        let (memory, _pages) = listed()?;
        assert_eq!(memory.end(IOVA, 3 * PAGE_SIZE as u64), Err(EINVAL));
        assert_eq!(memory.register(registration(1)), Ok(()));
        assert_eq!(length_at(&memory, 1, IOVA, 1), None);
        Ok(())
    }

    /// Pages of 4 KiB are smaller than the kernel's pages on some machines.
    #[test]
    fn takes_pages_up_to_the_size_of_the_kernels() -> Result {
        let pages = KVec::from_elem(0u8, 2 * PAGE_SIZE, GFP_KERNEL)?;
        let start = pages
            .as_ptr()
            .expose_provenance()
            .next_multiple_of(PAGE_SIZE) as u64;
        let memory = FastMemory::new(FastKind::Pages, 2)?;
        for size in [0, 2048, 4097, 2 * PAGE_SIZE as u32, 1 << 31] {
            assert_eq!(memory.begin_pages(size), Err(EINVAL));
        }
        for size in [4096, PAGE_SIZE as u32] {
            memory.begin_pages(size)?;
            let last = start + PAGE_SIZE as u64 - u64::from(size);
            assert_eq!(memory.list(last + 2048), Err(EFAULT));
            memory.list(last)?;
            memory.list(start)?;
            assert_eq!(memory.end(IOVA, 2 * u64::from(size)), Err(EINVAL));
            memory.list(last)?;
            memory.list(start)?;
            memory.end(IOVA, 2 * u64::from(size) - 0x123)?;
            assert_eq!(memory.register(registration(1)), Ok(()));
            let mut seen = [0u64; 2];
            memory
                .with(
                    1,
                    IOVA,
                    2 * size - 0x123,
                    |_| true,
                    |span| {
                        let mut seen = seen.iter_mut();
                        span.for_each_piece(|piece, _| {
                            let at = seen.next().ok_or(EINVAL)?;
                            *at = piece.as_ptr().expose_provenance() as u64;
                            Ok::<(), Error>(())
                        })
                    },
                )
                .ok_or(EINVAL)??;
            assert_eq!(seen, [last + 0x123, start]);
            assert!(memory.invalidate(1));
        }
        let gaps = FastMemory::new(FastKind::Gaps, 1)?;
        assert_eq!(gaps.begin_pages(4096), Err(EINVAL));
        assert_eq!(gaps.list(start), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn is_valid_from_registration_to_invalidation() -> Result {
        let (memory, _pages) = listed()?;
        assert_eq!(length_at(&memory, 1, IOVA, 1), None);
        assert_eq!(memory.register(registration(1)), Ok(()));
        assert_eq!(memory.register(registration(2)), Err(RegisterError::Valid));
        assert_eq!(length_at(&memory, 1, IOVA, 0x1800), Some(0x1800));
        assert_eq!(length_at(&memory, 2, IOVA, 1), None);
        assert!(!memory.invalidate(2));
        assert!(memory.invalidate(1));
        assert!(!memory.invalidate(1));
        assert_eq!(length_at(&memory, 1, IOVA, 1), None);
        assert_eq!(memory.register(registration(2)), Ok(()));
        assert_eq!(length_at(&memory, 2, IOVA + 0x17ff, 1), Some(1));
        Ok(())
    }

    #[test]
    fn refuses_accesses_beyond_range_and_rights() -> Result {
        let (memory, _pages) = listed()?;
        assert_eq!(memory.register(registration(1)), Ok(()));
        for (addr, len) in [
            (IOVA - 1, 1),
            (IOVA, 0x1801),
            (IOVA + 0x1800, 1),
            (IOVA + 0x1801, 0),
            (u64::MAX, 1),
            (0, u32::MAX),
        ] {
            assert_eq!(length_at(&memory, 1, addr, len), None);
        }
        assert!(memory.with(1, IOVA, 1, |_| false, |_| ()).is_none());
        Ok(())
    }

    #[test]
    fn gathers_pieces_of_any_size() -> Result {
        const PIECES: [(usize, u32); 4] = [(100, 3), (7, 0), (64, 13), (0, 5)];
        let memory = FastMemory::new(FastKind::Gaps, 4)?;
        let mut bytes = KBox::new([0u8; 128], GFP_KERNEL)?;
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = index as u8;
        }
        let start = bytes.as_ptr().expose_provenance() as u64;
        memory.begin();
        for (offset, len) in PIECES {
            memory.list_piece(start + offset as u64, len)?;
        }
        assert_eq!(memory.list_piece(start, 1), Err(ENOMEM));
        assert_eq!(memory.list_piece(0, 1), Err(EFAULT));
        assert_eq!(memory.register(registration(1)), Ok(()));
        assert_eq!(length_at(&memory, 1, IOVA, 21), Some(21));
        assert_eq!(length_at(&memory, 1, IOVA, 22), None);
        let order = PIECES.map(|(offset, len)| offset..offset + len as usize);
        for from in 0..=21usize {
            for len in 0..=21 - from {
                let mut seen = [0u8; 21];
                let seen = seen.get_mut(..len).ok_or(EINVAL)?;
                let addr = IOVA + from as u64;
                memory.with(
                    1,
                    addr,
                    len as u32,
                    |_| true,
                    |span| span.copy_to_slice(0, seen),
                );
                let expected = order
                    .iter()
                    .cloned()
                    .flatten()
                    .skip(from)
                    .map(|at| at as u8);
                assert!(seen.iter().copied().eq(expected.take(len)));
            }
        }
        let atomic = |at: u64| {
            let op = roce::wr::AtomicOp::FetchAdd { add: 0 };
            memory.with(1, IOVA + at, 8, |_| true, |span| span.atomic(op).is_ok())
        };
        // The third piece has 13 bytes. Its first byte is the region's fourth (offset 3), and it is
        // aligned to 8 bytes if the box is.
        assert_eq!(
            [atomic(0), atomic(3), atomic(4)],
            [Some(false), Some(start % 8 == 0), Some(false)]
        );
        assert_eq!(atomic(13), Some(false));
        Ok(())
    }

    #[test]
    fn refuses_addresses_outside_the_direct_mapping() -> Result {
        let outside = SharedMemory::new(PAGE_SIZE)?;
        let vmalloc = outside.start().as_ptr().expose_provenance() as u64;
        let inside = KBox::new([0u8; 64], GFP_KERNEL)?;
        let direct = inside.as_ptr().expose_provenance() as u64;
        assert!(kernel_span(direct, 64).is_some());
        for addr in [0, vmalloc, u64::MAX] {
            assert!(kernel_span(addr, 1).is_none());
        }
        assert!(kernel_span(u64::MAX - 1, 2).is_none());
        let memory = FastMemory::new(FastKind::Pages, 1)?;
        for addr in [0, vmalloc, direct | 1] {
            assert_eq!(memory.list(addr), Err(EFAULT));
        }
        assert_eq!(memory.end(0, 1), Err(EINVAL));
        Ok(())
    }
}
