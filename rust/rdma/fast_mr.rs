// SPDX-License-Identifier: GPL-2.0

//! Memory of the kernel's consumers: all of it, and lists of pages that work requests register.
//!
//! Devices of this provider have no DMA device, so that an address for the device is the address of the
//! kernel's own mapping. What isn't memory there is refused; that the rest is meant is the word of the
//! consumer, who alone has the keys or gives them away.

use core::ptr::{self, NonNull};

use kernel::{page::PAGE_SIZE, prelude::*};

use crate::{
    bindings,
    mr::{Access, Span},
    new_irq_spinlock,
    sync::IrqSpinLock,
};

/// Memory is there or not in pieces of this many bytes (`SUBSECTION_SIZE`), or bigger ones.
const GRAIN: usize = 1 << 21;

/// `len` bytes at `addr` of the kernel's direct mapping. Any context.
///
/// Whoever has the key of such a region names any memory of the kernel, on purpose.
#[inline]
pub fn kernel_span(addr: u64, len: u32) -> Option<Span<'static>> {
    let start = usize::try_from(addr).ok()?;
    let end = start.checked_add(len as usize)?;
    let mut probe = start;
    loop {
        let byte = ptr::without_provenance::<u8>(probe);
        // SAFETY: It only looks at the address.
        if !unsafe { bindings::virt_addr_valid(byte.cast()) } {
            return None;
        }
        let next = (probe & !GRAIN.wrapping_sub(1)).checked_add(GRAIN)?;
        if next >= end {
            break;
        }
        probe = next;
    }
    // SAFETY: The range was just found to be memory of the direct mapping, which is always readable and
    // writable; that it is meant is the consumer's word.
    Some(unsafe { Span::direct(start, len as usize) })
}

/// Why a registration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// The region is registered already.
    Valid,
    /// The rights contradict one another.
    Access,
}

/// What a registration asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The new key.
    pub key: u32,
    /// The address of the first byte.
    pub iova: u64,
    /// What it may be used for.
    pub access: Access,
}

/// The memory of a region for fast registration: free, or valid under a key.
///
/// `map_mr_sg` lists pages for the next registration; a REG_MR makes them valid, and a LOCAL_INV or a
/// peer's SEND WITH INVALIDATE frees the region again.
///
/// All methods may be called in any context.
#[pin_data]
pub struct FastMemory {
    #[pin]
    state: IrqSpinLock<State>,
}

/// # Invariants
///
/// The pages of both lists were valid for reads and writes when they were listed; the consumer keeps them
/// so while the region is valid. Their capacities are never exceeded, and equal.
struct State {
    listed: Pages,
    active: Pages,
    /// Set while the region is valid.
    registration: Option<Registration>,
}

/// # Invariants
///
/// The range is within the pages if `len` isn't zero.
struct Pages {
    list: KVVec<NonNull<u8>>,
    /// Where in the first page the range begins.
    first: usize,
    len: usize,
}

// SAFETY: Pages are reachable from every thread; they are accessed by raw copies only.
unsafe impl Send for Pages {}

impl Pages {
    fn new(capacity: usize) -> Result<Self> {
        Ok(Self {
            list: KVVec::with_capacity(capacity, GFP_KERNEL_ACCOUNT)?,
            first: 0,
            len: 0,
        })
    }

    fn clear(&mut self) {
        self.list.clear();
        self.first = 0;
        self.len = 0;
    }
}

impl FastMemory {
    /// A free region of at most `max_pages` pages. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(max_pages: u32) -> Result<Pin<KBox<Self>>> {
        let capacity = max_pages as usize;
        let state = State {
            listed: Pages::new(capacity)?,
            active: Pages::new(capacity)?,
            registration: None,
        };
        KBox::pin_init(
            pin_init!(Self {
                state <- new_irq_spinlock!(state, "rrxe_fast_mr"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Begins a new list of pages.
    pub(crate) fn begin(&self) {
        self.state.lock().listed.clear();
    }

    /// Adds the page at `addr` to the list.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the list is full, `EFAULT` if there is no memory.
    pub(crate) fn list(&self, addr: u64) -> Result {
        let start = ptr::with_exposed_provenance_mut::<u8>(usize::try_from(addr)?);
        // SAFETY: It only looks at the address.
        if !unsafe { bindings::virt_addr_valid(start.cast()) } || addr % PAGE_SIZE as u64 != 0 {
            return Err(EFAULT);
        }
        let start = NonNull::new(start).ok_or(EFAULT)?;
        // INVARIANT: It is a page of the direct mapping. The capacity is kept.
        let mut state = self.state.lock();
        state
            .listed
            .list
            .push_within_capacity(start)
            .map_err(|_| ENOMEM)
    }

    /// Ends the list: the range is `len` bytes from `iova` on, which says where in the first page.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it isn't within the pages.
    pub(crate) fn end(&self, iova: u64, len: u64) -> Result {
        let mut state = self.state.lock();
        let first = iova as usize % PAGE_SIZE;
        let room = state.listed.list.len().saturating_mul(PAGE_SIZE);
        let len = usize::try_from(len)?;
        if first.checked_add(len).is_none_or(|end| end > room) {
            state.listed.clear();
            return Err(EINVAL);
        }
        // INVARIANT: Just checked.
        (state.listed.first, state.listed.len) = (first, len);
        Ok(())
    }

    /// Makes the listed pages valid.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn register(&self, registration: Registration) -> Result<(), RegisterError> {
        if !registration.access.is_consistent() {
            return Err(RegisterError::Access);
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.registration.is_some() {
            return Err(RegisterError::Valid);
        }
        state.active.clear();
        for page in state.listed.list.iter() {
            // Both lists have the same capacity.
            let _ = state.active.list.push_within_capacity(*page);
        }
        // INVARIANT: As the list that was copied.
        (state.active.first, state.active.len) = (state.listed.first, state.listed.len);
        state.registration = Some(registration);
        Ok(())
    }

    /// Frees the region if `key` is its key; whether it was.
    pub fn invalidate(&self, key: u32) -> bool {
        let mut state = self.state.lock();
        let valid = matches!(state.registration, Some(registration) if registration.key == key);
        if valid {
            state.registration = None;
        }
        valid
    }

    /// Whether the region is valid under `key`, and `allows` says that its rights suffice.
    pub fn grants(&self, key: u32, allows: impl FnOnce(Access) -> bool) -> bool {
        let registration = self.state.lock().registration;
        registration.is_some_and(|found| found.key == key && allows(found.access))
    }

    /// Runs `f` on `len` bytes at `addr`, if the region is valid under `key`, `allows` says that its rights
    /// suffice and the range is within it. `f` must not sleep, nor use the region.
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
        let (active, len) = (&state.active, len as usize);
        if offset > active.len || len > active.len.wrapping_sub(offset) {
            return None;
        }
        // The sum is within the pages by the invariant, so it does not wrap.
        let start = active.first.wrapping_add(offset);
        Some(f(Span::new(
            &active.list,
            PAGE_SIZE.trailing_zeros(),
            start,
            len,
        )))
    }
}

#[kunit_tests(rrxe_fast_mr)]
mod tests {
    use super::*;
    use crate::mmap::SharedMemory;

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

    /// Two pages of the direct mapping, listed in reverse.
    fn listed() -> Result<(Pin<KBox<FastMemory>>, KBox<[u8; 4 * PAGE_SIZE]>)> {
        let pages = KBox::new([0u8; 4 * PAGE_SIZE], GFP_KERNEL)?;
        let start = pages
            .as_ptr()
            .expose_provenance()
            .next_multiple_of(PAGE_SIZE) as u64;
        let memory = FastMemory::new(2)?;
        memory.begin();
        memory.list(start + PAGE_SIZE as u64)?;
        memory.list(start)?;
        assert_eq!(memory.list(start), Err(ENOMEM));
        memory.end(start + 0x123, 0x1800)?;
        Ok((memory, pages))
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
    fn grants_nothing_beyond_its_range_and_rights() -> Result {
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
    fn refuses_what_is_no_memory() -> Result {
        let outside = SharedMemory::new(PAGE_SIZE)?;
        let vmalloc = outside.start().as_ptr().expose_provenance() as u64;
        let inside = KBox::new([0u8; 64], GFP_KERNEL)?;
        let direct = inside.as_ptr().expose_provenance() as u64;
        assert!(kernel_span(direct, 64).is_some());
        for addr in [0, vmalloc, u64::MAX] {
            assert!(kernel_span(addr, 1).is_none());
        }
        assert!(kernel_span(u64::MAX - 1, 2).is_none());
        let memory = FastMemory::new(1)?;
        for addr in [0, vmalloc, direct | 1] {
            assert_eq!(memory.list(addr), Err(EFAULT));
        }
        assert_eq!(memory.end(0, 1), Err(EINVAL));
        Ok(())
    }
}
