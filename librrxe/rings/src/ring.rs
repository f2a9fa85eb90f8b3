// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Ring of elements that the process shares with the kernel.
//!
//! One side writes the producer index, the other side writes the consumer index. Each side
//! publishes its own index with release semantics and reads the other index with acquire semantics.
//! A ring of `n` slots holds at most `n - 1` elements.

use crate::{
    layout::ring,
    memory::Memory,
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// Valid sizes of an element, log₂ of bytes.
const LOG2_ELEMENT_SIZES: std::ops::RangeInclusive<u32> = 6..=20;

/// Ring of elements.
///
/// # Invariants
///
/// The memory holds `mask + 1` elements of `longs` 64-bit words each. `mask + 1` is a power of two.
pub struct Ring<M> {
    memory: M,
    mask: u32,
    longs: usize,
}

impl<M: Memory> Ring<M> {
    /// Creates the view of a ring that the kernel laid out in `memory`. Returns `None` if the
    /// header is not valid, or if the memory is too small.
    pub fn new(memory: M) -> Option<Self> {
        let log2 = load(memory.word(ring::LOG2_ELEMENT_SIZE))?;
        let mask = load(memory.word(ring::INDEX_MASK))?;
        if !LOG2_ELEMENT_SIZES.contains(&log2) {
            return None;
        }
        let longs = 1usize << (log2 - 3);
        let slots = usize::try_from(mask).ok()?.checked_add(1)?;
        let needed = slots.checked_mul(longs)?;
        if !slots.is_power_of_two() || memory.longs(ring::ELEMENTS).len() < needed {
            return None;
        }
        Some(Self {
            memory,
            mask,
            longs,
        })
    }

    /// Returns the slot after `index`.
    pub fn after(&self, index: u32) -> u32 {
        index.wrapping_add(1) & self.mask
    }

    /// Returns the slot before `index`.
    pub fn before(&self, index: u32) -> u32 {
        index.wrapping_sub(1) & self.mask
    }

    /// Returns the number of bytes of an element after its first `header` bytes.
    pub fn room_behind(&self, header: usize) -> usize {
        (self.longs * 8).saturating_sub(header)
    }

    /// Returns the 64-bit words of the element at `index`.
    pub fn element(&self, index: u32) -> &[AtomicU64] {
        let all = self.memory.longs(ring::ELEMENTS);
        let at = (index & self.mask) as usize * self.longs;
        let tail = all.get(at..).and_then(|tail| tail.get(..self.longs));
        tail.unwrap_or_default()
    }

    /// Returns the producer index. The elements before it may be read after this call (acquire).
    pub fn producer(&self) -> u32 {
        self.acquire(ring::PRODUCER)
    }

    /// Returns the consumer index. The slots before it may be overwritten after this call
    /// (acquire).
    pub fn consumer(&self) -> u32 {
        self.acquire(ring::CONSUMER)
    }

    /// Sets the producer index. This publishes the elements before `index`, which were written
    /// before this call (release).
    pub fn publish_producer(&self, index: u32) {
        self.release(ring::PRODUCER, index);
    }

    /// Sets the consumer index. This frees the slots before `index`, which were read before this
    /// call (release).
    pub fn publish_consumer(&self, index: u32) {
        self.release(ring::CONSUMER, index);
    }

    /// Returns the 32-bit word of the header at `offset`.
    pub fn word(&self, offset: usize) -> Option<&AtomicU32> {
        self.memory.word(offset)
    }

    /// Returns the index at `offset` of the header, masked (acquire).
    fn acquire(&self, offset: usize) -> u32 {
        let word = self.memory.word(offset);
        word.map_or(0, |word| word.load(Ordering::Acquire)) & self.mask
    }

    /// Stores the index at `offset` of the header, masked (release).
    fn release(&self, offset: usize, index: u32) {
        if let Some(word) = self.memory.word(offset) {
            word.store(index & self.mask, Ordering::Release);
        }
    }
}

/// Returns the value of a word of the header.
fn load(word: Option<&AtomicU32>) -> Option<u32> {
    word.map(|word| word.load(Ordering::Relaxed))
}

#[cfg(all(test, not(loom)))]
pub(crate) mod testing {
    //! Rings on the heap, laid out as the kernel does.

    use super::Ring;
    use crate::{
        layout::ring,
        memory::{testing::Heap, Memory},
        sync::Ordering,
    };
    use std::sync::Arc;

    /// Returns memory with a ring of `slots` elements of `1 << log2` bytes.
    pub(crate) fn memory(log2: u32, slots: u32) -> Arc<Heap> {
        let size = ring::ELEMENTS + ((slots as usize) << log2);
        let heap = Heap::new(ring::ELEMENTS, size);
        for (offset, value) in [
            (ring::LOG2_ELEMENT_SIZE, log2),
            (ring::INDEX_MASK, slots.wrapping_sub(1)),
        ] {
            let word = heap.word(offset).expect("the header has this word");
            word.store(value, Ordering::Relaxed);
        }
        Arc::new(heap)
    }

    /// Returns two views of one ring: one for the library, one for the kernel.
    pub(crate) fn both(log2: u32, slots: u32) -> (Ring<Arc<Heap>>, Ring<Arc<Heap>>) {
        let memory = memory(log2, slots);
        let ring = Ring::new(memory.clone()).expect("the header is valid");
        (ring, Ring::new(memory).expect("the header is valid"))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{
        testing::{both, memory},
        *,
    };

    #[test]
    fn refuses_an_invalid_header() {
        for (log2, slots) in [(5, 4), (21, 1), (6, 3), (6, 0)] {
            assert!(Ring::new(memory(log2, slots)).is_none(), "{log2} {slots}");
        }
        let short = memory(6, 4);
        let mask = short
            .word(ring::INDEX_MASK)
            .expect("the header has this word");
        mask.store(7, Ordering::Relaxed);
        assert!(Ring::new(short).is_none());
    }

    #[test]
    fn indices_wrap() {
        let (ring, _) = both(6, 4);
        assert_eq!(ring.after(2), 3);
        assert_eq!(ring.after(3), 0);
        assert_eq!(ring.before(0), 3);
        assert_eq!(ring.before(2), 1);
    }

    #[test]
    fn indices_are_masked_when_read_and_written() {
        let (ours, theirs) = both(6, 4);
        ours.publish_producer(7);
        assert_eq!(theirs.producer(), 3);
        let word = theirs
            .word(ring::CONSUMER)
            .expect("the header has this word");
        word.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(ours.consumer(), 3);
    }

    #[test]
    fn elements_follow_one_another() {
        let (ours, theirs) = both(7, 2);
        assert_eq!(ours.element(0).len(), 16);
        ours.element(1)[0].store(5, Ordering::Relaxed);
        let all = theirs.memory.longs(ring::ELEMENTS);
        assert_eq!(all[16].load(Ordering::Relaxed), 5);
        assert_eq!(ours.room_behind(100), 28);
        assert_eq!(ours.room_behind(200), 0);
    }
}
