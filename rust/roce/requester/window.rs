// SPDX-License-Identifier: GPL-2.0

//! The WQEs that the requester has taken from the send queue and not given back, oldest first.

use super::wqe::SendWqe;
use crate::qp::Slots;

/// A ring buffer over the host's storage.
///
/// # Invariants
///
/// `len` is at most the length of the storage. `head` is less than that length, unless the storage
/// is empty.
#[derive(Debug)]
pub(super) struct Window<W> {
    slots: W,
    head: usize,
    len: u32,
}

impl<W: Slots<SendWqe>> Window<W> {
    /// Creates an empty window over the host's storage.
    pub(super) fn new(slots: W) -> Self {
        Self {
            slots,
            head: 0,
            len: 0,
        }
    }

    /// Returns the number of WQEs.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the storage is full.
    pub(super) fn is_full(&self) -> bool {
        usize::try_from(self.len).is_ok_and(|len| len >= self.slots.len())
    }

    /// Returns the WQE `offset` places after the oldest.
    pub(super) fn get(&self, offset: u32) -> Option<&SendWqe> {
        if offset >= self.len {
            return None;
        }
        self.slots.get(self.index(offset)?)
    }

    /// Returns the WQE `offset` places after the oldest, for writing.
    pub(super) fn get_mut(&mut self, offset: u32) -> Option<&mut SendWqe> {
        if offset >= self.len {
            return None;
        }
        let index = self.index(offset)?;
        self.slots.get_mut(index)
    }

    /// Adds the newest WQE. The caller guarantees that the window isn't full.
    pub(super) fn push(&mut self, wqe: SendWqe) {
        let index = self.index(self.len);
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) {
            *slot = wqe;
            self.len = self.len.saturating_add(1);
        }
    }

    /// Removes and returns the oldest WQE.
    pub(super) fn pop(&mut self) -> Option<&SendWqe> {
        let len = self.len.checked_sub(1)?;
        let oldest = self.head;
        self.head = self.index(1)?;
        self.len = len;
        self.slots.get(oldest)
    }

    /// Returns the index in the storage of the WQE `offset` places after the oldest.
    fn index(&self, offset: u32) -> Option<usize> {
        let index = self.head.checked_add(usize::try_from(offset).ok()?)?;
        Some(index.checked_sub(self.slots.len()).unwrap_or(index))
    }
}
