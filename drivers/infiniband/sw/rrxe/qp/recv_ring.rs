// SPDX-License-Identifier: GPL-2.0

//! Posted receives: a ring that a process fills, and how far it was taken.
//!
//! A receive WQE is taken for good: its SGEs are copied out ([`Held`]) and its slot is free for the
//! poster at once. Whoever takes has exclusive access: the holder of a QP's turn for the QP's own
//! ring, the lock of a shared receive queue for that.

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

/// The SGEs of the receive WQE that a QP fills.
///
/// A responder holds at most one: messages of one QP never interleave.
pub(crate) struct Held {
    /// Room for as many as a WQE of the ring may have.
    sges: KVVec<Sge>,
    /// How many of them the WQE has.
    used: usize,
}

impl Held {
    /// Room for `max_sge` SGEs. Process context.
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

    /// The SGEs.
    pub(crate) fn sges(&self) -> &[Sge] {
        self.sges.get(..self.used).unwrap_or_default()
    }

    /// The WQE is done with.
    pub(crate) fn release(&mut self) {
        self.used = 0;
    }

    /// Copies the SGEs of a WQE and returns the length of the longest message that fits.
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

/// The ring.
pub(crate) struct RecvRing {
    ring: Ring,
    /// The next slot to take.
    next: u32,
    /// Once closed: the slot behind the last one that is taken.
    end: Option<u32>,
}

impl RecvRing {
    /// Bytes of a WQE with `max_sge` SGEs.
    pub(crate) const fn element_size(max_sge: u32) -> usize {
        RECV_HEADER.saturating_add(sge::bytes(max_sge))
    }

    /// Nothing is taken of `ring` yet.
    pub(crate) fn new(ring: Ring) -> Self {
        Self {
            ring,
            next: 0,
            end: None,
        }
    }

    /// How many WQEs fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// The next slot to take.
    pub(crate) fn position(&self) -> u32 {
        self.next
    }

    /// Something is posted and not yet taken.
    pub(crate) fn has_posted(&self) -> bool {
        self.producer() != self.next
    }

    /// From now on takes no more than the WQEs posted before this call.
    pub(crate) fn close(&mut self) {
        self.end = Some(self.producer());
    }

    /// The slot behind the last one to take.
    #[inline]
    fn producer(&self) -> u32 {
        self.end.unwrap_or_else(|| self.ring.producer())
    }

    /// How many WQEs are posted and not yet taken; `None` if the process left an index that is none.
    pub(crate) fn posted(&self) -> Option<u32> {
        let producer = self.ring.valid_producer()?;
        Some(self.ring.distance(self.next, producer))
    }

    /// Forgets all that was posted: RESET.
    pub(crate) fn forget(&mut self) {
        self.next = self.producer();
        self.ring.publish_consumer(self.next);
    }

    /// Takes the next posted WQE.
    pub(crate) fn take(&mut self, held: &mut Held) -> Fetch<RecvWr> {
        if self.has_posted() {
            self.take_first(held)
        } else {
            Fetch::Empty
        }
    }

    /// As [`Self::take`], when something is known to be posted.
    pub(crate) fn take_first(&mut self, held: &mut Held) -> Fetch<RecvWr> {
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

/// What is posted to a ring, to be copied while others go on taking from it.
pub(crate) struct Posted {
    ring: Ring,
    from: u32,
    to: u32,
}

impl RecvRing {
    /// What is posted and not yet taken.
    pub(crate) fn snapshot(&self) -> Posted {
        Posted {
            ring: self.ring.share(),
            from: self.next,
            to: self.ring.producer(),
        }
    }

    /// A ring that starts with a copy of `posted`. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is too small.
    pub(crate) fn with_copy(ring: Ring, posted: &Posted) -> Result<Self> {
        let count = posted.ring.distance(posted.from, posted.to);
        if count > ring.capacity() {
            return Err(EINVAL);
        }
        ring.copy_pausing(&posted.ring, posted.from, 0, count);
        ring.publish_producer(count);
        Ok(Self::new(ring))
    }

    /// Takes the place of `old`, of which `posted` is an earlier snapshot that this ring starts
    /// with: adds what was posted since, at most `limit` WQEs, and leaves out what was taken since.
    ///
    /// # Errors
    ///
    /// `EINVAL` if this ring is too small, `EBUSY` if more was posted, or less is posted than was taken.
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
        // It took back what it had posted, and what was taken meanwhile.
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

    /// A process posts WQEs while its queue is resized, and takes them back once a QP has taken some.
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
