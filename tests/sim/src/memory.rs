// SPDX-License-Identifier: GPL-2.0

//! A node's memory, the regions that grant access to it, and the shadow, which only the oracle
//! writes.

use roce::host::{AccessFault, RemoteAccess};
use roce::ids::Rkey;

/// The access that a region's key grants to peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) atomic: bool,
    pub(crate) flush: bool,
}

/// A memory region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) key: u32,
    /// The region's first virtual address, as an offset from [`Memory::base`].
    pub(crate) start: usize,
    /// Index of the region's first byte in [`Memory::bytes`].
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) grant: Grant,
    pub(crate) live: bool,
}

/// The memory of a node.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The virtual address of byte 0.
    pub(crate) base: u64,
    /// The content that the engine's host writes.
    pub(crate) bytes: Vec<u8>,
    /// The content that the oracle expects.
    pub(crate) shadow: Vec<u8>,
    pub(crate) regions: Vec<Region>,
    /// Fault that [`Self::grant`] returns for every access while the current packet is handled.
    pub(crate) inject: Option<AccessFault>,
}

impl Memory {
    /// Returns the index of the first byte of a range, if a peer may access the range in this way.
    pub(crate) fn grant(
        &self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<usize, AccessFault> {
        if let Some(fault) = self.inject {
            return Err(fault);
        }
        let region = self
            .regions
            .iter()
            .find(|region| region.live && region.key == rkey.0)
            .ok_or(AccessFault::Denied)?;
        let granted = match access {
            RemoteAccess::Read => region.grant.read,
            RemoteAccess::Write => region.grant.write,
            RemoteAccess::Atomic => region.grant.atomic,
            RemoteAccess::Flush(_) => region.grant.flush,
        };
        let start = self.base + region.start as u64;
        let offset = va.checked_sub(start).ok_or(AccessFault::Denied)?;
        let fits = offset <= region.len as u64 && u64::from(length) <= region.len as u64 - offset;
        if !granted || !fits {
            return Err(AccessFault::Denied);
        }
        Ok(region.at + offset as usize)
    }

    pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    }

    pub(crate) fn store(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// Compares a range with its shadow.
    pub(crate) fn verify(&self, at: usize, len: usize) -> Result<(), String> {
        if self.bytes[at..at + len] == self.shadow[at..at + len] {
            return Ok(());
        }
        let wrong = (at..at + len)
            .find(|&i| self.bytes[i] != self.shadow[i])
            .unwrap_or(at);
        Err(format!(
            "memory differs from the model at offset {wrong:#x}: {:#04x}, should be {:#04x}",
            self.bytes[wrong], self.shadow[wrong]
        ))
    }

    /// Compares all memory with its shadow.
    pub(crate) fn verify_all(&self) -> Result<(), String> {
        self.verify(0, self.bytes.len())
    }
}
