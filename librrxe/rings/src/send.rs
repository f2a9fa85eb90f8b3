// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Posting to send queues.
//!
//! Requests are staged in the ring, one in each slot, and published together. So the kernel sees
//! all of them or none. Both ways to post use this: lists of work requests (`ibv_post_send()`), and
//! the calls from `ibv_wr_start()` to `ibv_wr_complete()`, which write a request field by field.

use crate::{
    layout::send_wqe,
    memory::Memory,
    operation::{Operation, Transport, Wqe},
    ring::Ring,
    PostError, Sge,
};

/// Size of an SGE in bytes.
const SGE_SIZE: usize = 16;

/// Destination of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Peer of the connection.
    Peer,
    /// Shared receive queue of the connection's peer (XRC), by its number.
    SharedQueue(u32),
    /// Destination of a datagram.
    Datagram {
        /// Number of the QP.
        qpn: u32,
        /// Q_Key of the QP.
        qkey: u32,
        /// Number that the kernel gave to the address handle.
        ah: u32,
    },
}

/// Payload of a request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<S, B> {
    /// SGEs that describe the payload.
    Elements(S),
    /// Bytes of the payload, in pieces (inline payload).
    Inline(B),
}

/// Send queue.
///
/// # Invariants
///
/// `producer` is the producer index that was published last. The slots from `producer` up to
/// `cursor` are staged: written, but not published. They were free when they were written.
pub struct SendQueue<M> {
    ring: Ring<M>,
    transport: Transport,
    max_sge: usize,
    max_inline: usize,
    producer: u32,
    cursor: u32,
    /// Consumer index as read last.
    consumer: u32,
    /// Error of the batch that `start` began, if it failed.
    failed: Option<PostError>,
}

impl<M: Memory> SendQueue<M> {
    /// Creates the queue of a ring to which no request was posted yet.
    pub fn new(ring: Ring<M>, transport: Transport, max_sge: u32, max_inline: u32) -> Self {
        let room = ring.room_behind(send_wqe::PAYLOAD);
        let producer = ring.producer();
        Self {
            transport,
            max_sge: (max_sge as usize).min(room / SGE_SIZE),
            max_inline: (max_inline as usize).min(room),
            producer,
            cursor: producer,
            consumer: ring.consumer(),
            failed: None,
            ring,
        }
    }

    /// Returns the largest number of SGEs of a request.
    pub fn max_sge(&self) -> usize {
        self.max_sge
    }

    /// Returns the type of the QP.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Starts anew after the QP went to RESET: the kernel has emptied the ring, and all posted
    /// requests are gone.
    pub fn reset(&mut self) {
        self.producer = self.ring.producer();
        self.cursor = self.producer;
        self.consumer = self.ring.consumer();
        self.failed = None;
    }

    /// Stages a whole request after those that are already staged.
    ///
    /// # Errors
    ///
    /// [`PostError::Invalid`] if the QP does not support the operation or the payload;
    /// [`PostError::Full`] if the ring is full. The request is not staged then. Those before it
    /// stay staged.
    pub fn stage<'b, S, B>(
        &mut self,
        wr_id: u64,
        flags: u32,
        operation: &Operation,
        destination: Destination,
        payload: Payload<S, B>,
    ) -> Result<(), PostError>
    where
        S: ExactSizeIterator<Item = Sge>,
        B: ExactSizeIterator<Item = &'b [u8]> + Clone,
    {
        self.check(operation, &payload)?;
        let next = self.room()?;
        let wqe = Wqe(self.ring.element(self.cursor));
        wqe.begin(wr_id, flags, operation);
        match destination {
            Destination::Peer => {}
            Destination::SharedQueue(srqn) => wqe.srqn(srqn),
            Destination::Datagram { qpn, qkey, ah } => wqe.datagram(qpn, qkey, ah),
        }
        match payload {
            _ if !operation.takes_payload() => {}
            Payload::Elements(sges) => wqe.sges(sges),
            Payload::Inline(buffers) => wqe.inline(buffers),
        }
        self.cursor = next;
        Ok(())
    }

    /// Checks that the QP supports the operation with this payload.
    ///
    /// # Errors
    ///
    /// [`PostError::Invalid`].
    fn check<'b, S, B>(
        &self,
        operation: &Operation,
        payload: &Payload<S, B>,
    ) -> Result<(), PostError>
    where
        S: ExactSizeIterator<Item = Sge>,
        B: ExactSizeIterator<Item = &'b [u8]> + Clone,
    {
        let (count, inline) = match payload {
            Payload::Elements(sges) => (sges.len(), None),
            Payload::Inline(buffers) => (buffers.len(), Some(total(buffers.clone()))),
        };
        let fits = operation.fits(self.transport)
            && count <= self.max_sge.max(1)
            && (operation.takes_payload() || count == 0)
            && inline.unwrap_or(0) <= self.max_inline.max(atomic_write(operation))
            // The operand of an ATOMIC WRITE is inline. The result of a READ or an atomic cannot be
            // stored inline.
            && match operation {
                Operation::AtomicWrite(_) => inline == Some(8),
                Operation::Read(_) | Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
                    inline.is_none()
                }
                _ => true,
            };
        fits.then_some(()).ok_or(PostError::Invalid)
    }

    /// Returns the slot after the cursor, if the slot at the cursor is free.
    fn room(&mut self) -> Result<u32, PostError> {
        let next = self.ring.after(self.cursor);
        if next == self.consumer {
            self.consumer = self.ring.consumer();
            if next == self.consumer {
                return Err(PostError::Full);
            }
        }
        Ok(next)
    }

    /// Publishes all staged requests to the kernel. Returns whether there were any.
    pub fn publish(&mut self) -> bool {
        if self.cursor == self.producer {
            return false;
        }
        self.producer = self.cursor;
        self.ring.publish_producer(self.producer);
        true
    }

    /// Begins a batch of requests (`ibv_wr_start()`).
    pub fn start(&mut self) {
        self.abandon();
    }

    /// Drops all staged requests (`ibv_wr_abort()`).
    pub fn abandon(&mut self) {
        self.cursor = self.producer;
        self.failed = None;
    }

    /// Lets the batch fail with `why`, unless it has already failed.
    pub fn fail(&mut self, why: PostError) {
        self.failed = self.failed.or(Some(why));
    }

    /// Ends a batch (`ibv_wr_complete()`). Returns whether any request was published.
    ///
    /// # Errors
    ///
    /// The error of the first request that cannot be posted. No request of the batch is published
    /// then.
    pub fn complete(&mut self) -> Result<bool, PostError> {
        match self.failed {
            Some(why) => {
                self.abandon();
                Err(why)
            }
            None => Ok(self.publish()),
        }
    }

    /// Adds a request to the batch. Its payload and its destination are set by later calls.
    pub fn open(&mut self, wr_id: u64, flags: u32, operation: &Operation) {
        if self.failed.is_some() {
            return;
        }
        if !operation.fits(self.transport) {
            self.failed = Some(PostError::Invalid);
            return;
        }
        match self.room() {
            Ok(next) => {
                Wqe(self.ring.element(self.cursor)).begin(wr_id, flags, operation);
                self.cursor = next;
            }
            Err(why) => self.failed = Some(why),
        }
    }

    /// Returns the WQE of the request that was opened last. Returns `None` if there is none or the
    /// batch has failed.
    fn opened(&mut self) -> Option<Wqe<'_>> {
        if self.failed.is_some() {
            return None;
        }
        if self.cursor == self.producer {
            self.failed = Some(PostError::Invalid);
            return None;
        }
        let last = self.ring.before(self.cursor);
        Some(Wqe(self.ring.element(last)))
    }

    /// Sets the destination of the request that was opened last.
    pub fn set_destination(&mut self, destination: Destination) {
        let Some(wqe) = self.opened() else { return };
        match destination {
            Destination::Peer => {}
            Destination::SharedQueue(srqn) => wqe.srqn(srqn),
            Destination::Datagram { qpn, qkey, ah } => wqe.datagram(qpn, qkey, ah),
        }
    }

    /// Sets the payload of the request that was opened last to SGEs.
    pub fn set_sges(&mut self, sges: impl ExactSizeIterator<Item = Sge>) {
        if sges.len() > self.max_sge {
            self.fail(PostError::Invalid);
        }
        if let Some(wqe) = self.opened() {
            wqe.sges(sges);
        }
    }

    /// Sets the payload of the request that was opened last to inline data: copies the concatenated
    /// `buffers`.
    pub fn set_inline<'b>(&mut self, buffers: impl Iterator<Item = &'b [u8]> + Clone) {
        if total(buffers.clone()) > self.max_inline {
            self.fail(PostError::Invalid);
        }
        if let Some(wqe) = self.opened() {
            wqe.inline(buffers);
        }
    }

    /// Sets the operand of the ATOMIC WRITE that was opened last.
    pub fn set_operand(&mut self, operand: &[u8; 8]) {
        if let Some(wqe) = self.opened() {
            wqe.inline([operand.as_slice()].into_iter());
        }
    }
}

/// Returns the total length of `buffers` in bytes.
fn total<'b>(buffers: impl Iterator<Item = &'b [u8]>) -> usize {
    buffers.fold(0, |sum, buffer| sum.saturating_add(buffer.len()))
}

/// Returns the number of inline bytes that the operation needs even if the QP was created with
/// less: 8 for an ATOMIC WRITE, else 0.
fn atomic_write(operation: &Operation) -> usize {
    match operation {
        Operation::AtomicWrite(_) => 8,
        _ => 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
