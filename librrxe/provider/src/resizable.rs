// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Queues that are resized: the kernel replaces their rings by other ones.

use core::ffi::c_int;

use rrxe_rings::{completion::CompletionQueue, receive::ReceiveQueue, ring::Ring};

use crate::{bindings::mminfo, memory::Mapping};

/// Queue that the kernel may move to another ring.
pub(crate) trait Movable {
    /// Returns the queue in the ring to which the kernel moved the contents.
    fn moved_to(&self, ring: Ring<Mapping>) -> Self;
}

impl Movable for CompletionQueue<Mapping> {
    fn moved_to(&self, ring: Ring<Mapping>) -> Self {
        Self::new(ring)
    }
}

impl Movable for ReceiveQueue<Mapping> {
    fn moved_to(&self, ring: Ring<Mapping>) -> Self {
        Self::new(ring, u32::try_from(self.max_sge()).unwrap_or(u32::MAX))
    }
}

/// Queue, and the location of its new ring while that is not mapped.
///
/// The mapping can fail after the kernel has resized the queue, for example for lack of address
/// space. Then each use of the queue tries it again. The old ring is not used any more, because the
/// kernel no longer reads or writes it.
pub(crate) struct Resizable<Q> {
    queue: Q,
    /// File descriptor of the device and location of the kernel's ring, unless `queue` uses that
    /// ring.
    unmapped: Option<(c_int, mminfo)>,
}

impl<Q: Movable> Resizable<Q> {
    /// Creates a queue whose ring is mapped.
    pub(crate) fn new(queue: Q) -> Self {
        Self {
            queue,
            unmapped: None,
        }
    }

    /// Returns the queue, after it has mapped a new ring that is not mapped yet.
    ///
    /// # Errors
    ///
    /// errno of the mapping.
    #[inline]
    pub(crate) fn queue(&mut self) -> Result<&mut Q, c_int> {
        match self.unmapped {
            None => Ok(&mut self.queue),
            Some((fd, place)) => self.move_to(fd, place),
        }
    }

    /// Returns the queue in the ring that is mapped. The caller has called [`queue`](Self::queue)
    /// with success, and has held the queue's lock since.
    pub(crate) fn mapped(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Maps the ring at `place` of the device `fd`, to which the kernel has moved the contents, and
    /// returns the queue in that ring.
    ///
    /// # Errors
    ///
    /// errno of the mapping. The queue is unusable then, until [`queue`](Self::queue) has mapped
    /// the ring.
    #[cold]
    pub(crate) fn move_to(&mut self, fd: c_int, place: mminfo) -> Result<&mut Q, c_int> {
        self.unmapped = Some((fd, place));
        self.queue = self.queue.moved_to(Mapping::ring(fd, &place)?);
        self.unmapped = None;
        Ok(&mut self.queue)
    }
}
