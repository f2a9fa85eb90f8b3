// SPDX-License-Identifier: GPL-2.0

//! Memory that memory regions (MRs) expose: pinned memory, on-demand memory (ODP), device memory,
//! dma-bufs, and memory of in-kernel consumers.

pub(crate) mod copy;
pub(crate) mod direct_map;
pub mod dm;
pub(crate) mod dma_buf;
pub(crate) mod extent;
pub mod fast_mr;
pub mod odp;
pub(crate) mod span;
pub mod umem;

use kernel::{mm::MmWithUser, prelude::*};

use crate::{
    bindings,
    memory::{odp::OnDemand, umem::UserMemory},
    verbs::mr::Access,
};

/// Returns whether `mm` is the address space of the calling thread. The pointer is only compared,
/// never dereferenced. Any context.
pub(crate) fn is_current_mm(mm: *const bindings::mm_struct) -> bool {
    let is_it = |current: &MmWithUser| core::ptr::eq(current.as_raw().cast(), mm);
    current!().mm().is_some_and(is_it)
}

/// Memory that a memory region of a process exposes.
pub enum RegionMemory {
    /// Pinned memory: its pages stay in place until the region ends.
    Pinned(UserMemory),
    /// On-demand memory: its pages are made present by page faults.
    OnDemand(OnDemand),
}

impl RegionMemory {
    /// Returns the length of the range in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Pinned(memory) => memory.length(),
            Self::OnDemand(memory) => memory.length(),
        }
    }

    /// Returns whether the memory may be written at all.
    pub fn is_writable(&self) -> bool {
        match self {
            Self::Pinned(memory) => memory.is_writable(),
            Self::OnDemand(memory) => memory.is_writable(),
        }
    }

    /// Returns whether `len` bytes at `offset` (in bytes from the start of the range) are within
    /// the range.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        let room = self.length().checked_sub(offset);
        room.is_some_and(|room| len <= room)
    }

    /// Returns the on-demand memory, or `None` if the memory is pinned.
    pub fn on_demand(&self) -> Option<&OnDemand> {
        match self {
            Self::Pinned(_) => None,
            Self::OnDemand(memory) => Some(memory),
        }
    }

    /// Prepares the same range for other access rights, as `rereg_user_mr` requests. Returns `None`
    /// if the current memory serves the new rights as well. Otherwise pins the range anew and
    /// returns the new memory. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the memory is on-demand and must be made writable, or if the memory is
    /// pinned and `access` requests on-demand memory. The errors of [`UserMemory::pin_again`].
    pub fn with_access(&self, access: Access) -> Result<Option<Self>> {
        let enough = self.is_writable() || !access.writes();
        match self {
            Self::Pinned(_) if access.is_on_demand() => Err(crate::support::error::unsupported()),
            Self::Pinned(_) | Self::OnDemand(_) if enough => Ok(None),
            Self::Pinned(memory) => Ok(Some(Self::Pinned(memory.pin_again(access)?))),
            Self::OnDemand(_) => Err(crate::support::error::unsupported()),
        }
    }
}
