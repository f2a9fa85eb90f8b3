// SPDX-License-Identifier: GPL-2.0

//! Memory of a process as regions have it: pinned, or on demand.

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

/// Whether `mm` is the address space of the calling thread. It is only compared. Any context.
pub(crate) fn is_current_mm(mm: *const bindings::mm_struct) -> bool {
    let is_it = |current: &MmWithUser| core::ptr::eq(current.as_raw().cast(), mm);
    current!().mm().is_some_and(is_it)
}

/// Memory of a process.
pub enum RegionMemory {
    /// It is always there.
    Pinned(UserMemory),
    /// It comes when it is used.
    OnDemand(OnDemand),
}

impl RegionMemory {
    /// Bytes in the range.
    pub fn length(&self) -> u64 {
        match self {
            Self::Pinned(memory) => memory.length(),
            Self::OnDemand(memory) => memory.length(),
        }
    }

    /// Whether it may be written at all.
    pub fn is_writable(&self) -> bool {
        match self {
            Self::Pinned(memory) => memory.is_writable(),
            Self::OnDemand(memory) => memory.is_writable(),
        }
    }

    /// Whether `len` bytes at `offset` are within the range.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        let room = self.length().checked_sub(offset);
        room.is_some_and(|room| len <= room)
    }

    /// The memory on demand, if it is that.
    pub fn on_demand(&self) -> Option<&OnDemand> {
        match self {
            Self::Pinned(_) => None,
            Self::OnDemand(memory) => Some(memory),
        }
    }

    /// The same range for another access, if that takes other memory. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if it isn't pinned or shall not be, and those of [`UserMemory::pin_again`].
    pub fn again(&self, access: Access) -> Result<Option<Self>> {
        let enough = self.is_writable() || !access.writes();
        match self {
            Self::Pinned(_) if access.is_on_demand() => Err(crate::support::error::unsupported()),
            Self::Pinned(_) | Self::OnDemand(_) if enough => Ok(None),
            Self::Pinned(memory) => Ok(Some(Self::Pinned(memory.pin_again(access)?))),
            Self::OnDemand(_) => Err(crate::support::error::unsupported()),
        }
    }
}
