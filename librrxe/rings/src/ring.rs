// SPDX-License-Identifier: GPL-2.0

//! A ring of elements between this library and the kernel.
//!
//! One side owns the producer's index, the other the consumer's. Each publishes its own with release
//! semantics and reads the other's with acquire semantics. A ring of `n` slots holds `n - 1` elements.

use crate::{
    layout::ring,
    memory::Memory,
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// log₂ of the sizes that an element may have.
const LOG2_ELEMENT_SIZES: std::ops::RangeInclusive<u32> = 6..=20;

/// A ring.
///
/// # Invariants
///
/// The memory holds `mask + 1` elements of `longs` words, and `mask + 1` is a power of two.
pub struct Ring<M> {
    memory: M,
    mask: u32,
    longs: usize,
}

impl<M: Memory> Ring<M> {
    /// The ring that the kernel laid out in `memory`; `None` if it isn't one.
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

    /// The slot behind `index`.
    pub fn after(&self, index: u32) -> u32 {
        index.wrapping_add(1) & self.mask
    }

    /// The slot before `index`.
    pub fn before(&self, index: u32) -> u32 {
        index.wrapping_sub(1) & self.mask
    }

    /// Bytes that an element has room for behind its first `header` bytes.
    pub fn room_behind(&self, header: usize) -> usize {
        (self.longs * 8).saturating_sub(header)
    }

    /// The words of the element at `index`.
    pub fn element(&self, index: u32) -> &[AtomicU64] {
        let all = self.memory.longs(ring::ELEMENTS);
        let at = (index & self.mask) as usize * self.longs;
        let tail = all.get(at..).and_then(|tail| tail.get(..self.longs));
        tail.unwrap_or_default()
    }

    /// The index of who fills the ring; what it stands behind can be read after this.
    pub fn producer(&self) -> u32 {
        self.acquire(ring::PRODUCER)
    }

    /// The index of who empties the ring; what it stands behind may be overwritten after this.
    pub fn consumer(&self) -> u32 {
        self.acquire(ring::CONSUMER)
    }

    /// Hands over all elements before `index` that were filled.
    pub fn publish_producer(&self, index: u32) {
        self.release(ring::PRODUCER, index);
    }

    /// Gives back all elements before `index` that were read.
    pub fn publish_consumer(&self, index: u32) {
        self.release(ring::CONSUMER, index);
    }

    /// A word of the ring's head.
    pub fn word(&self, offset: usize) -> Option<&AtomicU32> {
        self.memory.word(offset)
    }

    fn acquire(&self, offset: usize) -> u32 {
        let word = self.memory.word(offset);
        word.map_or(0, |word| word.load(Ordering::Acquire)) & self.mask
    }

    fn release(&self, offset: usize, index: u32) {
        if let Some(word) = self.memory.word(offset) {
            word.store(index & self.mask, Ordering::Release);
        }
    }
}

fn load(word: Option<&AtomicU32>) -> Option<u32> {
    word.map(|word| word.load(Ordering::Relaxed))
}

#[cfg(all(test, not(loom)))]
pub(crate) mod testing {
    //! Rings on the heap, as the kernel would lay them out.

    use super::Ring;
    use crate::{
        layout::ring,
        memory::{testing::Heap, Memory},
        sync::Ordering,
    };
    use std::sync::Arc;

    /// Memory of a ring with `slots` elements of `1 << log2` bytes.
    pub(crate) fn memory(log2: u32, slots: u32) -> Arc<Heap> {
        let size = ring::ELEMENTS + ((slots as usize) << log2);
        let heap = Heap::new(ring::ELEMENTS, size);
        for (offset, value) in [
            (ring::LOG2_ELEMENT_SIZE, log2),
            (ring::INDEX_MASK, slots.wrapping_sub(1)),
        ] {
            let word = heap.word(offset).expect("it is in the head");
            word.store(value, Ordering::Relaxed);
        }
        Arc::new(heap)
    }

    /// A ring and the kernel's view of it.
    pub(crate) fn both(log2: u32, slots: u32) -> (Ring<Arc<Heap>>, Ring<Arc<Heap>>) {
        let memory = memory(log2, slots);
        let ring = Ring::new(memory.clone()).expect("it is a ring");
        (ring, Ring::new(memory).expect("it is a ring"))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{
        testing::{both, memory},
        *,
    };

    #[test]
    fn refuses_what_is_no_ring() {
        for (log2, slots) in [(5, 4), (21, 1), (6, 3), (6, 0)] {
            assert!(Ring::new(memory(log2, slots)).is_none(), "{log2} {slots}");
        }
        let short = memory(6, 4);
        let mask = short.word(ring::INDEX_MASK).expect("it is in the head");
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
    fn indices_are_masked_on_both_ways() {
        let (ours, theirs) = both(6, 4);
        ours.publish_producer(7);
        assert_eq!(theirs.producer(), 3);
        let word = theirs.word(ring::CONSUMER).expect("it is in the head");
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
