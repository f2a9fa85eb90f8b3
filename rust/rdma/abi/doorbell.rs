// SPDX-License-Identifier: GPL-2.0

//! A page of doorbells: how the library of a process tells of what it posted without a call.
//!
//! `include/uapi/rdma/rrxe-abi.h` has the layout: a bit for each send queue of a context, and a bit
//! for each word of those. The process may write anything to any of it at any time. So bits are
//! only ever taken, by atomic exchange, and each is no more than a wish to look at a send queue.

use core::{
    ops::ControlFlow,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use kernel::{prelude::*, sync::Arc};

use crate::{
    abi::{
        mmap::{Mapping, Mappings, SharedMemory},
        uabi::doorbell::{DIRTY, SIZE, STATE, SUMMARY, SUMMARY_WORDS},
    },
    bindings,
    support::sync::smp_mb,
};

/// Send queues that a page has room for.
pub const SLOTS: u32 = crate::abi::uabi::doorbell::SLOTS;

/// Bits of a word.
const BITS: u32 = u64::BITS;

/// A page of doorbells. Any context, unless a method says otherwise.
///
/// # Invariants
///
/// `memory` holds at least [`SIZE`] bytes.
pub struct DoorbellPage {
    memory: Arc<SharedMemory>,
    mapping: Option<Mapping>,
    /// Leaves from this on have no slot that was ever used.
    leaves: AtomicU32,
}

/// What tells a process's library where its page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageReply {
    /// The offset to map it by.
    pub offset: u64,
    /// Its bytes.
    pub size: u32,
}

impl DoorbellPage {
    /// A page without a doorbell rung, for the process of `owner`, which has to call.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the context is going away.
    pub fn new(owner: &Arc<Mappings>) -> Result<Self> {
        let mut page = Self::unmapped()?;
        page.mapping = Some(Mapping::new(owner, page.memory.clone())?);
        Ok(page)
    }

    fn unmapped() -> Result<Self> {
        let memory = Arc::new(SharedMemory::new(SIZE)?, GFP_KERNEL_ACCOUNT)?;
        // INVARIANT: That many bytes were asked for.
        let page = Self {
            memory,
            mapping: None,
            leaves: AtomicU32::new(0),
        };
        page.ask_for_calls(true);
        Ok(page)
    }

    /// Where the process finds it.
    pub fn mmap_reply(&self) -> PageReply {
        PageReply {
            offset: self.mapping.as_ref().map_or(0, Mapping::offset),
            size: SIZE as u32,
        }
    }

    /// Looks at the doorbell of `slot` from now on; to be called before the process knows the slot.
    pub fn use_slot(&self, slot: u32) {
        let leaves = (slot / BITS).saturating_add(1);
        self.leaves.fetch_max(leaves, Ordering::Relaxed);
    }

    /// Tells the process whether it has to call after it rang. What is rung before it knows is to be
    /// looked for after this: there is a full barrier behind it.
    pub fn ask_for_calls(&self, needed: bool) {
        let state = match needed {
            true => bindings::rrxe_poller_state_RRXE_POLLER_NEED_WAKEUP,
            false => 0,
        };
        self.state().store(state, Ordering::Relaxed);
        smp_mb();
    }

    /// Whether a doorbell was rung and not taken.
    pub fn is_rung(&self) -> bool {
        (0..SUMMARY_WORDS).any(|word| self.summary(word).load(Ordering::Relaxed) != 0)
    }

    /// Takes doorbells and serves the slot of each, in order from `first` on and around, until
    /// `serve` breaks off; what is left stays rung then, and the slot to go on with is returned.
    /// Who goes on there comes to each slot that is rung, however often those before it ring again.
    ///
    /// A slot is served after its doorbell is taken, with a full barrier between: what is posted
    /// later rings again.
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
        // What lies before `first` in its own word.
        self.sweep_word(start, 0, &mut serve)
    }

    /// Sweeps the leaves of one word of the summary: slots from `first` on, if that is in one of them.
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
        // Not `fetch_and`, whose loop a process could keep from ending.
        let rung = summary.swap(0, Ordering::SeqCst);
        if rung & before != 0 {
            summary.fetch_or(rung & before, Ordering::SeqCst);
        }
        let mut leaves = rung & !before;
        // After the exchange: a process rings for a slot after it got it.
        let end = self.leaves.load(Ordering::Relaxed);
        while leaves != 0 {
            let leaf = (word as u32)
                .wrapping_mul(BITS)
                .wrapping_add(leaves.trailing_zeros());
            leaves &= leaves.wrapping_sub(1);
            if leaf >= end {
                // Nor has any of those behind a slot in use.
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

    /// Sweeps one leaf, from the slot of bit `from` on; those before stay rung.
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

    /// Rings the doorbell of `slot` as a process does: with a full barrier behind.
    pub fn ring(&self, slot: u32) {
        let slot = slot % SLOTS;
        self.ring_leaf(slot / BITS, 1_u64.wrapping_shl(slot % BITS));
        smp_mb();
    }

    /// Rings the doorbells `bits` of a leaf.
    fn ring_leaf(&self, leaf: u32, bits: u64) {
        if bits == 0 {
            return;
        }
        self.dirty(leaf).fetch_or(bits, Ordering::SeqCst);
        let bit = 1_u64.wrapping_shl(leaf % BITS);
        self.summary((leaf / BITS) as usize)
            .fetch_or(bit, Ordering::SeqCst);
    }

    fn state(&self) -> &AtomicU32 {
        let word = self.memory.start().as_ptr().wrapping_add(STATE);
        // SAFETY: By the type invariant the word is within `memory`, and it is aligned. As for the
        // indices of a ring, the process accesses it by atomics, or changes the value at most.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    fn summary(&self, word: usize) -> &AtomicU64 {
        self.word(SUMMARY, word % SUMMARY_WORDS)
    }

    fn dirty(&self, leaf: u32) -> &AtomicU64 {
        self.word(DIRTY, (leaf % (SLOTS / BITS)) as usize)
    }

    /// The word of this index in the array at `offset`, which must have so many.
    fn word(&self, offset: usize, index: usize) -> &AtomicU64 {
        let offset = offset.wrapping_add(index.wrapping_mul(size_of::<u64>()));
        let word = self.memory.start().as_ptr().wrapping_add(offset);
        // SAFETY: As in `state`.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }
}

/// A word whose lowest `count` bits are set, fewer than all.
fn ones_below(count: u32) -> u64 {
    1_u64.wrapping_shl(count).wrapping_sub(1)
}

#[kunit_tests(rrxe_doorbell)]
mod tests {
    use super::*;

    /// A page whose slots are all in use.
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
    fn asks_for_calls_at_first() -> Result {
        let page = DoorbellPage::unmapped()?;
        assert_eq!(page.state().load(Ordering::Relaxed), 1);
        page.ask_for_calls(false);
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
    fn goes_on_where_it_broke_off() -> Result {
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

    /// Doorbells of slots that nobody has cost nothing, but for those next to one in use.
    #[test]
    fn looks_at_leaves_in_use_only() -> Result {
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

    /// Slots that ring again at once, in the same leaf, word and page, don't keep another from its turn.
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

    /// A summary that lies only costs a look; slots that no summary tells of are not found.
    #[test]
    fn bears_any_bits() -> Result {
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
