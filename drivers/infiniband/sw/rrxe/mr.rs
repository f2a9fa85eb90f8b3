// SPDX-License-Identifier: GPL-2.0

//! Memory regions: the table of keys, and the check that every access goes through.
//!
//! A key is a region's place in the table and eight more bits, all of it random, and it opens only
//! what belongs to the protection domain of who uses it. Regions are looked up and used under RCU;
//! deregistration takes the region out of the table and waits for the users, so that after it
//! returns nobody touches the memory any more.

use core::ops::RangeInclusive;

use kernel::{
    prelude::*,
    sync::{Arc, ArcBorrow},
};
use rdma::{
    fast_mr::{kernel_span, FastMemory, Registration},
    mr::{Access, MrKeys, Span, UserRegion},
    table::Table,
    umem::UserMemory,
};
use roce::{
    host::{AccessFault, LocalAccess, RemoteAccess},
    ids::{Lkey, Rkey},
};

use crate::{limits, pd::PdId};

/// Places of the table: 24 bits. Zero is left out, so that no key is zero.
const PLACES: RangeInclusive<u32> = 1..=0xff_ffff;

/// A memory region.
pub(crate) struct Mr {
    pd: PdId,
    /// Local and remote key are the same.
    key: u32,
    memory: Memory,
}

/// What a region is made of.
enum Memory {
    /// Memory of a process, named from `iova` on.
    User {
        memory: UserMemory,
        iova: u64,
        access: Access,
    },
    /// All of the kernel's.
    Kernel(Access),
    /// What work requests of the kernel register.
    Fast(Pin<KBox<FastMemory>>),
}

impl Mr {
    /// The keys.
    pub(crate) fn keys(&self) -> MrKeys {
        MrKeys {
            lkey: Lkey(self.key),
            rkey: Rkey(self.key),
        }
    }

    /// The memory of a region for fast registration.
    pub(crate) fn fast_memory(&self) -> Option<&FastMemory> {
        match &self.memory {
            Memory::Fast(memory) => Some(memory),
            _ => None,
        }
    }

    /// Runs `f` on `length` bytes at address `addr`, if they are within the region, `key` opens it and
    /// `allows` says that its rights suffice.
    #[inline]
    fn with<R>(
        &self,
        key: u32,
        addr: u64,
        length: u32,
        allows: impl FnOnce(Access) -> bool,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Option<R> {
        let (access, span) = match &self.memory {
            Memory::Fast(memory) => return memory.with(key, addr, length, allows, f),
            _ if key != self.key => return None,
            Memory::User {
                memory,
                iova,
                access,
            } => (*access, memory.span(addr.checked_sub(*iova)?, length)?),
            Memory::Kernel(access) => (*access, kernel_span(addr, length)?),
        };
        allows(access).then(|| f(span))
    }

    /// Whether `key` opens the region and `allows` says that its rights suffice.
    fn grants(&self, key: u32, allows: impl FnOnce(Access) -> bool) -> bool {
        match &self.memory {
            Memory::Fast(memory) => memory.grants(key, allows),
            Memory::User { access, .. } | Memory::Kernel(access) => {
                key == self.key && allows(*access)
            }
        }
    }
}

/// All regions of a device.
///
/// The accessors run in any context that the data path runs in, and their closures under RCU: those
/// must not sleep.
#[pin_data]
pub(crate) struct MrTable {
    #[pin]
    regions: Table<Mr>,
}

impl MrTable {
    /// Initialises an empty table.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            regions <- Table::new(),
        })
    }

    /// Makes `region` accessible in protection domain `pd`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EBUSY` when there is no place left.
    pub(crate) fn register(&self, pd: PdId, region: UserRegion) -> Result<Arc<Mr>> {
        let memory = Memory::User {
            memory: region.memory,
            iova: region.iova,
            access: region.access,
        };
        self.publish(pd, memory)
    }

    /// Makes all of the kernel's memory accessible in protection domain `pd`. Process context.
    ///
    /// # Errors
    ///
    /// As for [`Self::register`].
    pub(crate) fn register_kernel(&self, pd: PdId, access: Access) -> Result<Arc<Mr>> {
        self.publish(pd, Memory::Kernel(access))
    }

    /// Makes a region for fast registration of at most `max_pages` pages. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more pages than the limit; as for [`Self::register`].
    pub(crate) fn alloc_fast(&self, pd: PdId, max_pages: u32) -> Result<Arc<Mr>> {
        if max_pages == 0 || max_pages > limits::MAX_FAST_REG_PAGES {
            return Err(EINVAL);
        }
        self.publish(pd, Memory::Fast(FastMemory::new(max_pages)?))
    }

    fn publish(&self, pd: PdId, memory: Memory) -> Result<Arc<Mr>> {
        let place = self.regions.reserve_random(PLACES)?;
        let mr = Arc::new(
            Mr {
                pd,
                key: place.id().wrapping_shl(8) | (rdma::random::next_u32() & 0xff),
                memory,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        place.publish(mr.clone());
        Ok(mr)
    }

    /// Takes `mr` away: when this returns, nobody accesses its memory. Process context.
    pub(crate) fn deregister(&self, mr: &Mr) {
        drop(self.regions.remove(mr.key >> 8));
    }

    /// Runs `f` on `length` bytes at `addr` of the caller's own memory.
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain, a range beyond the region or a right
    /// that was not given.
    #[inline]
    pub(crate) fn with_local<R>(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        length: u32,
        access: LocalAccess,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        let allows = |rights: Access| rights.allows_local(access);
        self.with(pd, lkey.0, |mr| mr.with(lkey.0, addr, length, allows, f))
    }

    /// Runs `f` on `length` bytes at `va` on behalf of a peer.
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain, a range beyond the region or a right
    /// that was not granted.
    #[inline]
    pub(crate) fn with_remote<R>(
        &self,
        pd: PdId,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        let allows = |rights: Access| rights.allows_remote(access);
        self.with(pd, rkey.0, |mr| mr.with(rkey.0, va, length, allows, f))
    }

    /// Checks that a peer may use the region as a whole.
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain or a right that was not granted.
    pub(crate) fn check_region(
        &self,
        pd: PdId,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        let allows = |rights: Access| rights.allows_remote(access);
        self.with(pd, rkey.0, |mr| mr.grants(rkey.0, allows).then_some(()))
    }

    /// Invalidates a key by a work request or for a peer.
    ///
    /// # Errors
    ///
    /// `Denied`: only windows and fast-registered regions can be invalidated (IBTA 1.x §10.6.5), by the
    /// key under which they are valid.
    pub(crate) fn invalidate(&self, pd: PdId, key: Rkey) -> Result<(), AccessFault> {
        self.with(pd, key.0, |mr| {
            mr.fast_memory()?.invalidate(key.0).then_some(())
        })
    }

    /// Carries out a fast registration.
    ///
    /// # Errors
    ///
    /// `Denied` for another protection domain, a region that isn't free, or rights that contradict one
    /// another.
    pub(crate) fn register_fast(
        &self,
        pd: PdId,
        registration: Registration,
    ) -> Result<(), AccessFault> {
        self.with(pd, registration.key, |mr| {
            mr.fast_memory()?.register(registration).ok()
        })
    }

    #[inline]
    fn with<R>(
        &self,
        pd: PdId,
        key: u32,
        f: impl FnOnce(ArcBorrow<'_, Mr>) -> Option<R>,
    ) -> Result<R, AccessFault> {
        self.regions
            .with(key >> 8, |mr| if mr.pd == pd { f(mr) } else { None })
            .flatten()
            .ok_or(AccessFault::Denied)
    }
}
