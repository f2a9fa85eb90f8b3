// SPDX-License-Identifier: GPL-2.0

//! Posting to a send queue.
//!
//! Requests are staged in the ring, one slot each, and published together: the kernel sees all of
//! them or none. Both ways to post come down to that: a list of work requests, and the calls of
//! `ibv_wr_start()` to `ibv_wr_complete()`, which fill in a request piece by piece.

use crate::{
    layout::send_wqe,
    memory::Memory,
    operation::{Operation, Transport, Wqe},
    ring::Ring,
    PostError, Sge,
};

const SGE_SIZE: usize = 16;

/// Where a request goes, beside the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The connection's peer.
    Peer,
    /// A shared receive queue of the peer's.
    SharedQueue(u32),
    /// A datagram's.
    Datagram {
        /// The QP.
        qpn: u32,
        /// Its key.
        qkey: u32,
        /// The kernel's number of the address handle.
        ah: u32,
    },
}

/// A payload.
#[derive(Clone, Copy, Debug)]
pub enum Payload<S, B> {
    /// Elements that name it.
    Elements(S),
    /// The bytes themselves, in pieces.
    Inline(B),
}

/// A send queue.
///
/// # Invariants
///
/// `producer` is what was last published. The slots from there up to `cursor` are staged and not the
/// kernel's; there are fewer of them than the ring had room for.
pub struct SendQueue<M> {
    ring: Ring<M>,
    transport: Transport,
    max_sge: usize,
    max_inline: usize,
    producer: u32,
    cursor: u32,
    /// The consumer's index when last looked at.
    consumer: u32,
    /// Why the requests since `start` can't be posted.
    failed: Option<PostError>,
}

impl<M: Memory> SendQueue<M> {
    /// The queue in a ring that nobody posted to yet.
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

    /// The most SGEs of a request.
    pub fn max_sge(&self) -> usize {
        self.max_sge
    }

    /// The kind of the QP.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Forgets all that was posted: the QP went to RESET, and the kernel emptied the ring.
    pub fn reset(&mut self) {
        self.producer = self.ring.producer();
        self.cursor = self.producer;
        self.consumer = self.ring.consumer();
        self.failed = None;
    }

    /// Stages a whole request behind those that are staged.
    ///
    /// # Errors
    ///
    /// The request is left out then; those before it stay staged.
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
            // The operand of an atomic write lies in the request, and nothing can be read into one.
            && match operation {
                Operation::AtomicWrite(_) => inline == Some(8),
                Operation::Read(_) | Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
                    inline.is_none()
                }
                _ => true,
            };
        fits.then_some(()).ok_or(PostError::Invalid)
    }

    /// The slot behind the cursor, if the cursor's is free.
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

    /// Hands all that is staged to the kernel; whether there was anything.
    pub fn publish(&mut self) -> bool {
        if self.cursor == self.producer {
            return false;
        }
        self.producer = self.cursor;
        self.ring.publish_producer(self.producer);
        true
    }

    /// Begins a batch of requests: `ibv_wr_start()`.
    pub fn start(&mut self) {
        self.abandon();
    }

    /// Takes all that is staged back: `ibv_wr_abort()`.
    pub fn abandon(&mut self) {
        self.cursor = self.producer;
        self.failed = None;
    }

    /// Makes the batch fail, if it doesn't already.
    pub fn fail(&mut self, why: PostError) {
        self.failed = self.failed.or(Some(why));
    }

    /// Ends a batch: `ibv_wr_complete()`. Whether anything was published.
    ///
    /// # Errors
    ///
    /// What was wrong with the first request that can't be posted; none of the batch is then.
    pub fn complete(&mut self) -> Result<bool, PostError> {
        match self.failed {
            Some(why) => {
                self.abandon();
                Err(why)
            }
            None => Ok(self.publish()),
        }
    }

    /// Adds a request to the batch; its payload and destination follow.
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

    /// The request that was opened last; `None` if there is none, or the batch failed.
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

    /// Names the destination of the request that was opened last.
    pub fn set_destination(&mut self, destination: Destination) {
        let Some(wqe) = self.opened() else { return };
        match destination {
            Destination::Peer => {}
            Destination::SharedQueue(srqn) => wqe.srqn(srqn),
            Destination::Datagram { qpn, qkey, ah } => wqe.datagram(qpn, qkey, ah),
        }
    }

    /// Names the payload of the request that was opened last.
    pub fn set_sges(&mut self, sges: impl ExactSizeIterator<Item = Sge>) {
        if sges.len() > self.max_sge {
            self.fail(PostError::Invalid);
        }
        if let Some(wqe) = self.opened() {
            wqe.sges(sges);
        }
    }

    /// Copies the payload of the request that was opened last.
    pub fn set_inline<'b>(&mut self, buffers: impl Iterator<Item = &'b [u8]> + Clone) {
        if total(buffers.clone()) > self.max_inline {
            self.fail(PostError::Invalid);
        }
        if let Some(wqe) = self.opened() {
            wqe.inline(buffers);
        }
    }

    /// Copies the operand of the atomic write that was opened last.
    pub fn set_operand(&mut self, operand: &[u8; 8]) {
        if let Some(wqe) = self.opened() {
            wqe.inline([operand.as_slice()].into_iter());
        }
    }
}

fn total<'b>(buffers: impl Iterator<Item = &'b [u8]>) -> usize {
    buffers.fold(0, |sum, buffer| sum.saturating_add(buffer.len()))
}

/// Room that the operand of an atomic write needs, whatever the QP was made for.
fn atomic_write(operation: &Operation) -> usize {
    match operation {
        Operation::AtomicWrite(_) => 8,
        _ => 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
