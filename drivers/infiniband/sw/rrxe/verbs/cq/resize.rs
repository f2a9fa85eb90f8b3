// SPDX-License-Identifier: GPL-2.0

//! Resizing a CQ in use.
//!
//! The unread completions move to a new ring. Completion number n, counted from the CQ's creation,
//! is in slot n of any ring, masked. So most completions are copied while others are pushed, and
//! the CQ's lock is held for the copy of a few completions only.
//!
//! The process may change the consumer's index at any time, and with it the set of unread
//! completions. The rings are therefore exchanged only if at most [`AT_ONCE`] completions are
//! missing according to the index that is read under the lock.

use core::{mem::swap, ops::Range};

use kernel::prelude::*;
use rdma::{abi::ring::Ring, verbs::udata::RingChange};

use super::{check_capacity, Cq, State};
use crate::provider::Rrxe;

/// Maximum number of completions that are copied under the lock.
const AT_ONCE: u64 = 1 << 10;
/// Maximum number of copies without the lock before the last attempt to exchange the rings. After
/// each copy, only the completions are missing that were pushed during it.
const ATTEMPTS: u32 = 8;

impl Cq {
    /// Resizes the CQ to at least `capacity` completions, and returns the new capacity. The unread
    /// completions move along. `call` tells the process where the new ring is. The process must not
    /// poll meanwhile. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `capacity` is zero, more than [`limits::MAX_CQE`](crate::limits::MAX_CQE), or
    /// less than the number of unread completions; `ENOMEM`, `EFAULT`; `EBUSY` if completions
    /// are pushed faster than they are copied; `EIO` when the device is going away.
    pub(crate) fn resize(&self, capacity: u32, call: &RingChange<'_, Rrxe>) -> Result<u32> {
        check_capacity(capacity)?;
        // Work requests that the process has posted so far may complete to this CQ.
        call.context().settle(|| self.device.link.check_stays())?;
        let mut ring = Ring::new(call.mmap_entries(), self.layout.size(), capacity)?;
        let granted = ring.capacity();
        call.announce(ring.mmap_reply())?;
        let moved = self.move_to(&mut ring, capacity);
        // Outside the lock, because this withdraws the mapping of the unused ring.
        drop(ring);
        moved.map(|()| granted)
    }

    /// Copies unread completions to `ring` until few are missing, then exchanges the rings.
    ///
    /// Completions that are polled and overwritten meanwhile are copied in vain.
    ///
    /// # Errors
    ///
    /// Those of [`State::exchange`]; `EBUSY` if the rings were not exchanged after [`ATTEMPTS`]
    /// copies.
    fn move_to(&self, ring: &mut Ring, capacity: u32) -> Result {
        let mut copied = 0;
        for attempt in 0..=ATTEMPTS {
            let step = self.state.lock().exchange(ring, capacity, copied)?;
            let Step::CopyAhead(current, missing) = step else {
                return Ok(());
            };
            if attempt == ATTEMPTS {
                break;
            }
            copied = missing.end;
            let (first, count) = slots(&missing);
            ring.copy_pausing(&current, first, first, count);
        }
        Err(EBUSY)
    }
}

/// The result of an attempt to exchange the rings.
enum Step {
    /// The rings were exchanged.
    Exchanged,
    /// Too many completions are missing. The caller must first copy the completions of these
    /// numbers from this ring, without the lock.
    CopyAhead(Ring, Range<u64>),
}

impl State {
    /// Returns the ring, and the numbers of the unread completions according to the process's
    /// index.
    ///
    /// # Errors
    ///
    /// `EINVAL` once the CQ is destroyed.
    fn unread(&self) -> Result<(Ring, Range<u64>)> {
        let ring = self.ring.as_ref().ok_or(EINVAL)?;
        let count = ring.distance(ring.consumer(), self.pushed as u32);
        let first = self.pushed.saturating_sub(count.into());
        Ok((ring.share(), first..self.pushed))
    }

    /// Copies the unread completions to `ring`, beginning with number `copied`, and exchanges
    /// `ring` and the CQ's ring. Does nothing if more than [`AT_ONCE`] completions are missing.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the CQ is destroyed, or if more than `capacity` completions are unread. Then
    /// `ring` is still the new ring.
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
        ring.set_unannounced(self.unannounced);
        self.consumer = ring.consumer();
        if let Some(old) = &mut self.ring {
            swap(old, ring);
        }
        Ok(Step::Exchanged)
    }
}

/// Returns the first slot, unmasked, and the number of the completions with these numbers.
fn slots(numbers: &Range<u64>) -> (u32, u32) {
    let count = numbers.end.saturating_sub(numbers.start);
    (numbers.start as u32, count as u32)
}

#[kunit_tests(rrxe_cq_resize)]
mod tests {
    use super::*;
    use rdma::abi::features::Arming;

    const SLOTS: u32 = 8192;

    /// The process's index claims at first that all completions are read, and later that none are.
    /// At most [`AT_ONCE`] of the completions that become unread in this way are copied under the
    /// lock.
    #[test]
    fn limits_the_copy_under_the_lock() -> Result {
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
            // The test continues with the ring that the process knows.
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
