// SPDX-License-Identifier: GPL-2.0

//! A receive ring, of one QP or shared by several.

use std::collections::VecDeque;

use roce::wc::WcStatus;
use roce::wr::{RecvSlot, RecvWr};

/// What is wrong with a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvFault {
    None,
    /// The host refuses it when it is taken.
    Malformed(WcStatus),
    /// Its memory isn't there when bytes come.
    Unreachable,
}

/// A posted receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) slot: u32,
    pub(crate) length: u32,
    /// Where its buffer lies.
    pub(crate) at: usize,
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

/// A receive ring. Slots are buffers of equal size.
#[derive(Debug)]
pub(crate) struct RecvRing {
    pub(crate) posted: VecDeque<Receive>,
    pub(crate) free: Vec<u32>,
    pub(crate) capacity: u32,
    area: usize,
    size: u32,
    next_id: u64,
}

impl RecvRing {
    pub(crate) fn new(area: usize, size: u32, capacity: u32, name: u64) -> Self {
        Self {
            posted: VecDeque::new(),
            free: (0..capacity).rev().collect(),
            capacity,
            area,
            size,
            next_id: name << 32,
        }
    }

    /// Posts a receive of at most the slot's size, if there is room.
    pub(crate) fn post(&mut self, length: u32, fault: RecvFault) -> Option<u64> {
        let slot = self.free.pop()?;
        let wr_id = self.next_id;
        self.next_id += 1;
        self.posted.push_back(Receive {
            wr_id,
            slot,
            length: length.min(self.size),
            at: self.area + slot as usize * self.size as usize,
            fault,
        });
        Some(wr_id)
    }

    /// RESET: what is posted is gone.
    pub(crate) fn clear(&mut self) {
        self.free
            .extend(self.posted.drain(..).map(|receive| receive.slot));
    }
}
