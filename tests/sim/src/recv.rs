// SPDX-License-Identifier: GPL-2.0

//! A receive ring, of one QP or shared by several QPs.

use std::collections::VecDeque;

use roce::ids::Srqn;
use roce::wc::WcStatus;
use roce::wr::{RecvSlot, RecvWr};

/// A fault of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvFault {
    None,
    /// The host refuses the receive when it is taken.
    Malformed(WcStatus),
    /// The memory of the receive is missing when the host stores bytes in it.
    Unreachable,
}

/// A posted receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) slot: u32,
    pub(crate) length: u32,
    /// Offset of its buffer in memory.
    pub(crate) at: usize,
    /// Index of its ring.
    pub(crate) ring: usize,
    pub(crate) fault: RecvFault,
}

impl Receive {
    pub(crate) fn wr(&self) -> RecvWr {
        RecvWr {
            slot: RecvSlot(self.slot),
            wr_id: self.wr_id,
            length: self.length,
        }
    }
}

/// A receive ring. Its slots are buffers of equal size.
#[derive(Debug)]
pub(crate) struct RecvRing {
    pub(crate) posted: VecDeque<Receive>,
    pub(crate) free: Vec<u32>,
    pub(crate) capacity: u32,
    area: usize,
    size: u32,
    index: usize,
    next_id: u64,
}

/// Indices of the rings that XRC requests may name, at the node with the XRC target QPs.
pub(crate) const XRC_RINGS: [usize; 2] = [1, 3];

/// Index of a ring at the same node that belongs to another XRC domain.
pub(crate) const FOREIGN_RING: usize = 5;

/// Returns the number of the shared receive queue with this ring.
pub(crate) fn srqn(ring: usize) -> Srqn {
    Srqn::new(0xab_cd00 + ring as u32)
}

/// Returns the ring of the XRC domain's shared receive queue with this number.
pub(crate) fn named_ring(named: Srqn) -> Option<usize> {
    XRC_RINGS.into_iter().find(|ring| srqn(*ring) == named)
}

impl RecvRing {
    pub(crate) fn new(area: usize, size: u32, capacity: u32, index: usize) -> Self {
        Self {
            posted: VecDeque::new(),
            free: (0..capacity).rev().collect(),
            capacity,
            area,
            size,
            index,
            next_id: (index as u64 + 1) << 32,
        }
    }

    /// Posts a receive of at most the slot's size. Returns its `wr_id`, or `None` if the ring is
    /// full.
    pub(crate) fn post(&mut self, length: u32, fault: RecvFault) -> Option<u64> {
        let slot = self.free.pop()?;
        let wr_id = self.next_id;
        self.next_id += 1;
        self.posted.push_back(Receive {
            wr_id,
            slot,
            length: length.min(self.size),
            at: self.area + slot as usize * self.size as usize,
            ring: self.index,
            fault,
        });
        Some(wr_id)
    }

    /// Removes all posted receives, as RESET does.
    pub(crate) fn clear(&mut self) {
        self.free
            .extend(self.posted.drain(..).map(|receive| receive.slot));
    }
}
