// SPDX-License-Identifier: GPL-2.0

//! The rings of the stock rxe ABI: work and completion queues in memory shared with a process.
//!
//! A ring is a header and a power of two of elements. One side writes elements and advances the
//! producer index, the other reads them and advances the consumer index; it is empty when both are
//! equal, so one slot stays free. The indices are stored masked.
//!
//! The process may change every byte at any time. So the header's geometry is written once and
//! never read; an index read is masked at once; elements are copied out by value, and nothing here
//! hands out a reference. What the kernel's side knows of its own progress it keeps elsewhere.

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicU32, Ordering},
};

use kernel::{prelude::*, sync::Arc};

use crate::{
    abi::{
        mmap::{Mapping, Mappings, SharedMemory},
        uabi::{
            cq_arm, cq_news,
            ring::{CONSUMER, ELEMENTS, INDEX_MASK, LOG2_ELEMENT_SIZE, PRODUCER},
        },
    },
    bindings,
    support::sync::{cond_resched, smp_mb},
    verbs::{
        cq::{News, NotifyWhen},
        qp::RingReply,
    },
};

/// Smallest element: a cache line, so that no two elements share one.
const MIN_ELEMENT: usize = 64;
/// Largest element and most slots: no queue has more. Memory of more than 32 bits is refused, whatever they are.
const MAX_ELEMENT: usize = 1 << 12;
const MAX_SLOTS: u32 = 1 << 22;
/// Elements that [`Ring::copy_pausing`] copies before other tasks may run.
const COPIED_AT_ONCE: u32 = 1 << 10;

/// A ring shared with a process.
///
/// All methods may be called from any context unless they say otherwise. Exclusion between the
/// callers on the kernel's side is theirs to arrange.
///
/// # Invariants
///
/// `memory` holds at least `ELEMENTS + ((mask + 1) << shift)` bytes, `mask + 1` is a power of two.
pub struct Ring {
    memory: Arc<SharedMemory>,
    mapping: Option<Mapping>,
    mask: u32,
    shift: u32,
}

impl Ring {
    /// A ring for at least `capacity` elements of at least `element_size` bytes, which the process
    /// of `owner` may map.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a size is zero or too big, `ENOMEM`, `EIO` if the context is going away.
    pub fn new(owner: &Arc<Mappings>, element_size: usize, capacity: u32) -> Result<Self> {
        let mut ring = Self::unmapped(element_size, capacity)?;
        ring.mapping = Some(Mapping::new(owner, ring.memory.clone())?);
        Ok(ring)
    }

    /// As [`Ring::new`], for a queue that no process maps.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a size is zero or too big, `ENOMEM`.
    pub fn unmapped(element_size: usize, capacity: u32) -> Result<Self> {
        if element_size == 0 || element_size > MAX_ELEMENT || capacity == 0 || capacity >= MAX_SLOTS
        {
            return Err(EINVAL);
        }
        let element = element_size.next_power_of_two().max(MIN_ELEMENT);
        let slots = capacity.saturating_add(1).next_power_of_two();
        let bytes = (slots as usize)
            .checked_mul(element)
            .and_then(|elements| elements.checked_add(ELEMENTS))
            .ok_or(EINVAL)?;
        let memory = Arc::new(SharedMemory::new(bytes)?, GFP_KERNEL_ACCOUNT)?;
        // INVARIANT: `bytes` is the sum that the invariant asks for.
        let ring = Self {
            memory,
            mapping: None,
            mask: slots.wrapping_sub(1),
            shift: element.trailing_zeros(),
        };
        ring.word(LOG2_ELEMENT_SIZE)
            .store(ring.shift, Ordering::Relaxed);
        ring.word(INDEX_MASK).store(ring.mask, Ordering::Relaxed);
        Ok(ring)
    }

    /// The same ring for another of its users on the kernel's side, without its mapping.
    pub fn share(&self) -> Self {
        // INVARIANT: It is the same memory and geometry.
        Self {
            memory: self.memory.clone(),
            mapping: None,
            mask: self.mask,
            shift: self.shift,
        }
    }

    /// The number of slots, a power of two.
    pub fn slots(&self) -> u32 {
        self.mask.wrapping_add(1)
    }

    /// How many elements fit: one less than there are slots.
    pub fn capacity(&self) -> u32 {
        self.mask
    }

    /// Bytes of an element, a power of two.
    pub fn element_size(&self) -> usize {
        1_usize.wrapping_shl(self.shift)
    }

    /// Where the process finds the ring.
    pub fn mmap_reply(&self) -> RingReply {
        let elements = (self.slots() as usize).wrapping_shl(self.shift);
        RingReply {
            offset: self.mapping.as_ref().map_or(0, Mapping::offset),
            size: ELEMENTS.wrapping_add(elements) as u32,
        }
    }

    /// How many elements the indices claim are there: hearsay where the process has an index.
    pub fn claimed(&self) -> u32 {
        self.producer().wrapping_sub(self.consumer()) & self.mask
    }

    /// The slot after `slot`.
    #[inline]
    pub fn next(&self, slot: u32) -> u32 {
        slot.wrapping_add(1) & self.mask
    }

    /// How many slots `to` is ahead of `from`.
    #[inline]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & self.mask
    }

    /// The producer's index, masked. Elements before it may be read after this (acquire).
    #[inline]
    pub fn producer(&self) -> u32 {
        self.word(PRODUCER).load(Ordering::Acquire) & self.mask
    }

    /// As [`Ring::producer`], or `None` if the word is no index of this ring: whoever writes it has
    /// gone wrong.
    #[inline]
    pub fn valid_producer(&self) -> Option<u32> {
        let raw = self.word(PRODUCER).load(Ordering::Acquire);
        (raw <= self.mask).then_some(raw)
    }

    /// The consumer's index, masked. Elements before it may be overwritten after this (acquire).
    #[inline]
    pub fn consumer(&self) -> u32 {
        self.word(CONSUMER).load(Ordering::Acquire) & self.mask
    }

    /// Publishes the elements before `slot`, all written before this (release).
    #[inline]
    pub fn publish_producer(&self, slot: u32) {
        self.word(PRODUCER)
            .store(slot & self.mask, Ordering::Release);
    }

    /// Gives the slots before `slot` back, all read before this (release).
    #[inline]
    pub fn publish_consumer(&self, slot: u32) {
        self.word(CONSUMER)
            .store(slot & self.mask, Ordering::Release);
    }

    /// How the process has armed the CQ whose ring this is. Behind a full barrier: what was published
    /// before is seen by whoever is found not to have armed it yet.
    #[inline]
    pub fn arm_behind_push(&self) -> Option<NotifyWhen> {
        smp_mb();
        self.arm()
    }

    /// How the process has armed the CQ whose ring this is.
    #[inline]
    pub fn arm(&self) -> Option<NotifyWhen> {
        match self.word(cq_arm::OFFSET).load(Ordering::Relaxed) {
            cq_arm::NONE => None,
            cq_arm::SOLICITED => Some(NotifyWhen::Solicited),
            _ => Some(NotifyWhen::Next),
        }
    }

    /// Arms the CQ whose ring this is, or not.
    pub fn set_arm(&self, when: Option<NotifyWhen>) {
        let arm = match when {
            None => cq_arm::NONE,
            Some(NotifyWhen::Solicited) => cq_arm::SOLICITED,
            Some(NotifyWhen::Next) => cq_arm::NEXT,
        };
        self.word(cq_arm::OFFSET).store(arm, Ordering::Relaxed);
    }

    /// Tells the process which completions no notification has told of, of the CQ whose ring this is. To be called
    /// before the producer's index is published.
    #[inline]
    pub fn set_news(&self, news: News) {
        let news = match news {
            News::None => cq_news::NONE,
            News::Any => cq_news::ANY,
            News::Solicited => cq_news::SOLICITED,
        };
        self.word(cq_news::OFFSET).store(news, Ordering::Relaxed);
    }

    /// Copies bytes of an element out, each once. What lies beyond the element reads as zero.
    #[inline]
    pub fn read_bytes(&self, slot: u32, offset: usize, bytes: &mut [u8]) {
        let within = self.element_size().saturating_sub(offset).min(bytes.len());
        if within < bytes.len() {
            bytes.fill(0);
        }
        if within == 0 {
            return;
        }
        let source = self.element(slot, offset);
        // SAFETY: `source` is valid for `within` bytes, since they end within the element; `bytes`
        // is at least as long. The callee is opaque to the compiler, so a process that changes
        // the source meanwhile can only change what is copied.
        unsafe { bindings::memcpy(bytes.as_mut_ptr().cast(), source.cast(), within) };
    }

    /// Copies the first `N` bytes of an element out, each once; zeros if the element is shorter.
    #[inline]
    pub fn read_array<const N: usize>(&self, slot: u32) -> [u8; N] {
        if N > self.element_size() {
            return [0; N];
        }
        let mut bytes = MaybeUninit::<[u8; N]>::uninit();
        let source = self.element(slot, 0);
        // SAFETY: Both are valid for `N` bytes. As in `read_bytes`, the callee is opaque.
        unsafe { bindings::memcpy(bytes.as_mut_ptr().cast(), source.cast(), N) };
        // SAFETY: All `N` bytes were just written.
        unsafe { bytes.assume_init() }
    }

    /// Copies `N` bytes from `offset` of an element on, each aligned double word once: for a few of them quicker than
    /// [`Ring::read_bytes`]. Zeros if they aren't double words of the element.
    #[inline]
    pub fn read_words<const N: usize>(&self, slot: u32, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let end = offset.saturating_add(N);
        if offset & 7 != 0 || end > self.element_size() {
            return bytes;
        }
        let mut source: *const u64 = self.element(slot, offset).cast();
        for word in bytes.chunks_exact_mut(8) {
            // SAFETY: The element is valid for reads, and so far the word is within it; it is aligned, as elements are.
            // A volatile read takes the value once whatever the process does.
            word.copy_from_slice(&unsafe { source.read_volatile() }.to_ne_bytes());
            source = source.wrapping_add(1);
        }
        bytes
    }

    /// Writes the first bytes of an element, as far as they fit in it.
    #[inline]
    pub fn write(&self, slot: u32, bytes: &[u8]) {
        self.write_at(slot, 0, bytes);
    }

    /// Writes bytes of an element from `offset` on, as far as they fit in it.
    #[inline]
    pub fn write_at(&self, slot: u32, offset: usize, bytes: &[u8]) {
        let room = self.element_size().saturating_sub(offset);
        let len = bytes.len().min(room);
        if len == 0 {
            return;
        }
        let target = self.element(slot, offset);
        // SAFETY: `target` is valid for `len` bytes, the size of an element at most; the bytes are
        // not part of the ring, to which no references exist.
        unsafe { bindings::memcpy(target.cast(), bytes.as_ptr().cast(), len) };
    }

    /// Copies `count` elements from `first` on of `source` to `slot` and behind, as far as an element
    /// of the one fits in one of the other.
    pub fn copy_elements(&self, source: &Self, first: u32, slot: u32, count: u32) {
        let len = self.element_size().min(source.element_size());
        for index in 0..count {
            let from = source.element(first.wrapping_add(index), 0);
            let to = self.element(slot.wrapping_add(index), 0);
            // SAFETY: Both are valid for `len` bytes, the size of an element at most. The callee is
            // opaque to the compiler, so a process that changes the source meanwhile can only change
            // what is copied; if both rings are one, whole elements may be copied onto themselves,
            // which `memmove` allows.
            unsafe { bindings::memmove(to.cast(), from.cast(), len) };
        }
    }

    /// Copies elements as [`Self::copy_elements`] does, and lets other tasks run meanwhile. Process context; may sleep.
    pub fn copy_pausing(&self, source: &Self, first: u32, slot: u32, count: u32) {
        for done in (0..count).step_by(COPIED_AT_ONCE as usize) {
            let piece = count.saturating_sub(done).min(COPIED_AT_ONCE);
            let (first, slot) = (first.wrapping_add(done), slot.wrapping_add(done));
            self.copy_elements(source, first, slot, piece);
            cond_resched();
        }
    }

    /// The address of a byte of an element. `offset` must be below the element's size.
    #[inline]
    fn element(&self, slot: u32, offset: usize) -> *mut u8 {
        let position = ((slot & self.mask) as usize).wrapping_shl(self.shift);
        let start = self.memory.start().as_ptr();
        // By the type invariant this lies within `memory` for every masked slot.
        start.wrapping_add(ELEMENTS.wrapping_add(position).wrapping_add(offset))
    }

    /// A word of the header.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        let word = self
            .memory
            .start()
            .as_ptr()
            .wrapping_add(offset)
            .cast::<u32>();
        // SAFETY: The header is within `memory` and the offsets above are multiples of four. The
        // process accesses the words by atomics of the C11 model, which is that of this type; if it
        // does otherwise, it can only change the value that is loaded.
        unsafe { AtomicU32::from_ptr(word) }
    }
}

#[kunit_tests(rrxe_ring)]
mod tests {
    use super::*;

    /// Elements and capacities asked for, and the slots and sizes that become of them.
    #[test]
    fn rounds_up_to_powers_of_two() -> Result {
        for (element, capacity, slots, size) in [
            (1, 1, 2, 64),
            (64, 3, 4, 64),
            (65, 4, 8, 128),
            (208 + 512, 100, 128, 1024),
            (MAX_ELEMENT, 1, 2, MAX_ELEMENT),
        ] {
            let ring = Ring::unmapped(element, capacity)?;
            assert_eq!(ring.slots(), slots);
            assert_eq!(ring.capacity(), slots - 1);
            assert_eq!(ring.element_size(), size);
            assert_eq!(ring.mmap_reply().size as usize, 384 + slots as usize * size);
        }
        Ok(())
    }

    #[test]
    fn refuses_absurd_sizes() {
        for (element, capacity) in [
            (0, 1),
            (64, 0),
            (MAX_ELEMENT + 1, 1),
            (64, MAX_SLOTS),
            (64, u32::MAX),
            (usize::MAX, 1),
        ] {
            assert!(Ring::unmapped(element, capacity).is_err());
        }
    }

    #[test]
    fn shows_its_geometry_where_librxe_looks() -> Result {
        let ring = Ring::unmapped(200, 10)?;
        let mut header = [0u32; 96];
        let start = ring.memory.start().as_ptr().cast::<u32>();
        for (index, word) in header.iter_mut().enumerate() {
            // SAFETY: The header is 384 bytes, and nobody else knows the ring.
            *word = unsafe { start.add(index).read() };
        }
        assert_eq!(header[0], 8);
        assert_eq!(header[1], 15);
        assert!(header[2..].iter().all(|word| *word == 0));
        Ok(())
    }

    #[test]
    fn hands_elements_over_in_order() -> Result {
        let ring = Ring::unmapped(64, 3)?;
        let (mut tail, mut head) = (0, 0);
        for round in 0u32..10 {
            for value in 0..3 {
                assert!(ring.next(tail) != ring.consumer());
                ring.write(tail, &(round * 3 + value).to_ne_bytes());
                tail = ring.next(tail);
                ring.publish_producer(tail);
            }
            assert_eq!(ring.next(tail), ring.consumer());
            for value in 0..3 {
                assert!(head != ring.producer());
                assert_eq!(u32::from_ne_bytes(ring.read_array(head)), round * 3 + value);
                head = ring.next(head);
                ring.publish_consumer(head);
            }
            assert_eq!(head, ring.producer());
        }
        Ok(())
    }

    #[test]
    fn masks_what_the_process_wrote() -> Result {
        let ring = Ring::unmapped(64, 3)?;
        ring.word(PRODUCER).store(0xffff_fffe, Ordering::Relaxed);
        ring.word(CONSUMER).store(0x8000_0005, Ordering::Relaxed);
        ring.word(INDEX_MASK).store(u32::MAX, Ordering::Relaxed);
        ring.word(LOG2_ELEMENT_SIZE).store(31, Ordering::Relaxed);
        assert_eq!(ring.producer(), 2);
        assert_eq!(ring.consumer(), 1);
        assert_eq!(ring.slots(), 4);
        ring.write(u32::MAX, &[7; 64]);
        assert_eq!(ring.read_array(3), [7; 64]);
        Ok(())
    }

    #[test]
    fn tells_what_is_no_index() -> Result {
        let ring = Ring::unmapped(64, 3)?;
        for (word, index) in [(0, Some(0)), (3, Some(3)), (4, None), (u32::MAX, None)] {
            ring.word(PRODUCER).store(word, Ordering::Relaxed);
            assert_eq!(ring.valid_producer(), index);
        }
        Ok(())
    }

    #[test]
    fn copies_elements_around_the_end() -> Result {
        let (old, new) = (Ring::unmapped(64, 3)?, Ring::unmapped(64, 7)?);
        for slot in 0u32..4 {
            old.write(slot, &[slot as u8 + 1; 64]);
        }
        new.copy_pausing(&old, 3, 6, 3);
        for (slot, byte) in [(6, 4), (7, 1), (0, 2), (1, 0), (5, 0)] {
            assert_eq!(new.read_array(slot), [byte; 64]);
        }
        Ok(())
    }

    #[test]
    fn copies_all_pieces() -> Result {
        let count = 2 * COPIED_AT_ONCE + 1;
        let (old, new) = (Ring::unmapped(4, count)?, Ring::unmapped(4, count)?);
        for slot in 0..count {
            old.write(slot, &slot.to_le_bytes());
        }
        new.copy_pausing(&old, 0, 1, count);
        for slot in 0..count {
            assert_eq!(new.read_array(slot + 1), slot.to_le_bytes());
        }
        Ok(())
    }

    #[test]
    fn stays_within_the_element() -> Result {
        let ring = Ring::unmapped(64, 1)?;
        ring.write(0, &[1; 200]);
        ring.write(1, &[2; 64]);
        let mut bytes = [9; 80];
        ring.read_bytes(0, 32, &mut bytes);
        assert!(bytes[..32].iter().all(|byte| *byte == 1));
        assert!(bytes[32..].iter().all(|byte| *byte == 0));
        ring.read_bytes(1, 64, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
        ring.read_bytes(1, usize::MAX, &mut bytes);
        assert_eq!(ring.read_array(0), [1; 64]);
        assert_eq!(ring.read_array(1), [0; 65]);
        ring.write_at(0, 56, &[3; 8]);
        let mut both = [1; 16];
        both[8..].fill(3);
        assert_eq!(ring.read_words(0, 48), both);
        assert_eq!(ring.read_words::<64>(1, 0), [2; 64]);
        for offset in [4, 56, 64, usize::MAX & !7] {
            assert_eq!(ring.read_words::<16>(1, offset), [0; 16]);
        }
        Ok(())
    }
}
