// SPDX-License-Identifier: GPL-2.0

//! The doorbells of a context: a page that the kernel's poller watches.

use crate::{
    layout::doorbell::{DIRTY, NEED_WAKEUP, SLOTS, STATE, SUMMARY},
    memory::Memory,
    sync::{fence, Ordering},
};

/// The page.
pub struct Doorbells<M> {
    memory: M,
}

/// A send queue's place in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// The slot of this number; `None` if the page has none, as of `RRXE_NO_SLOT`.
    pub fn new(number: u32) -> Option<Self> {
        (number < SLOTS).then_some(Self(number))
    }
}

/// What is left to do for who rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Nothing: somebody looks.
    Seen,
    /// Make the doorbell call: nobody does.
    Asleep,
}

impl<M: Memory> Doorbells<M> {
    /// The page in `memory`.
    pub fn new(memory: M) -> Self {
        Self { memory }
    }

    /// Tells the poller of a send queue whose producer's index was published before.
    pub fn ring(&self, Slot(slot): Slot) -> Rung {
        let (at, bit) = (slot as usize / 64, slot % 64);
        let dirty = self.memory.longs(DIRTY).get(at);
        let summary = self.memory.longs(SUMMARY).get(at / 64);
        let (Some(dirty), Some(summary)) = (dirty, summary) else {
            return Rung::Asleep;
        };
        // Release: who clears the bit sees the producer's index, too. Acquire: if it was cleared just before this,
        // the bit of the summary is seen cleared, too, and is set again.
        dirty.fetch_or(1 << bit, Ordering::AcqRel);
        let bit = 1 << (at % 64);
        if summary.load(Ordering::Relaxed) & bit == 0 {
            summary.fetch_or(bit, Ordering::AcqRel);
        }
        // Found set, too: it may be so by one who had to call for a queue of its own, while the poller slept.
        fence(Ordering::SeqCst);
        // Who goes to sleep says so first and looks at the summary then.
        let state = self.memory.word(STATE);
        match state.map_or(NEED_WAKEUP, |state| state.load(Ordering::Relaxed)) & NEED_WAKEUP {
            0 => Rung::Seen,
            _ => Rung::Asleep,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        layout::doorbell::SIZE,
        memory::testing::Heap,
        sync::{AtomicU64, Ordering::Relaxed},
    };
    use std::sync::Arc;

    fn page() -> (Doorbells<Arc<Heap>>, Arc<Heap>) {
        let memory = Arc::new(Heap::new(64, SIZE));
        (Doorbells::new(memory.clone()), memory)
    }

    fn set(words: &[AtomicU64]) -> Vec<u32> {
        let bits = |(at, word): (usize, &AtomicU64)| {
            let (at, word) = (at as u32 * 64, word.load(Relaxed));
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| at + bit)
        };
        words.iter().enumerate().flat_map(bits).collect()
    }

    #[test]
    fn every_slot_has_a_bit_and_a_summary() {
        for number in [0, 1, 63, 64, 4095, 4096, SLOTS - 1] {
            let (doorbells, memory) = page();
            let slot = Slot::new(number).expect("it is in range");
            assert_eq!(doorbells.ring(slot), Rung::Seen);
            assert_eq!(set(memory.longs(DIRTY)), [number]);
            assert_eq!(set(&memory.longs(SUMMARY)[..8]), [number / 64]);
        }
    }

    #[test]
    fn there_is_no_slot_beyond_the_end() {
        assert_eq!(Slot::new(SLOTS), None);
        assert_eq!(Slot::new(u32::MAX), None);
    }

    #[test]
    fn a_sleeping_poller_is_woken() {
        let (doorbells, memory) = page();
        let state = memory.word(STATE).expect("it is in the page");
        state.store(NEED_WAKEUP, Relaxed);
        assert_eq!(doorbells.ring(Slot(5)), Rung::Asleep);
        // Other bits may get a meaning: they don't ask for the call.
        state.store(!NEED_WAKEUP, Relaxed);
        assert_eq!(doorbells.ring(Slot(5)), Rung::Seen);
    }

    #[test]
    fn without_a_page_the_call_is_made() {
        let doorbells = Doorbells::new(Heap::new(0, 0));
        assert_eq!(doorbells.ring(Slot(0)), Rung::Asleep);
    }
}
