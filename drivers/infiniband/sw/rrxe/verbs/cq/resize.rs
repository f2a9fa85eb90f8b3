// SPDX-License-Identifier: GPL-2.0

//! Another size for a CQ in use.
//!
//! What is unread moves to a new ring. Completion number n, counted from the CQ's beginning, lies in slot n of any
//! ring, masked; so most of them are copied while others are pushed and fetched, and the CQ's lock is held for a few only.
//!
//! The process may change the consumer's index at any time, and so what counts as unread. The rings are therefore exchanged
//! only if at most [`AT_ONCE`] completions are missing by the index that is read under the lock.

use core::{mem::swap, ops::Range};

use kernel::prelude::*;
use rdma::{abi::ring::Ring, verbs::udata::RingChange};

use super::{check_capacity, Cq, State};
use crate::provider::Rrxe;

/// Completions that are copied under the lock at most.
const AT_ONCE: u64 = 1 << 10;
/// How often completions are copied ahead. Each time only those remain that were pushed during the last copy.
const ATTEMPTS: u32 = 8;

impl Cq {
    /// Gives the queue room for at least `capacity` completions, and returns for how many. What is
    /// unread moves along. The process, which does not poll meanwhile, is told where the new ring is.
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no entries, more than the limit, or fewer than are there; `ENOMEM`, `EFAULT`; `EBUSY` if the
    /// process changes what is unread, or pushes faster than this copies; `EIO` when the device is going away.
    pub(crate) fn resize(&self, capacity: u32, call: &RingChange<'_, Rrxe>) -> Result<u32> {
        check_capacity(capacity)?;
        // What it posted may complete to this queue.
        call.context().settle(|| self.device.link.check_stays())?;
        let mut ring = Ring::new(call.mappings(), self.layout.size(), capacity)?;
        let granted = ring.capacity();
        call.announce(ring.mmap_reply())?;
        let moved = self.move_to(&mut ring, capacity);
        // Outside the lock: this withdraws the mapping of the ring that isn't used.
        drop(ring);
        moved.map(|()| granted)
    }

    /// Copies what is unread to `ring` until few completions are missing, then exchanges the rings.
    ///
    /// What is fetched and overwritten meanwhile is copied in vain.
    ///
    /// # Errors
    ///
    /// As [`State::exchange`]; `EBUSY` if that never succeeds.
    fn move_to(&self, ring: &mut Ring, capacity: u32) -> Result {
        let mut copied = 0;
        for _ in 0..=ATTEMPTS {
            let step = self.state.lock().exchange(ring, capacity, copied)?;
            let Step::CopyAhead(current, missing) = step else {
                return Ok(());
            };
            copied = missing.end;
            let (first, count) = slots(&missing);
            ring.copy_pausing(&current, first, first, count);
        }
        Err(EBUSY)
    }
}

/// What became of an attempt to exchange the rings.
enum Step {
    /// They are exchanged.
    Exchanged,
    /// Too many completions are missing: these are to be copied from this ring first, without the lock.
    CopyAhead(Ring, Range<u64>),
}

impl State {
    /// The ring, and the numbers of the completions in it that are unread, as the process claims.
    ///
    /// # Errors
    ///
    /// `EINVAL` once destroyed.
    fn unread(&self) -> Result<(Ring, Range<u64>)> {
        let ring = self.ring.as_ref().ok_or(EINVAL)?;
        let count = ring.distance(ring.consumer(), self.pushed as u32);
        let first = self.pushed.saturating_sub(count.into());
        Ok((ring.share(), first..self.pushed))
    }

    /// Takes `ring` into use, which gets what is unread and not copied yet, from number `copied` on, and
    /// leaves the old one in its place. Does nothing if more than [`AT_ONCE`] are not copied yet.
    ///
    /// # Errors
    ///
    /// `EINVAL` once destroyed, or if there is more than `capacity`; `ring` is the new one still.
    fn exchange(&mut self, ring: &mut Ring, capacity: u32, copied: u64) -> Result<Step> {
        let (current, unread) = self.unread()?;
        if unread.end.saturating_sub(unread.start) > capacity.into() {
            return Err(EINVAL);
        }
        let missing = copied.max(unread.start)..unread.end;
        if missing.end.saturating_sub(missing.start) > AT_ONCE {
            return Ok(Step::CopyAhead(current, missing));
        }
        let (first, count) = slots(&missing);
        ring.copy_elements(&current, first, first, count);
        ring.publish_consumer(unread.start as u32);
        ring.publish_producer(unread.end as u32);
        if self.arming.by_word {
            ring.set_arm(current.arm());
        }
        ring.set_news(self.news);
        self.consumer = ring.consumer();
        if let Some(old) = &mut self.ring {
            swap(old, ring);
        }
        Ok(Step::Exchanged)
    }
}

/// The first slot, unmasked, of the completions of these numbers, and how many there are.
fn slots(numbers: &Range<u64>) -> (u32, u32) {
    let count = numbers.end.saturating_sub(numbers.start);
    (numbers.start as u32, count as u32)
}

#[kunit_tests(rrxe_cq_resize)]
mod tests {
    use super::*;
    use rdma::verbs::ucontext::Arming;

    const SLOTS: u32 = 8192;

    /// A process whose index claims at first that it has read everything, and then nothing: what becomes unread is
    /// not copied under the lock.
    #[test]
    fn copies_few_under_the_lock_whatever_the_process_claims() -> Result {
        let ring = Ring::unmapped(64, SLOTS - 1)?;
        let process = ring.share();
        let mut state = State::new(ring, Arming::default(), false);
        state.pushed = 8000;
        for claimed in [8000, 8000 - AT_ONCE as u32, 8000 - AT_ONCE as u32 - 1, 0] {
            process.publish_consumer(claimed);
            let mut next = Ring::unmapped(64, SLOTS - 1)?;
            let before = state.ring.as_ref().map(Ring::share);
            let step = state.exchange(&mut next, SLOTS, 0)?;
            match step {
                Step::Exchanged => assert!(8000 - claimed <= AT_ONCE as u32),
                Step::CopyAhead(_, missing) => {
                    assert!(8000 - claimed > AT_ONCE as u32);
                    assert_eq!(missing, u64::from(claimed)..8000);
                }
            }
            // The test goes on with the ring that the process knows.
            state.ring = before;
        }
        Ok(())
    }

    #[test]
    fn refuses_a_ring_that_is_too_small() -> Result {
        let mut state = State::new(Ring::unmapped(64, 15)?, Arming::default(), false);
        state.pushed = 9;
        let mut next = Ring::unmapped(64, 7)?;
        assert!(state.exchange(&mut next, 7, 0).is_err());
        let step = state.exchange(&mut next, 9, 0)?;
        assert!(matches!(step, Step::Exchanged));
        Ok(())
    }
}
