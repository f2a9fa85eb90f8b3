// SPDX-License-Identifier: GPL-2.0

//! Rings of the ABI of stock rxe (`struct rxe_queue_buf`, rdma_user_rxe.h): work queues and
//! completion queues in memory that a process maps.
//!
//! A ring is a header and an array of elements. The number of elements (slots) is a power of two.
//! The producer writes elements and advances the producer index. The consumer reads them and
//! advances the consumer index. The ring is empty if both indices are equal, so one slot always
//! stays free. The indices are stored masked.
//!
//! The process may change every byte at any time. So this code writes the geometry in the header
//! once and never reads it back. It masks or checks each index that it reads. It copies elements
//! out by value and never hands out a reference. The kernel keeps its own progress elsewhere.

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicU32, Ordering},
};

use kernel::{
    prelude::*,
    sync::{
        barrier::{smp_mb, Full},
        Arc,
    },
};

use crate::{
    abi::{
        mmap::{MmapEntries, MmapEntry, SharedMemory},
        replies::RingReply,
        uabi::{
            cq_arm, cq_news,
            ring::{CONSUMER, ELEMENTS, INDEX_MASK, LOG2_ELEMENT_SIZE, PRODUCER},
        },
    },
    bindings,
    support::sync::cond_resched,
    verbs::cq::{NotifyWhen, Unannounced},
};

/// Smallest element in bytes: a cache line, so that no two elements share one.
const MIN_ELEMENT: usize = 64;
/// Largest element in bytes. No queue has larger ones.
const MAX_ELEMENT: usize = 1 << 12;
/// Largest number of slots. No queue has more. [`SharedMemory`] also refuses rings of 4 GiB or
/// more.
const MAX_SLOTS: u32 = 1 << 22;
/// Number of elements that [`Ring::copy_pausing`] copies before it yields the CPU.
const ELEMENTS_PER_YIELD: u32 = 1 << 10;

/// Ring (`struct rxe_queue_buf`) that the kernel shares with a process, or that only the kernel
/// uses.
///
/// All methods may be called in any context unless they say otherwise. The caller must make sure
/// that only one thread of the kernel at a time acts as producer, and only one as consumer.
///
/// # Invariants
///
/// `memory` holds at least `ELEMENTS + ((mask + 1) << shift)` bytes. `mask + 1` is a power of two.
pub struct Ring {
    memory: Arc<SharedMemory>,
    mmap_entry: Option<MmapEntry>,
    mask: u32,
    shift: u32,
}

impl Ring {
    /// Creates a ring for at least `capacity` elements of at least `element_size` bytes, which the
    /// process of `owner` may map.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a size is zero or too big; `ENOMEM`; `EIO` if the context is going away.
    pub fn new(owner: &Arc<MmapEntries>, element_size: usize, capacity: u32) -> Result<Self> {
        let mut ring = Self::unmapped(element_size, capacity)?;
        ring.mmap_entry = Some(MmapEntry::new(owner, ring.memory.clone())?);
        Ok(ring)
    }

    /// Creates a ring as [`Ring::new`] does, which no process may map.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a size is zero or too big; `ENOMEM`.
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
        // INVARIANT: `bytes` is the number of bytes that the invariant demands.
        let ring = Self {
            memory,
            mmap_entry: None,
            mask: slots.wrapping_sub(1),
            shift: element.trailing_zeros(),
        };
        ring.word(LOG2_ELEMENT_SIZE)
            .store(ring.shift, Ordering::Relaxed);
        ring.word(INDEX_MASK).store(ring.mask, Ordering::Relaxed);
        Ok(ring)
    }

    /// Returns a second view of the same ring for another part of the driver, without the mapping:
    /// a process may map the ring as long as the first view exists.
    pub fn share(&self) -> Self {
        // INVARIANT: The memory and the geometry are those of `self`.
        Self {
            memory: self.memory.clone(),
            mmap_entry: None,
            mask: self.mask,
            shift: self.shift,
        }
    }

    /// Returns the number of slots, a power of two.
    pub fn slots(&self) -> u32 {
        self.mask.wrapping_add(1)
    }

    /// Returns the largest number of elements in the ring: one less than the number of slots.
    pub fn capacity(&self) -> u32 {
        self.mask
    }

    /// Returns the size of an element in bytes, a power of two.
    pub fn element_size(&self) -> usize {
        1_usize.wrapping_shl(self.shift)
    }

    /// Returns the offset and the size by which the process maps the ring.
    pub fn mmap_reply(&self) -> RingReply {
        let elements = (self.slots() as usize).wrapping_shl(self.shift);
        RingReply {
            offset: self.mmap_entry.as_ref().map_or(0, MmapEntry::offset),
            size: ELEMENTS.wrapping_add(elements) as u32,
        }
    }

    /// Returns the number of elements in the ring according to its indices. The value is not
    /// reliable if the process writes one of the indices.
    pub fn claimed(&self) -> u32 {
        self.producer().wrapping_sub(self.consumer()) & self.mask
    }

    /// Returns the slot after `slot`.
    #[inline]
    pub fn next(&self, slot: u32) -> u32 {
        slot.wrapping_add(1) & self.mask
    }

    /// Returns the number of slots from `from` to `to`.
    #[inline]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & self.mask
    }

    /// Returns the producer index, masked. The elements before it may be read after this call
    /// (acquire).
    #[inline]
    pub fn producer(&self) -> u32 {
        self.word(PRODUCER).load(Ordering::Acquire) & self.mask
    }

    /// Returns the producer index as [`Ring::producer`] does, or `None` if the process has written
    /// a word that is no valid index.
    #[inline]
    pub fn valid_producer(&self) -> Option<u32> {
        let raw = self.word(PRODUCER).load(Ordering::Acquire);
        (raw <= self.mask).then_some(raw)
    }

    /// Returns the consumer index, masked. The slots before it may be overwritten after this call
    /// (acquire).
    #[inline]
    pub fn consumer(&self) -> u32 {
        self.word(CONSUMER).load(Ordering::Acquire) & self.mask
    }

    /// Sets the producer index to `slot`. This publishes the elements before it, which were written
    /// before this call (release).
    #[inline]
    pub fn publish_producer(&self, slot: u32) {
        self.word(PRODUCER)
            .store(slot & self.mask, Ordering::Release);
    }

    /// Sets the consumer index to `slot`. This frees the slots before it, which were read before
    /// this call (release).
    #[inline]
    pub fn publish_consumer(&self, slot: u32) {
        self.word(CONSUMER)
            .store(slot & self.mask, Ordering::Release);
    }

    /// Returns how the process has armed the CQ of this ring (`RRXE_CQ_ARM`), after a full barrier.
    /// If the process arms the CQ after this read, it sees the completions that were published
    /// before this call.
    #[inline]
    pub fn arm_after_push(&self) -> Option<NotifyWhen> {
        smp_mb(Full);
        self.arm()
    }

    /// Returns how the process has armed the CQ of this ring (`RRXE_CQ_ARM`).
    #[inline]
    pub fn arm(&self) -> Option<NotifyWhen> {
        match self.word(cq_arm::OFFSET).load(Ordering::Relaxed) {
            cq_arm::NONE => None,
            cq_arm::SOLICITED => Some(NotifyWhen::Solicited),
            _ => Some(NotifyWhen::Next),
        }
    }

    /// Sets how the CQ of this ring is armed (`RRXE_CQ_ARM`).
    pub fn set_arm(&self, when: Option<NotifyWhen>) {
        let arm = match when {
            None => cq_arm::NONE,
            Some(NotifyWhen::Solicited) => cq_arm::SOLICITED,
            Some(NotifyWhen::Next) => cq_arm::NEXT,
        };
        self.word(cq_arm::OFFSET).store(arm, Ordering::Relaxed);
    }

    /// Tells the process which kind of completions the CQ of this ring has that no notification has
    /// announced (`RRXE_CQ_NEWS`). To be called before the producer index is published.
    #[inline]
    pub fn set_unannounced(&self, news: Unannounced) {
        let news = match news {
            Unannounced::None => cq_news::NONE,
            Unannounced::Any => cq_news::ANY,
            Unannounced::Solicited => cq_news::SOLICITED,
        };
        self.word(cq_news::OFFSET).store(news, Ordering::Relaxed);
    }

    /// Copies bytes of an element out, from `offset` on. Later changes by the process do not affect
    /// the copy. Bytes beyond the element are zero.
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
        // SAFETY: `source` is valid for `within` bytes, which end within the element, and `bytes`
        // is at least as long. The callee is opaque to the compiler, so a process that changes the
        // source at the same time only changes the bytes that are copied.
        unsafe { bindings::memcpy(bytes.as_mut_ptr().cast(), source.cast(), within) };
    }

    /// Copies the first `N` bytes of an element out. Later changes by the process do not affect the
    /// copy. Returns zeros if the element is shorter.
    #[inline]
    pub fn read_array<const N: usize>(&self, slot: u32) -> [u8; N] {
        let mut place = MaybeUninit::uninit();
        *self.read_array_into(slot, &mut place)
    }

    /// Works as [`Self::read_array`], but copies the bytes to `place`, so that they are not moved.
    #[inline]
    pub fn read_array_into<'a, const N: usize>(
        &self,
        slot: u32,
        place: &'a mut MaybeUninit<[u8; N]>,
    ) -> &'a [u8; N] {
        if N > self.element_size() {
            return place.write([0; N]);
        }
        let source = self.element(slot, 0);
        // SAFETY: Source and target are valid for `N` bytes. The callee is opaque to the compiler,
        // so a process that changes the source at the same time only changes the bytes that are
        // copied.
        unsafe { bindings::memcpy(place.as_mut_ptr().cast(), source.cast(), N) };
        // SAFETY: `memcpy()` just wrote all `N` bytes.
        unsafe { place.assume_init_ref() }
    }

    /// Copies `N` bytes, a multiple of 8, of an element out, from `offset` on. Reads each aligned
    /// 64-bit word once. For a few words this is quicker than [`Ring::read_bytes`]. Returns zeros
    /// if `offset` is not a multiple of 8, or if the range ends beyond the element.
    #[inline]
    pub fn read_words<const N: usize>(&self, slot: u32, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let end = offset.saturating_add(N);
        if offset & 7 != 0 || end > self.element_size() {
            return bytes;
        }
        let mut source: *const u64 = self.element(slot, offset).cast();
        for word in bytes.chunks_exact_mut(8) {
            // SAFETY: The word is within the element, which is valid for reads and aligned. A
            // volatile read reads the value once, whatever the process does.
            word.copy_from_slice(&unsafe { source.read_volatile() }.to_ne_bytes());
            source = source.wrapping_add(1);
        }
        bytes
    }

    /// Writes `bytes` to the beginning of an element. Leaves out bytes that do not fit.
    #[inline]
    pub fn write(&self, slot: u32, bytes: &[u8]) {
        self.write_at(slot, 0, bytes);
    }

    /// Writes `bytes` to an element, from `offset` on. Leaves out bytes that do not fit.
    #[inline]
    pub fn write_at(&self, slot: u32, offset: usize, bytes: &[u8]) {
        let room = self.element_size().saturating_sub(offset);
        let len = bytes.len().min(room);
        if len == 0 {
            return;
        }
        let target = self.element(slot, offset);
        // SAFETY: `target` is valid for `len` bytes, which end within the element. `bytes` is not
        // part of the ring: no references to the ring exist.
        unsafe { bindings::memcpy(target.cast(), bytes.as_ptr().cast(), len) };
    }

    /// Copies `count` elements of `source`, from the slot `first` on, to the slots from `slot` on.
    /// Copies as many bytes of each element as both rings have room for.
    pub fn copy_elements(&self, source: &Self, first: u32, slot: u32, count: u32) {
        let len = self.element_size().min(source.element_size());
        for index in 0..count {
            let from = source.element(first.wrapping_add(index), 0);
            let to = self.element(slot.wrapping_add(index), 0);
            // SAFETY: Source and target are valid for `len` bytes, at most the size of an element.
            // The callee is opaque to the compiler, so a process that changes the source at the
            // same time only changes the bytes that are copied. If both rings have the same memory,
            // a whole element may be copied onto itself, which `memmove()` allows.
            unsafe { bindings::memmove(to.cast(), from.cast(), len) };
        }
    }

    /// Copies elements as [`Self::copy_elements`] does, and yields the CPU from time to time.
    /// Process context; may sleep.
    pub fn copy_pausing(&self, source: &Self, first: u32, slot: u32, count: u32) {
        for done in (0..count).step_by(ELEMENTS_PER_YIELD as usize) {
            let piece = count.saturating_sub(done).min(ELEMENTS_PER_YIELD);
            let (first, slot) = (first.wrapping_add(done), slot.wrapping_add(done));
            self.copy_elements(source, first, slot, piece);
            cond_resched();
        }
    }

    /// Returns the address of the byte at `offset` of an element. `offset` must be below the size
    /// of an element.
    #[inline]
    fn element(&self, slot: u32, offset: usize) -> *mut u8 {
        let position = ((slot & self.mask) as usize).wrapping_shl(self.shift);
        let start = self.memory.start().as_ptr();
        // By the type invariant the address is within `memory` for every masked slot.
        start.wrapping_add(ELEMENTS.wrapping_add(position).wrapping_add(offset))
    }

    /// Returns the 32-bit word of the header at `offset`.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        let word = self
            .memory
            .start()
            .as_ptr()
            .wrapping_add(offset)
            .cast::<u32>();
        // SAFETY: The header is within `memory`, and all offsets above are multiples of four. The
        // process accesses the words by atomics of the C11 model, which is the model of this type.
        // Any other access by the process only changes the value that is loaded.
        unsafe { AtomicU32::from_ptr(word) }
    }
}

#[kunit_tests(rrxe_ring)]
mod tests {
    use super::*;

    /// Requested element sizes and capacities, and the resulting numbers of slots and sizes.
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
    fn refuses_invalid_sizes() {
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
    fn the_header_holds_the_geometry() -> Result {
        let ring = Ring::unmapped(200, 10)?;
        let mut header = [0u32; 96];
        let start = ring.memory.start().as_ptr().cast::<u32>();
        for (index, word) in header.iter_mut().enumerate() {
            // SAFETY: The header has 384 bytes, and nothing else uses this ring.
            *word = unsafe { start.add(index).read() };
        }
        assert_eq!(header[0], 8);
        assert_eq!(header[1], 15);
        assert!(header[2..].iter().all(|word| *word == 0));
        Ok(())
    }

    #[test]
    fn passes_elements_in_order() -> Result {
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
    fn masks_indices_of_the_process() -> Result {
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
    fn detects_an_invalid_producer_index() -> Result {
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
        let count = 2 * ELEMENTS_PER_YIELD + 1;
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
