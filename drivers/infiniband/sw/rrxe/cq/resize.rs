// SPDX-License-Identifier: GPL-2.0

//! Another size for a CQ in use.
//!
//! What is unread moves to a new ring. Completion number n, counted from the CQ's beginning, lies in slot n of any
//! ring, masked; so most of them are copied while others are pushed and fetched, and the CQ's lock is held for a few only.

use core::{mem::swap, ops::Range};

use kernel::prelude::*;
use rdma::{ring::Ring, udata::RingChange};

use super::{check_capacity, Cq, State};
use crate::provider::Rrxe;

/// Completions that are copied under the lock without further ado.
const AT_ONCE: u64 = 1 << 10;
/// Who pushes faster than this can copy so many times in a row is made to wait.
const ATTEMPTS: u32 = 8;

impl Cq {
    /// Gives the queue room for at least `capacity` completions, and returns for how many. What is
    /// unread moves along. The process, which does not poll meanwhile, is told where the new ring is.
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no entries, more than the limit, or fewer than are there; `ENOMEM`, `EFAULT`.
    pub(crate) fn resize(&self, capacity: u32, call: &RingChange<'_, Rrxe>) -> Result<u32> {
        check_capacity(capacity)?;
        // What it posted may complete to this queue.
        call.context().settle();
        let mut ring = Ring::new(call.mappings(), self.layout.size(), capacity)?;
        let granted = ring.capacity();
        call.announce(ring.mmap_reply())?;
        let copied = self.copy_ahead(&ring)?;
        let moved = self.state.lock().exchange(&mut ring, capacity, copied);
        // Outside the lock: this withdraws the mapping of the ring that isn't used.
        drop(ring);
        moved.map(|()| granted)
    }

    /// Copies what is unread to `ring`, but for a few completions. Returns the number of the first of these.
    ///
    /// What is fetched and overwritten meanwhile is copied in vain.
    ///
    /// # Errors
    ///
    /// `EINVAL` once destroyed.
    fn copy_ahead(&self, ring: &Ring) -> Result<u64> {
        let mut copied = 0;
        for _ in 0..ATTEMPTS {
            let (current, unread) = self.state.lock().unread()?;
            let missing = copied.max(unread.start)..unread.end;
            if missing.end.saturating_sub(missing.start) <= AT_ONCE {
                break;
            }
            copied = missing.end;
            copy(ring, &current, missing);
        }
        Ok(copied)
    }
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
    /// leaves the old one in its place.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is more than `capacity`; `ring` is the new one still.
    fn exchange(&mut self, ring: &mut Ring, capacity: u32, copied: u64) -> Result {
        let (current, unread) = self.unread()?;
        if unread.end.saturating_sub(unread.start) > capacity.into() {
            return Err(EINVAL);
        }
        copy(ring, &current, copied.max(unread.start)..unread.end);
        ring.publish_consumer(unread.start as u32);
        ring.publish_producer(unread.end as u32);
        if self.has_arm {
            ring.set_arm(current.arm());
        }
        self.consumer = ring.consumer();
        if let Some(old) = &mut self.ring {
            swap(old, ring);
        }
        Ok(())
    }
}

/// Copies the completions of these numbers.
fn copy(to: &Ring, from: &Ring, numbers: Range<u64>) {
    let count = numbers.end.saturating_sub(numbers.start) as u32;
    let first = numbers.start as u32;
    to.copy_elements(from, first, first, count);
}
