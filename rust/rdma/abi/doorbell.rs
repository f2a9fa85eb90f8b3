// SPDX-License-Identifier: GPL-2.0

//! Doorbell page: shared memory by which a process announces posted sends without a system call.
//!
//! The page has a bit for each send queue of a context (`dirty`), and a bit for each word of those
//! bits (`summary`); see `struct rrxe_doorbell` in `include/uapi/rdma/rrxe-abi.h`. The process may
//! write anything to the page at any time. So the kernel accesses the bits by atomic operations,
//! and treats a set bit as no more than a hint to look at a send queue.
//!
//! In this file a *slot* is the number of a send queue in the page, and a *leaf* is the index of a
//! 64-bit word of `dirty`.

use core::{
    ops::ControlFlow,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        barrier::{smp_mb, Full},
        Arc,
    },
};

use crate::{
    abi::{
        mmap::{MmapEntries, MmapEntry, SharedMemory},
        uabi::doorbell::{DIRTY, SIZE, STATE, SUMMARY, SUMMARY_WORDS},
    },
    bindings,
};

/// Number of send queues (slots) of a doorbell page.
pub const SLOTS: u32 = crate::abi::uabi::doorbell::SLOTS;

/// Number of bits of a word.
const BITS: u32 = u64::BITS;

/// Doorbell page (`struct rrxe_doorbell`) of a verbs context. Methods may be called in any context
/// unless they say otherwise.
///
/// # Invariants
///
/// `memory` holds at least [`SIZE`] bytes.
pub struct DoorbellPage {
    memory: Arc<SharedMemory>,
    mmap_entry: Option<MmapEntry>,
    /// No leaf from this index on has, or ever had, a slot in use.
    leaves: AtomicU32,
}

/// Information by which the library of a process maps the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageReply {
    /// Offset to pass to `mmap()`, in bytes.
    pub offset: u64,
    /// Size of the mapping in bytes: a multiple of the size of the kernel's pages.
    pub size: u32,
}

impl DoorbellPage {
    /// Creates a page without set bits, which the process of `owner` may map. The page is in the
    /// state `RRXE_POLLER_NEED_WAKEUP`: the process must make the doorbell call (the `write()` of
    /// `IB_USER_VERBS_CMD_POST_SEND`).
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the context is going away.
    pub fn new(owner: &Arc<MmapEntries>) -> Result<Self> {
        let mut page = Self::unmapped()?;
        page.mmap_entry = Some(MmapEntry::new(owner, page.memory.clone())?);
        Ok(page)
    }

    /// Creates a page as [`Self::new`] does, which no process may map.
    fn unmapped() -> Result<Self> {
        let memory = Arc::new(SharedMemory::new(SIZE)?, GFP_KERNEL_ACCOUNT)?;
        // INVARIANT: `SharedMemory::new` allocated at least `SIZE` bytes.
        let page = Self {
            memory,
            mmap_entry: None,
            leaves: AtomicU32::new(0),
        };
        page.set_need_wakeup(true);
        Ok(page)
    }

    /// Returns the offset and the size by which the process maps the page.
    pub fn mmap_reply(&self) -> PageReply {
        PageReply {
            offset: self.mmap_entry.as_ref().map_or(0, MmapEntry::offset),
            size: SIZE.next_multiple_of(PAGE_SIZE) as u32,
        }
    }

    /// Includes `slot` in all later sweeps. To be called before the process learns the slot.
    pub fn use_slot(&self, slot: u32) {
        let leaves = (slot / BITS).saturating_add(1);
        self.leaves.fetch_max(leaves, Ordering::Relaxed);
    }

    /// Tells the process whether it must make the doorbell call (`RRXE_POLLER_NEED_WAKEUP`) after
    /// it has set a bit. A full barrier follows. The caller checks for set bits afterwards, since
    /// the process may have set them before it saw the new state.
    pub fn set_need_wakeup(&self, needed: bool) {
        let state = match needed {
            true => bindings::rrxe_poller_state_RRXE_POLLER_NEED_WAKEUP,
            false => 0,
        };
        self.state().store(state, Ordering::Relaxed);
        smp_mb(Full);
    }

    /// Returns whether a summary bit is set, that is, whether doorbells may be waiting.
    pub fn is_rung(&self) -> bool {
        (0..SUMMARY_WORDS).any(|word| self.summary(word).load(Ordering::Relaxed) != 0)
    }

    /// Clears the set bits and calls `serve` with the slot of each, in order from `first` on,
    /// wrapping around at the end.
    ///
    /// If `serve` breaks off, the bits that are left stay set, and the result is the slot after the
    /// one served last. A caller that starts its next sweep there reaches every slot whose bit is
    /// set, however often the bits of other slots are set again.
    ///
    /// The bit of a slot is cleared before the slot is served, with a full barrier between. So if
    /// the process posts more afterwards, it sets the bit again.
    pub fn sweep(
        &self,
        first: u32,
        mut serve: impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<u32> {
        let first = first % SLOTS;
        let start = (first / BITS / BITS) as usize;
        self.sweep_word(start, first, &mut serve)?;
        for step in 1..SUMMARY_WORDS {
            self.sweep_word(start.wrapping_add(step) % SUMMARY_WORDS, 0, &mut serve)?;
        }
        // The slots before `first` in the summary word of `first`.
        self.sweep_word(start, 0, &mut serve)
    }

    /// Sweeps the leaves of one summary word. If the leaf of `first` belongs to this word, the
    /// slots before `first` are left out.
    fn sweep_word(
        &self,
        word: usize,
        first: u32,
        serve: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<u32> {
        let summary = self.summary(word);
        if summary.load(Ordering::Relaxed) == 0 {
            return ControlFlow::Continue(());
        }
        let (first_leaf, first_bit) = (first / BITS, first % BITS);
        let before = ones_below(first_leaf % BITS);
        // `fetch_and` is a compare-and-exchange loop, which a process could prolong without end.
        // `swap` is not.
        let rung = summary.swap(0, Ordering::SeqCst);
        if rung & before != 0 {
            summary.fetch_or(rung & before, Ordering::SeqCst);
        }
        let mut leaves = rung & !before;
        // Loaded after the exchange: a process gets a slot before it sets the slot's bit. So each
        // slot in use whose bit was set before the exchange is in a leaf below `end`.
        let end = self.leaves.load(Ordering::Relaxed);
        while leaves != 0 {
            let leaf = (word as u32)
                .wrapping_mul(BITS)
                .wrapping_add(leaves.trailing_zeros());
            leaves &= leaves.wrapping_sub(1);
            if leaf >= end {
                // No leaf from `end` on has a slot in use.
                break;
            }
            let from = if leaf == first_leaf { first_bit } else { 0 };
            if let ControlFlow::Break(slot) = self.sweep_leaf(leaf, from, serve) {
                summary.fetch_or(leaves, Ordering::SeqCst);
                return ControlFlow::Break(slot);
            }
        }
        ControlFlow::Continue(())
    }

    /// Sweeps one leaf from bit `from` on. Set bits before `from` stay set.
    fn sweep_leaf(
        &self,
        leaf: u32,
        from: u32,
        serve: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<u32> {
        let before = ones_below(from);
        let rung = self.dirty(leaf).swap(0, Ordering::SeqCst);
        self.ring_leaf(leaf, rung & before);
        let mut bits = rung & !before;
        while bits != 0 {
            let slot = leaf.wrapping_mul(BITS).wrapping_add(bits.trailing_zeros());
            bits &= bits.wrapping_sub(1);
            if serve(slot).is_break() {
                self.ring_leaf(leaf, bits);
                return ControlFlow::Break(slot.wrapping_add(1) % SLOTS);
            }
        }
        ControlFlow::Continue(())
    }

    /// Sets the bit of `slot` as a process does. A full barrier follows.
    pub fn ring(&self, slot: u32) {
        let slot = slot % SLOTS;
        self.ring_leaf(slot / BITS, 1_u64.wrapping_shl(slot % BITS));
        smp_mb(Full);
    }

    /// Sets `bits` of a leaf and the summary bit of the leaf.
    fn ring_leaf(&self, leaf: u32, bits: u64) {
        if bits == 0 {
            return;
        }
        self.dirty(leaf).fetch_or(bits, Ordering::SeqCst);
        let bit = 1_u64.wrapping_shl(leaf % BITS);
        self.summary((leaf / BITS) as usize)
            .fetch_or(bit, Ordering::SeqCst);
    }

    /// Returns the word that holds the state (`enum rrxe_poller_state`).
    fn state(&self) -> &AtomicU32 {
        let word = self.memory.start().as_ptr().wrapping_add(STATE);
        // SAFETY: By the type invariant the word is within `memory`, and it is aligned. The process
        // accesses the word by atomics. Any other access by the process only changes the value.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    /// Returns the summary word of this index.
    fn summary(&self, word: usize) -> &AtomicU64 {
        self.word(SUMMARY, word % SUMMARY_WORDS)
    }

    /// Returns the word of the doorbells of a leaf.
    fn dirty(&self, leaf: u32) -> &AtomicU64 {
        self.word(DIRTY, (leaf % (SLOTS / BITS)) as usize)
    }

    /// Returns the word number `index` of the array at `offset`. The array must have more than
    /// `index` words.
    fn word(&self, offset: usize, index: usize) -> &AtomicU64 {
        let offset = offset.wrapping_add(index.wrapping_mul(size_of::<u64>()));
        let word = self.memory.start().as_ptr().wrapping_add(offset);
        // SAFETY: By the type invariant the word is within `memory`, and it is aligned. The process
        // accesses the word by atomics. Any other access by the process only changes the value.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }
}

/// Returns a word whose lowest `count` bits are set. `count` is below 64.
fn ones_below(count: u32) -> u64 {
    1_u64.wrapping_shl(count).wrapping_sub(1)
}

#[kunit_tests(rrxe_doorbell)]
mod tests {
    use super::*;

    /// Returns a page all of whose slots are in use.
    fn used() -> Result<DoorbellPage> {
        let page = DoorbellPage::unmapped()?;
        page.use_slot(SLOTS - 1);
        Ok(page)
    }

    fn rung(
        page: &DoorbellPage,
        first: u32,
        limit: usize,
    ) -> Result<(KVec<u32>, ControlFlow<u32>)> {
        let mut slots = KVec::new();
        let end = page.sweep(first, |slot| {
            let _ = slots.push(slot, GFP_KERNEL);
            match slots.len() < limit {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        Ok((slots, end))
    }

    #[test]
    fn a_new_page_needs_calls() -> Result {
        let page = DoorbellPage::unmapped()?;
        assert_eq!(page.state().load(Ordering::Relaxed), 1);
        page.set_need_wakeup(false);
        assert_eq!(page.state().load(Ordering::Relaxed), 0);
        Ok(())
    }

    #[test]
    fn serves_each_doorbell_once() -> Result {
        let page = used()?;
        for slot in [0, 63, 64, 4095, 4096, SLOTS - 1] {
            page.ring(slot);
        }
        assert!(page.is_rung());
        let (slots, end) = rung(&page, 0, 100)?;
        assert_eq!(&slots[..], &[0, 63, 64, 4095, 4096, SLOTS - 1]);
        assert_eq!(end, ControlFlow::Continue(()));
        assert!(!page.is_rung());
        assert!(rung(&page, 0, 100)?.0.is_empty());
        Ok(())
    }

    #[test]
    fn a_sweep_continues_after_a_break() -> Result {
        let page = used()?;
        for slot in [1, 2, 3, 70, 200, 5000] {
            page.ring(slot);
        }
        let (slots, end) = rung(&page, 0, 2)?;
        assert_eq!(&slots[..], &[1, 2]);
        assert_eq!(end, ControlFlow::Break(3));
        let (slots, end) = rung(&page, 199, 2)?;
        assert_eq!(&slots[..], &[200, 5000]);
        assert_eq!(end, ControlFlow::Break(5001));
        let (slots, end) = rung(&page, 71, 100)?;
        assert_eq!(&slots[..], &[3, 70]);
        assert_eq!(end, ControlFlow::Continue(()));
        assert!(!page.is_rung());
        Ok(())
    }

    /// Ignores the bits in the leaves behind the last leaf that has a slot in use.
    #[test]
    fn sweeps_only_leaves_in_use() -> Result {
        let page = DoorbellPage::unmapped()?;
        page.use_slot(70);
        page.use_slot(3);
        for leaf in [0, 1, 2, 64] {
            page.ring(leaf * 64 + 63);
        }
        let (slots, end) = rung(&page, 0, 100)?;
        assert_eq!(&slots[..], &[63, 127]);
        assert_eq!(end, ControlFlow::Continue(()));
        assert!(!page.is_rung());
        Ok(())
    }

    /// Slots whose bits are set again at once (in the same leaf, the same summary word and the same
    /// page) do not keep a sweep from reaching another slot.
    #[test]
    fn comes_to_each_slot() -> Result {
        let page = used()?;
        let others = [0, 1, 63, 64, 65, 4095, SLOTS - 1];
        for late in [2, 62, 66, 130, 4000, 4096, 20_000] {
            page.ring(late);
            let (mut next, mut passes) = (0, 0);
            loop {
                for slot in others {
                    page.ring(slot);
                }
                let (slots, end) = rung(&page, next, 2)?;
                passes += 1;
                if slots.contains(&late) {
                    break;
                }
                assert!(passes <= others.len());
                next = end.break_value().unwrap_or(0);
            }
        }
        Ok(())
    }

    /// A summary bit without a `dirty` bit has no effect. A `dirty` bit without its summary bit is
    /// not found.
    #[test]
    fn tolerates_any_bits() -> Result {
        let page = used()?;
        for word in 0..SUMMARY_WORDS {
            page.summary(word).store(u64::MAX, Ordering::Relaxed);
        }
        page.dirty(511).store(1 << 63, Ordering::Relaxed);
        assert_eq!(&rung(&page, u32::MAX, 100)?.0[..], &[SLOTS - 1]);
        page.dirty(7).store(u64::MAX, Ordering::Relaxed);
        assert!(rung(&page, 0, 100)?.0.is_empty());
        Ok(())
    }
}
