// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Doorbells of a context: bits in a shared page that the kernel's poller reads.

use crate::{
    layout::doorbell::{DIRTY, NEED_WAKEUP, SLOTS, STATE, SUMMARY},
    memory::Memory,
    sync::{fence, Ordering},
};

/// Doorbell page of a context.
pub struct Doorbells<M> {
    memory: M,
}

/// Number of a send queue in the doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// Returns the slot `number`, or `None` if the page has no such slot. `RRXE_NO_SLOT` is no
    /// slot.
    pub fn new(number: u32) -> Option<Self> {
        (number < SLOTS).then_some(Self(number))
    }
}

/// Result of ringing a doorbell: whether the caller must also make the doorbell call, the system
/// call that has the kernel look at the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingResult {
    /// The poller is awake and will find the doorbell. The caller has nothing to do.
    Done,
    /// The poller sleeps. The caller must make the doorbell call.
    NeedsCall,
}

impl<M: Memory> Doorbells<M> {
    /// Creates the view of the doorbell page in `memory`.
    pub fn new(memory: M) -> Self {
        Self { memory }
    }

    /// Sets the doorbell of a send queue. The caller has published the producer index of that queue
    /// before.
    pub fn ring(&self, Slot(slot): Slot) -> RingResult {
        let (at, bit) = (slot as usize / 64, slot % 64);
        let dirty = self.memory.longs(DIRTY).get(at);
        let summary = self.memory.longs(SUMMARY).get(at / 64);
        let (Some(dirty), Some(summary)) = (dirty, summary) else {
            return RingResult::NeedsCall;
        };
        // Release: the poller that clears the bit also sees the producer index. Acquire: if the
        // poller cleared the bit just before, this thread also sees that the summary bit is clear,
        // and sets it again.
        dirty.fetch_or(1 << bit, Ordering::AcqRel);
        let bit = 1 << (at % 64);
        if summary.load(Ordering::Relaxed) & bit == 0 {
            summary.fetch_or(bit, Ordering::AcqRel);
        }
        // The fence is necessary even if the summary bit was already set. Another thread may have
        // set that bit while the poller slept, and then it makes the doorbell call for its own
        // queue only.
        fence(Ordering::SeqCst);
        // Before the poller sleeps, it sets `NEED_WAKEUP` and then reads the summary.
        let state = self.memory.word(STATE);
        match state.map_or(NEED_WAKEUP, |state| state.load(Ordering::Relaxed)) & NEED_WAKEUP {
            0 => RingResult::Done,
            _ => RingResult::NeedsCall,
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
            let slot = Slot::new(number).expect("the slot is in range");
            assert_eq!(doorbells.ring(slot), RingResult::Done);
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
        let state = memory.word(STATE).expect("the page has this word");
        state.store(NEED_WAKEUP, Relaxed);
        assert_eq!(doorbells.ring(Slot(5)), RingResult::NeedsCall);
        // Other bits may get a meaning in the future. They do not demand the doorbell call.
        state.store(!NEED_WAKEUP, Relaxed);
        assert_eq!(doorbells.ring(Slot(5)), RingResult::Done);
    }

    #[test]
    fn without_a_page_the_call_is_made() {
        let doorbells = Doorbells::new(Heap::new(0, 0));
        assert_eq!(doorbells.ring(Slot(0)), RingResult::NeedsCall);
    }
}
