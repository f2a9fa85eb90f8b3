// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Posting to receive queues, both those of a QP and shared ones (SRQs).

use crate::{
    layout::recv_wqe,
    memory::{pair, Memory},
    operation::{put, put_sges},
    ring::Ring,
    PostError, Sge,
};

/// Size of an SGE in bytes.
const SGE_SIZE: usize = 16;

/// Receive queue.
///
/// # Invariants
///
/// `producer` is the producer index that was published last. The slots from `producer` up to
/// `cursor` are staged: written, but not published.
pub struct ReceiveQueue<M> {
    ring: Ring<M>,
    max_sge: usize,
    producer: u32,
    cursor: u32,
    consumer: u32,
}

impl<M: Memory> ReceiveQueue<M> {
    /// Creates the queue of a ring, which may already hold requests.
    pub fn new(ring: Ring<M>, max_sge: u32) -> Self {
        let room = ring.room_behind(recv_wqe::PAYLOAD);
        let producer = ring.producer();
        Self {
            max_sge: (max_sge as usize).min(room / SGE_SIZE),
            producer,
            cursor: producer,
            consumer: ring.consumer(),
            ring,
        }
    }

    /// Returns the largest number of SGEs of a request.
    pub fn max_sge(&self) -> usize {
        self.max_sge
    }

    /// Starts anew after the QP went to RESET: the kernel has emptied the ring, and all posted
    /// requests are gone.
    pub fn reset(&mut self) {
        self.producer = self.ring.producer();
        self.cursor = self.producer;
        self.consumer = self.ring.consumer();
    }

    /// Stages a request after those that are already staged.
    ///
    /// # Errors
    ///
    /// [`PostError::Invalid`] if there are too many SGEs; [`PostError::Full`] if the ring is full.
    /// The request is not staged then. Those before it stay staged.
    pub fn stage(
        &mut self,
        wr_id: u64,
        sges: impl ExactSizeIterator<Item = Sge>,
    ) -> Result<(), PostError> {
        if sges.len() > self.max_sge {
            return Err(PostError::Invalid);
        }
        let next = self.ring.after(self.cursor);
        if next == self.consumer {
            self.consumer = self.ring.consumer();
            if next == self.consumer {
                return Err(PostError::Full);
            }
        }
        let wqe = self.ring.element(self.cursor);
        put(wqe, recv_wqe::WR_ID, wr_id);
        let (length, count) = put_sges(wqe, recv_wqe::PAYLOAD, sges);
        put(wqe, recv_wqe::LENGTH, pair(length, length));
        put(wqe, recv_wqe::CUR_SGE_NUM_SGE, pair(0, count));
        self.cursor = next;
        Ok(())
    }

    /// Publishes all staged requests to the kernel.
    pub fn publish(&mut self) {
        if self.cursor != self.producer {
            self.producer = self.cursor;
            self.ring.publish_producer(self.producer);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{memory::split, ring::testing::both, sync::Ordering};

    fn sge(n: u32) -> Sge {
        Sge {
            addr: u64::from(n) << 32,
            length: n,
            lkey: n + 100,
        }
    }

    #[test]
    fn writes_the_layout_of_the_abi() {
        let (ours, theirs) = both(7, 4);
        let mut queue = ReceiveQueue::new(ours, 4);
        let sges = [sge(1), sge(2)];
        assert_eq!(queue.stage(77, sges.into_iter()), Ok(()));
        assert_eq!(theirs.producer(), 0);
        queue.publish();
        assert_eq!(theirs.producer(), 1);
        let wqe = theirs.element(0);
        let at = |offset: usize| wqe[offset / 8].load(Ordering::Relaxed);
        assert_eq!(at(0), 77);
        assert_eq!(split(at(16)), (3, 3));
        assert_eq!(split(at(24)), (0, 2));
        assert_eq!(at(40), 1 << 32);
        assert_eq!(split(at(48)), (1, 101));
        assert_eq!(split(at(64)), (2, 102));
    }

    #[test]
    fn a_refused_request_is_not_posted() {
        let (ours, theirs) = both(7, 4);
        let mut queue = ReceiveQueue::new(ours, 1);
        let two = [sge(1), sge(2)];
        assert_eq!(queue.stage(1, two.into_iter()), Err(PostError::Invalid));
        for n in 0..3 {
            assert_eq!(queue.stage(n, [sge(1)].into_iter()), Ok(()));
        }
        assert_eq!(queue.stage(3, [sge(1)].into_iter()), Err(PostError::Full));
        queue.publish();
        assert_eq!(theirs.producer(), 3);
        theirs.publish_consumer(1);
        assert_eq!(queue.stage(3, [sge(1)].into_iter()), Ok(()));
        queue.publish();
        assert_eq!(theirs.producer(), 0);
    }

    #[test]
    fn a_ring_may_hold_requests_already() {
        let (ours, theirs) = both(6, 8);
        theirs.publish_producer(5);
        theirs.publish_consumer(2);
        let mut queue = ReceiveQueue::new(ours, 1);
        for n in 0..4 {
            assert_eq!(queue.stage(n, [].into_iter()), Ok(()), "{n}");
        }
        assert_eq!(queue.stage(4, [].into_iter()), Err(PostError::Full));
    }
}
