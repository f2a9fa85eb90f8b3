// SPDX-License-Identifier: GPL-2.0

//! Receive ring: the ring in which a process or a kernel consumer posts receives, and the position
//! up to which WQEs were taken.
//!
//! A receive WQE is taken once and never returned to the ring. Its SGEs are copied out
//! ([`HeldSges`]), and its slot is free for the poster at once. Callers have exclusive access: the
//! turn lock (`qp/turn.rs`) protects a QP's own ring, the lock of a shared receive queue protects
//! the ring of that queue.

use kernel::prelude::*;
use rdma::abi::ring::Ring;
use roce::{
    host::Fetch,
    wc::WcStatus,
    wr::{RecvSlot, RecvWr},
};

use crate::qp::{
    sge::{self, read_sges},
    wqe::{total_length, RecvHeader, Sge, RECV_HEADER},
};

/// SGEs of the receive WQE that a QP fills.
///
/// A responder holds at most one WQE, because the messages of one QP never interleave.
pub(crate) struct HeldSges {
    /// Storage for as many SGEs as a WQE of the ring may have.
    sges: KVVec<Sge>,
    /// Number of SGEs that the WQE has.
    used: usize,
}

impl HeldSges {
    /// Creates storage for `max_sge` SGEs. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(max_sge: u32) -> Result<Self> {
        Ok(Self {
            sges: KVVec::from_elem(Sge::default(), max_sge as usize, GFP_KERNEL_ACCOUNT)?,
            used: 0,
        })
    }

    /// Returns the SGEs of the WQE.
    pub(crate) fn sges(&self) -> &[Sge] {
        self.sges.get(..self.used).unwrap_or_default()
    }

    /// Gives up the WQE.
    pub(crate) fn release(&mut self) {
        self.used = 0;
    }

    /// Copies the SGEs of a WQE. Returns the length of the longest message that fits, in bytes.
    ///
    /// # Errors
    ///
    /// `LocQpOpErr` if the WQE has too many SGEs, `LocLenErr` if the sum of their lengths exceeds
    /// the maximum message length.
    fn fill(&mut self, ring: &Ring, slot: u32, num_sge: u32) -> Result<u32, WcStatus> {
        self.used = 0;
        let sges = self
            .sges
            .get_mut(..num_sge as usize)
            .ok_or(WcStatus::LocQpOpErr)?;
        read_sges(ring, slot, RECV_HEADER, sges);
        let length = total_length(sges).ok_or(WcStatus::LocLenErr)?;
        self.used = sges.len();
        Ok(length)
    }
}

/// Receive ring.
pub(crate) struct RecvRing {
    ring: Ring,
    /// Next slot to take.
    next: u32,
    /// Slot behind the last one that is taken, once the ring is closed.
    end: Option<u32>,
}

impl RecvRing {
    /// Returns the bytes of a WQE with `max_sge` SGEs.
    pub(crate) const fn element_size(max_sge: u32) -> usize {
        RECV_HEADER.saturating_add(sge::bytes(max_sge))
    }

    /// Creates the receive ring on `ring`, from which nothing was taken.
    pub(crate) fn new(ring: Ring) -> Self {
        Self {
            ring,
            next: 0,
            end: None,
        }
    }

    /// Returns the number of WQEs that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Returns the next slot to take.
    pub(crate) fn position(&self) -> u32 {
        self.next
    }

    /// Returns whether a WQE is posted and not yet taken.
    pub(crate) fn has_posted(&self) -> bool {
        self.producer() != self.next
    }

    /// Closes the ring: only the WQEs that were posted before this call are taken.
    pub(crate) fn close(&mut self) {
        self.end = Some(self.producer());
    }

    /// Returns the slot behind the last one to take.
    #[inline]
    fn producer(&self) -> u32 {
        self.end.unwrap_or_else(|| self.ring.producer())
    }

    /// Returns the number of WQEs that are posted and not yet taken. Returns `None` if the process
    /// has written an invalid producer index.
    pub(crate) fn posted(&self) -> Option<u32> {
        let producer = self.ring.valid_producer()?;
        Some(self.ring.distance(self.next, producer))
    }

    /// Drops all WQEs that are posted, for a QP that enters RESET.
    pub(crate) fn forget(&mut self) {
        self.next = self.producer();
        self.ring.publish_consumer(self.next);
    }

    /// Takes the next WQE that is posted, and copies its SGEs to `held`.
    pub(crate) fn take(&mut self, held: &mut HeldSges) -> Fetch<RecvWr> {
        if self.has_posted() {
            self.take_first(held)
        } else {
            Fetch::Empty
        }
    }

    /// Takes the next WQE, as [`Self::take`] does. The caller knows that one is posted.
    pub(crate) fn take_first(&mut self, held: &mut HeldSges) -> Fetch<RecvWr> {
        let slot = self.next;
        let raw: [u8; RECV_HEADER] = self.ring.read_array(slot);
        let header = RecvHeader::parse(&raw);
        let length = held.fill(&self.ring, slot, header.num_sge);
        self.next = self.ring.next(slot);
        self.ring.publish_consumer(self.next);
        let wr = RecvWr {
            slot: RecvSlot(slot),
            wr_id: header.wr_id,
            length: length.unwrap_or(0),
        };
        match length {
            Ok(_) => Fetch::Wr(wr),
            Err(status) => Fetch::Malformed(wr, status),
        }
    }
}

/// The WQEs that are posted to a ring, to be copied while QPs continue to take from it.
pub(crate) struct Posted {
    ring: Ring,
    /// Slot of the first WQE.
    from: u32,
    /// Slot behind the last WQE.
    to: u32,
}

impl RecvRing {
    /// Returns the WQEs that are posted and not yet taken.
    pub(crate) fn snapshot(&self) -> Posted {
        Posted {
            ring: self.ring.share(),
            from: self.next,
            to: self.ring.producer(),
        }
    }

    /// Creates a receive ring that starts with a copy of `posted`. Process context. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `ring` is too small.
    pub(crate) fn with_copy(ring: Ring, posted: &Posted) -> Result<Self> {
        let count = posted.ring.distance(posted.from, posted.to);
        if count > ring.capacity() {
            return Err(EINVAL);
        }
        ring.copy_pausing(&posted.ring, posted.from, 0, count);
        ring.publish_producer(count);
        Ok(Self::new(ring))
    }

    /// Completes the replacement of `old` by this ring. This ring starts with a copy of `posted`,
    /// an earlier snapshot of `old`. Adds the WQEs that were posted since, at most `limit`, and
    /// skips the WQEs that were taken since.
    ///
    /// # Errors
    ///
    /// `EINVAL` if this ring is too small. `EBUSY` if more than `limit` WQEs were posted, or fewer
    /// WQEs are posted than were taken.
    pub(crate) fn succeed(&mut self, old: &Self, posted: &Posted, limit: u32) -> Result {
        let count = old.ring.distance(posted.from, posted.to);
        let late = old.ring.distance(posted.to, old.ring.producer());
        if late > limit {
            return Err(EBUSY);
        }
        let total = count.saturating_add(late);
        if total > self.ring.capacity() {
            return Err(EINVAL);
        }
        let next = old.ring.distance(posted.from, old.next);
        // The process withdrew WQEs by its producer index, among them some that were taken
        // meanwhile.
        if next > total {
            return Err(EBUSY);
        }
        self.ring.copy_elements(&old.ring, posted.to, count, late);
        self.next = next;
        self.ring.publish_consumer(self.next);
        self.ring.publish_producer(total);
        Ok(())
    }
}

#[kunit_tests(rrxe_recv_ring)]
mod tests {
    use super::*;

    /// A process posts WQEs while its queue is resized, and withdraws them after a QP has taken
    /// some.
    #[test]
    fn refuses_to_have_taken_more_than_is_posted() -> Result {
        for (taken, is_refused) in [(4, false), (5, true)] {
            let mut old = RecvRing::new(Ring::unmapped(64, 15)?);
            old.ring.publish_producer(4);
            let posted = old.snapshot();
            let mut new = RecvRing::with_copy(Ring::unmapped(64, 7)?, &posted)?;
            old.next = taken;
            assert_eq!(new.succeed(&old, &posted, 8).is_err(), is_refused);
        }
        Ok(())
    }
}
