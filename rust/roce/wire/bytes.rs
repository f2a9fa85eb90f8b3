// SPDX-License-Identifier: GPL-2.0

//! Byte strings of limited length: a writer that can't overflow and a reader that can't overrun.

use core::ops::Deref;

use super::DropReason;

/// A string of at most `N` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Bytes<N> {
    /// Creates an empty string.
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }

    /// Appends `piece`, or nothing if it doesn't fit. Each caller chooses `N` as the length of the
    /// longest combination of pieces that it writes.
    pub(super) fn put<const L: usize>(&mut self, piece: [u8; L]) {
        let room = self.bytes.get_mut(self.len..);
        if let Some(chunk) = room.and_then(|room| room.first_chunk_mut::<L>()) {
            *chunk = piece;
            self.len = self.len.wrapping_add(L);
        }
    }

    /// Appends `piece` as [`Self::put`] does, with the bits of each mask set in the byte at its
    /// offset.
    pub(super) fn put_masked<const L: usize>(&mut self, piece: &[u8; L], masks: &[(usize, u8)]) {
        let room = self.bytes.get_mut(self.len..);
        if let Some(chunk) = room.and_then(|room| room.first_chunk_mut::<L>()) {
            *chunk = *piece;
            for (place, mask) in masks {
                if let Some(byte) = chunk.get_mut(*place) {
                    *byte |= mask;
                }
            }
            self.len = self.len.wrapping_add(L);
        }
    }

    /// Appends `piece` if it fits. Returns whether it did.
    pub(super) fn join(&mut self, piece: &[u8]) -> bool {
        let rest = self.bytes.get_mut(self.len..).unwrap_or_default();
        let Some((room, _)) = rest.split_at_mut_checked(piece.len()) else {
            return false;
        };
        room.copy_from_slice(piece);
        self.len = self.len.wrapping_add(piece.len());
        true
    }
}

impl<const N: usize> Deref for Bytes<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The bytes that are still to be read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    /// Reads the next `L` bytes.
    ///
    /// # Errors
    ///
    /// Returns [`DropReason::TooShort`] if fewer are left.
    pub(super) fn take<const L: usize>(&mut self) -> Result<[u8; L], DropReason> {
        let (piece, rest) = self
            .0
            .split_first_chunk::<L>()
            .ok_or(DropReason::TooShort)?;
        self.0 = rest;
        Ok(*piece)
    }

    /// Reads the next big-endian 32-bit word.
    pub(super) fn take_u32(&mut self) -> Result<u32, DropReason> {
        self.take().map(u32::from_be_bytes)
    }

    /// Reads the next big-endian 64-bit word.
    pub(super) fn take_u64(&mut self) -> Result<u64, DropReason> {
        self.take().map(u64::from_be_bytes)
    }
}
