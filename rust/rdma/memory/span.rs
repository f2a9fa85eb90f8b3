// SPDX-License-Identifier: GPL-2.0

//! Access to the bytes of memory regions.
//!
//! A [`Span`] is the only way to access the bytes of a region. Its bounds are checked when it is
//! created. It copies block by block, by C or assembler code. The process may change the memory at
//! any time, so no Rust reference to the bytes ever exists, except to an atomic.

use core::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use kernel::{page::PAGE_SIZE, prelude::*};
use roce::wr::AtomicOp;

use super::copy::copy_bytes;
use crate::bindings;

/// Reason why an access to a span failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanError {
    /// The range is not within the span.
    Range,
    /// The bytes may only be read.
    ReadOnly,
    /// The operand of an atomic is not 8 naturally aligned, contiguous bytes.
    Alignment,
}

/// Range of a region's bytes to which access was granted. Any context.
///
/// # Invariants
///
/// Each element of `blocks` is either the start of a block of 2^`shift` bytes, aligned to its size,
/// or a piece of any size. The bytes `start .. start + len`, counted from the start of the first
/// block or piece, are within the blocks. These bytes are valid for reads, and for writes if
/// `writable`, during `'a`. The other bytes of the blocks need not be valid.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    blocks: Blocks<'a>,
    shift: u32,
    start: usize,
    len: usize,
    writable: bool,
}

/// Location of the blocks of a span.
#[derive(Clone, Copy)]
enum Blocks<'a> {
    /// Blocks of 2^`shift` bytes at the listed addresses.
    List(&'a [NonNull<u8>]),
    /// Blocks of 2^`shift` bytes, contiguous from address zero: an offset is an address.
    Direct,
    /// Pieces of any size.
    Pieces(&'a [Piece]),
}

/// Piece of a region that is not made of pages.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    /// Address of the first byte of the piece.
    pub(crate) start: NonNull<u8>,
    /// Offset in bytes of the piece in the region: the total length of the pieces before it.
    pub(crate) before: usize,
    /// Length of the piece in bytes.
    pub(crate) len: usize,
}

impl Blocks<'_> {
    /// Returns the address of the block `index`. Returns `None` for pieces, which have no common
    /// size.
    #[inline]
    fn get(&self, index: usize, shift: u32) -> Option<NonNull<u8>> {
        match self {
            Self::List(blocks) => blocks.get(index).copied(),
            Self::Direct => {
                let address = index.wrapping_shl(shift);
                NonNull::new(ptr::with_exposed_provenance_mut(address))
            }
            Self::Pieces(_) => None,
        }
    }
}

impl<'a> Span<'a> {
    /// Creates the span of `len` bytes at offset `start` of `blocks`.
    ///
    /// # Safety
    ///
    /// Each element of `blocks` must be the start of a block of 2^`shift` bytes, as the type
    /// invariants demand. The `len` bytes must be within the blocks. They must be valid for reads,
    /// and for writes if `writable`, during `'a`.
    #[inline]
    pub(crate) unsafe fn new(
        blocks: &'a [NonNull<u8>],
        shift: u32,
        start: usize,
        len: usize,
        writable: bool,
    ) -> Self {
        // INVARIANT: The caller guarantees the invariants (see `# Safety`).
        Self {
            blocks: Blocks::List(blocks),
            shift,
            start,
            len,
            writable,
        }
    }

    /// Creates the span of `len` bytes at the kernel address `start`.
    ///
    /// # Safety
    ///
    /// The bytes must be valid for reads and writes during `'a`.
    #[inline]
    pub(crate) unsafe fn direct(start: usize, len: usize) -> Self {
        // INVARIANT: The blocks cover all addresses. The caller guarantees that the bytes are valid
        // (see `# Safety`).
        Self {
            blocks: Blocks::Direct,
            shift: PAGE_SIZE.trailing_zeros(),
            start,
            len,
            writable: true,
        }
    }

    /// Creates the span of `len` bytes at offset `start` of `pieces`.
    ///
    /// # Safety
    ///
    /// `pieces` must be in the order of the region's bytes, without gaps: `before` of each is the
    /// end of the piece before it. The `len` bytes must be within the pieces. They must be valid
    /// for reads and writes during `'a`.
    pub(crate) unsafe fn gathered(pieces: &'a [Piece], start: usize, len: usize) -> Self {
        // INVARIANT: The caller guarantees the invariants (see `# Safety`).
        Self {
            blocks: Blocks::Pieces(pieces),
            shift: 0,
            start,
            len,
            writable: true,
        }
    }

    /// Returns the length of the span in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the span has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the span of `len` bytes at `offset` (in bytes) of this span.
    ///
    /// # Errors
    ///
    /// [`SpanError::Range`] if the bytes are not within this span.
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> Result<Span<'a>, SpanError> {
        if offset > self.len || len > self.len.wrapping_sub(offset) {
            return Err(SpanError::Range);
        }
        // INVARIANT: The check above shows that the part is within this span, so the sum does not
        // overflow.
        Ok(Self {
            start: self.start.wrapping_add(offset),
            len,
            ..*self
        })
    }

    /// Calls `visit` with the address and the length of each contiguous piece of the span, in
    /// order. A piece lies within one block. Stops at the first error of `visit` and returns it.
    ///
    /// The pieces are valid for reads during `'a`. A process may change them at any time.
    #[inline]
    pub(crate) fn for_each_piece<E>(
        &self,
        mut visit: impl FnMut(NonNull<u8>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Blocks::Pieces(pieces) = self.blocks {
            return self.for_each_gathered(pieces, visit);
        }
        let size = 1usize.wrapping_shl(self.shift);
        let mut within = self.start & size.wrapping_sub(1);
        let mut left = self.len;
        let mut index = self.start.wrapping_shr(self.shift);
        while left > 0 {
            let Some(block) = self.blocks.get(index, self.shift) else {
                break;
            };
            let len = left.min(size.wrapping_sub(within));
            let piece = block.as_ptr().wrapping_add(within);
            // SAFETY: By the type invariant `piece` is the address of a byte of the span, so it is
            // not null.
            visit(unsafe { NonNull::new_unchecked(piece) }, len)?;
            left = left.wrapping_sub(len);
            within = 0;
            index = index.wrapping_add(1);
        }
        Ok(())
    }

    /// Calls `visit` as [`Self::for_each_piece`] does. The pieces are valid for writes, too.
    ///
    /// # Errors
    ///
    /// [`SpanError::ReadOnly`] if the bytes may only be read; the errors of `visit`.
    #[inline]
    pub(crate) fn for_each_writable_piece(
        &self,
        visit: impl FnMut(NonNull<u8>, usize) -> Result<(), SpanError>,
    ) -> Result<(), SpanError> {
        if !self.writable {
            return Err(SpanError::ReadOnly);
        }
        self.for_each_piece(visit)
    }

    /// Implements [`Self::for_each_piece`] for pieces of any size.
    fn for_each_gathered<E>(
        &self,
        pieces: &[Piece],
        mut visit: impl FnMut(NonNull<u8>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let first = pieces.partition_point(|piece| piece.before <= self.start);
        let pieces = pieces.get(first.saturating_sub(1)..).unwrap_or_default();
        let (mut start, mut left) = (self.start, self.len);
        for piece in pieces {
            let within = start.wrapping_sub(piece.before);
            let len = left.min(piece.len.saturating_sub(within));
            if len != 0 {
                let at = piece.start.as_ptr().wrapping_add(within);
                // SAFETY: By the type invariant `at` is the address of a byte of the span, so it is
                // not null.
                visit(unsafe { NonNull::new_unchecked(at) }, len)?;
            }
            start = start.wrapping_add(len);
            left = left.wrapping_sub(len);
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Copies `source` to the span, from `offset` (in bytes) on.
    ///
    /// # Errors
    ///
    /// [`SpanError::Range`] if the target is not within the span; [`SpanError::ReadOnly`] if the
    /// bytes may only be read.
    #[inline]
    pub fn copy_from_slice(&self, offset: usize, source: &[u8]) -> Result<(), SpanError> {
        let mut from = source.as_ptr();
        let part = self.part(offset, source.len())?;
        part.for_each_writable_piece(|to, len| {
            // SAFETY: The piece is valid for writes. The lengths of all pieces add up to the length
            // of `source`, so `from` is valid for reads of `len` bytes.
            unsafe { bindings::memcpy(to.as_ptr().cast(), from.cast(), len) };
            from = from.wrapping_add(len);
            Ok(())
        })
    }

    /// Copies the bytes of the span from `offset` on to `target`.
    ///
    /// # Errors
    ///
    /// [`SpanError::Range`] if the source is not within the span.
    #[inline]
    pub fn copy_to_slice(&self, offset: usize, target: &mut [u8]) -> Result<(), SpanError> {
        let len = target.len();
        let mut to = target.as_mut_ptr();
        self.part(offset, len)?.for_each_piece(|from, len| {
            // SAFETY: The piece is valid for reads. The lengths of all pieces add up to the length
            // of `target`, so `to` is valid for writes of `len` bytes.
            unsafe { bindings::memcpy(to.cast(), from.as_ptr().cast(), len) };
            to = to.wrapping_add(len);
            Ok(())
        })
    }

    /// Copies the bytes of `source` to the span, from `offset` (in bytes) on. If both overlap, the
    /// copied bytes are unspecified.
    ///
    /// # Errors
    ///
    /// [`SpanError::Range`] if the target is not within the span; [`SpanError::ReadOnly`] if the
    /// bytes may only be read.
    pub fn copy_from_span(&self, offset: usize, source: &Span<'_>) -> Result<(), SpanError> {
        let mut done = 0usize;
        self.part(offset, source.len)?
            .for_each_writable_piece(|to, len| {
                let part = source.part(done, len)?;
                let mut to = to.as_ptr();
                part.for_each_piece(|from, len| {
                    // SAFETY: The pieces of `source` are valid for reads. Their lengths add up to
                    // the length of a piece that is valid for writes from `to` on.
                    unsafe { copy_or_move(to, from.as_ptr(), len) };
                    to = to.wrapping_add(len);
                    Ok::<(), SpanError>(())
                })?;
                done = done.wrapping_add(len);
                Ok(())
            })
    }

    /// Executes the atomic operation `op` on the 8 bytes of the span. Returns the original value.
    /// Operands and result are in host byte order.
    ///
    /// # Errors
    ///
    /// [`SpanError::Alignment`] if the span is not 8 aligned, contiguous bytes;
    /// [`SpanError::ReadOnly`] if the bytes may only be read.
    pub fn atomic(&self, op: AtomicOp) -> Result<u64, SpanError> {
        let word = self.word()?;
        Ok(match op {
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
            AtomicOp::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(original) | Err(original) => original,
                }
            }
        })
    }

    /// Stores `value` in host byte order to the 8 bytes of the span, by one store (ATOMIC WRITE).
    ///
    /// # Errors
    ///
    /// [`SpanError::Alignment`] if the span is not 8 aligned, contiguous bytes;
    /// [`SpanError::ReadOnly`] if the bytes may only be read.
    pub fn atomic_store(&self, value: u64) -> Result<(), SpanError> {
        self.word()?.store(value, Ordering::SeqCst);
        Ok(())
    }

    /// Returns the span as an atomic.
    ///
    /// # Errors
    ///
    /// [`SpanError::Alignment`] if the span is not 8 aligned, contiguous bytes;
    /// [`SpanError::ReadOnly`] if the bytes may only be read.
    fn word(&self) -> Result<&'a AtomicU64, SpanError> {
        if self.len != 8 {
            return Err(SpanError::Alignment);
        }
        let mut whole = None;
        self.for_each_writable_piece(|piece, len| {
            whole = (len == 8).then_some(piece);
            Ok(())
        })?;
        let word: *mut u64 = whole.ok_or(SpanError::Alignment)?.as_ptr().cast();
        if !word.is_aligned() {
            return Err(SpanError::Alignment);
        }
        // SAFETY: The span is 8 aligned, contiguous bytes, valid for reads and writes during `'a`.
        // The process accesses them by atomics of the C11 model. If it accesses them otherwise, it
        // harms only its own data.
        Ok(unsafe { AtomicU64::from_ptr(word) })
    }
}

/// Copies `len` bytes from `from` to `to`. Two regions may share pages, so both ranges may overlap.
///
/// # Safety
///
/// `from` must be valid for reads of `len` bytes, and `to` for writes of `len` bytes. No Rust
/// reference to either range may exist.
#[inline]
unsafe fn copy_or_move(to: *mut u8, from: *const u8, len: usize) {
    if (to as usize).abs_diff(from as usize) >= len {
        // SAFETY: The caller guarantees that both ranges are valid (see `# Safety`). They do not
        // overlap.
        unsafe { copy_bytes(to, from, len) };
    } else {
        // SAFETY: The caller guarantees that both ranges are valid (see `# Safety`).
        unsafe { bindings::memmove(to.cast(), from.cast(), len) };
    }
}

#[kunit_tests(rrxe_span)]
mod tests {
    use super::*;
    use crate::abi::mmap::SharedMemory;

    const BYTES: usize = 3 * PAGE_SIZE;
    const PAGE_SHIFT: u32 = PAGE_SIZE.trailing_zeros();

    /// Returns the three pages of `memory` in an order other than that of their addresses.
    fn pages(memory: &SharedMemory) -> Result<[NonNull<u8>; 3]> {
        let page = |index: usize| {
            NonNull::new(memory.start().as_ptr().wrapping_add(index * PAGE_SIZE)).ok_or(EFAULT)
        };
        Ok([page(2)?, page(0)?, page(1)?])
    }

    /// Returns the span of `len` bytes at `start` of `pages`: the result of [`pages`], or other
    /// whole pages.
    fn span_of(pages: &[NonNull<u8>], start: usize, len: usize) -> Span<'_> {
        assert!(start + len <= pages.len() * PAGE_SIZE);
        // SAFETY: The tests pass whole pages of memory that outlives their spans. The assertion
        // above checked the range.
        unsafe { Span::new(pages, PAGE_SHIFT, start, len, true) }
    }

    fn pattern(seed: usize) -> Result<KVVec<u8>> {
        let mut bytes = KVVec::with_capacity(BYTES, GFP_KERNEL)?;
        for index in 0..BYTES {
            bytes.push((index * 7 + index / 251 + seed) as u8, GFP_KERNEL)?;
        }
        Ok(bytes)
    }

    /// Offsets and lengths of ranges around the boundaries of pages.
    const RANGES: [(usize, usize); 8] = [
        (0, 0),
        (0, 1),
        (1, PAGE_SIZE),
        (PAGE_SIZE - 1, 2),
        (PAGE_SIZE, PAGE_SIZE),
        (PAGE_SIZE - 5, PAGE_SIZE + 10),
        (0, BYTES),
        (BYTES, 0),
    ];

    #[test]
    fn copies_across_pages() -> Result {
        let memory = SharedMemory::new(BYTES)?;
        let pages = pages(&memory)?;
        let whole = span_of(&pages, 0, BYTES);
        for (seed, (offset, len)) in RANGES.into_iter().enumerate() {
            let source = pattern(seed)?;
            let source = source.get(..len).ok_or(EINVAL)?;
            assert_eq!(whole.copy_from_slice(0, &pattern(99)?), Ok(()));
            assert_eq!(whole.copy_from_slice(offset, source), Ok(()));
            let mut target = pattern(0)?;
            assert_eq!(whole.copy_to_slice(0, &mut target), Ok(()));
            let background = pattern(99)?;
            let end = offset + len;
            assert!(target.get(offset..end) == Some(source));
            assert!(target.get(..offset) == background.get(..offset));
            assert!(target.get(end..) == background.get(end..));
        }
        Ok(())
    }

    #[test]
    fn copies_from_span_to_span() -> Result {
        let (memory, other) = (SharedMemory::new(BYTES)?, SharedMemory::new(BYTES)?);
        let (pages, others) = (pages(&memory)?, pages(&other)?);
        let (source, whole) = (span_of(&pages, 0, BYTES), span_of(&others, 0, BYTES));
        assert_eq!(source.copy_from_slice(0, &pattern(3)?), Ok(()));
        for (offset, len) in RANGES {
            for at in [0, 1, PAGE_SIZE - 7]
                .into_iter()
                .filter(|at| at + len <= BYTES)
            {
                assert_eq!(whole.copy_from_slice(0, &pattern(99)?), Ok(()));
                let part = source.part(offset, len).map_err(|_| EINVAL)?;
                assert_eq!(whole.copy_from_span(at, &part), Ok(()));
                let (mut target, background, bytes) = (pattern(0)?, pattern(99)?, pattern(3)?);
                assert_eq!(whole.copy_to_slice(0, &mut target), Ok(()));
                assert!(target.get(at..at + len) == bytes.get(offset..offset + len));
                assert!(target.get(..at) == background.get(..at));
                assert!(target.get(at + len..) == background.get(at + len..));
            }
        }
        let short = span_of(&others, 5, 10);
        assert_eq!(short.copy_from_span(1, &short), Err(SpanError::Range));
        Ok(())
    }

    #[test]
    fn works_with_blocks_of_many_pages() -> Result {
        // Two blocks of four pages each: the span starts in the last page of one block and ends in
        // the first page of the other.
        let shift = PAGE_SHIFT + 2;
        let size = 1usize << shift;
        let memory = SharedMemory::new(4 * size)?;
        let first = memory.start().as_ptr() as usize;
        let aligned = first.next_multiple_of(size);
        let block = |index: usize| {
            let at = aligned - first + index * size;
            NonNull::new(memory.start().as_ptr().wrapping_add(at)).ok_or(EFAULT)
        };
        let blocks = [block(2)?, block(0)?];
        // SAFETY: Both blocks are in `memory`, which outlives the span, and are aligned to their
        // size.
        let span = unsafe { Span::new(&blocks, shift, size - PAGE_SIZE, 2 * PAGE_SIZE, true) };
        let source = pattern(5)?;
        let source = source.get(..2 * PAGE_SIZE - 100).ok_or(EINVAL)?;
        assert_eq!(span.copy_from_slice(100, source), Ok(()));
        let mut pieces = 0;
        let counted: Result<(), ()> = span.for_each_piece(|_, len| {
            pieces += 1;
            assert_eq!(len, PAGE_SIZE);
            Ok(())
        });
        assert!(counted.is_ok() && pieces == 2);
        // The same bytes as a list of pages.
        let pages = [
            block(2)?.as_ptr().wrapping_add(size - PAGE_SIZE),
            block(0)?.as_ptr(),
        ];
        let page = |index: usize| {
            pages
                .get(index)
                .and_then(|page| NonNull::new(*page))
                .ok_or(EFAULT)
        };
        let pages = [page(0)?, page(1)?];
        let by_page = span_of(&pages, 0, 2 * PAGE_SIZE);
        let mut target = pattern(0)?;
        let target = target.get_mut(..2 * PAGE_SIZE - 100).ok_or(EINVAL)?;
        assert_eq!(by_page.copy_to_slice(100, target), Ok(()));
        assert!(target == source);
        let word = span.part(PAGE_SIZE, 8).map_err(|_| EINVAL)?;
        assert_eq!(word.atomic_store(77), Ok(()));
        let same = by_page.part(PAGE_SIZE, 8).map_err(|_| EINVAL)?;
        assert_eq!(same.atomic(AtomicOp::FetchAdd { add: 1 }), Ok(77));
        Ok(())
    }

    #[test]
    fn refuses_ranges_beyond_the_span() -> Result {
        let memory = SharedMemory::new(BYTES)?;
        let pages = pages(&memory)?;
        let span = span_of(&pages, 100, 50);
        for (offset, len) in [(0, 51), (50, 1), (51, 0), (usize::MAX, 2), (1, usize::MAX)] {
            assert!(span.part(offset, len).is_err());
        }
        assert!(span.part(50, 0).is_ok());
        assert_eq!(span.copy_from_slice(1, &[0; 50]), Err(SpanError::Range));
        assert_eq!(span.copy_to_slice(1, &mut [0; 50]), Err(SpanError::Range));
        Ok(())
    }

    #[test]
    fn refuses_writes_to_read_only_bytes() -> Result {
        let memory = SharedMemory::new(BYTES)?;
        let pages = pages(&memory)?;
        // SAFETY: `pages` are whole pages of `memory`, which outlives the span.
        let span = unsafe { Span::new(&pages, PAGE_SHIFT, 0, 8, false) };
        assert_eq!(span.copy_from_slice(0, &[1]), Err(SpanError::ReadOnly));
        let part = span.part(0, 8).map_err(|_| EINVAL)?;
        assert_eq!(part.atomic_store(1), Err(SpanError::ReadOnly));
        let fault = part.atomic(AtomicOp::FetchAdd { add: 1 });
        assert_eq!(fault, Err(SpanError::ReadOnly));
        let mut bytes = [9; 8];
        assert_eq!(span.copy_to_slice(0, &mut bytes), Ok(()));
        assert_eq!(bytes, [0; 8]);
        Ok(())
    }

    #[test]
    fn atomics_change_eight_aligned_bytes() -> Result {
        let memory = SharedMemory::new(BYTES)?;
        let pages = pages(&memory)?;
        let word = span_of(&pages, PAGE_SIZE - 8, 8);
        assert_eq!(word.atomic_store(u64::MAX), Ok(()));
        assert_eq!(word.atomic(AtomicOp::FetchAdd { add: 2 }), Ok(u64::MAX));
        let swap = |compare, swap| word.atomic(AtomicOp::CompareSwap { compare, swap });
        assert_eq!(swap(7, 8), Ok(1));
        assert_eq!(swap(1, 0x0102), Ok(1));
        assert_eq!(word.atomic(AtomicOp::FetchAdd { add: 0 }), Ok(0x0102));
        for (start, len) in [(PAGE_SIZE - 4, 8), (1, 8), (0, 4), (0, 16), (0, 0)] {
            let fault = span_of(&pages, start, len).atomic(AtomicOp::FetchAdd { add: 1 });
            assert_eq!(fault, Err(SpanError::Alignment));
            let fault = span_of(&pages, start, len).atomic_store(1);
            assert_eq!(fault, Err(SpanError::Alignment));
        }
        Ok(())
    }
}
