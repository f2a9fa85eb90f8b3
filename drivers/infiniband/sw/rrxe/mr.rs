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
    mr::{Access, MrKeys, Span, UserRegion},
    table::Table,
    umem::UserMemory,
};
use roce::{
    host::{AccessFault, LocalAccess, RemoteAccess},
    ids::{Lkey, Rkey},
};

use crate::pd::PdId;

/// Places of the table: 24 bits. Zero is left out, so that no key is zero.
const PLACES: RangeInclusive<u32> = 1..=0xff_ffff;

/// A memory region.
pub(crate) struct Mr {
    pd: PdId,
    /// Local and remote key are the same.
    key: u32,
    access: Access,
    iova: u64,
    memory: UserMemory,
}

impl Mr {
    /// The keys.
    pub(crate) fn keys(&self) -> MrKeys {
        MrKeys {
            lkey: Lkey(self.key),
            rkey: Rkey(self.key),
        }
    }

    /// The span of `length` bytes at address `addr`, if it is within the region.
    #[inline]
    fn span(&self, addr: u64, length: u32) -> Option<Span<'_>> {
        self.memory.span(addr.checked_sub(self.iova)?, length)
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
        let place = self.regions.reserve_random(PLACES)?;
        let mr = Arc::new(
            Mr {
                pd,
                key: place.id().wrapping_shl(8) | (rdma::random::next_u32() & 0xff),
                access: region.access,
                iova: region.iova,
                memory: region.memory,
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
        self.with(pd, lkey.0, |mr| {
            let span = mr
                .span(addr, length)
                .filter(|_| mr.access.allows_local(access));
            span.map(f)
        })
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
        self.with(pd, rkey.0, |mr| {
            let span = mr
                .span(va, length)
                .filter(|_| mr.access.allows_remote(access));
            span.map(f)
        })
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
        self.with(pd, rkey.0, |mr| {
            mr.access.allows_remote(access).then_some(())
        })
    }

    /// Invalidates a key by a work request or for a peer.
    ///
    /// # Errors
    ///
    /// `Denied`: only windows and fast-registered regions can be invalidated (IBTA 1.x §10.6.5), and
    /// a process's regions are neither.
    pub(crate) fn invalidate(&self, _pd: PdId, _key: Rkey) -> Result<(), AccessFault> {
        Err(AccessFault::Denied)
    }

    #[inline]
    fn with<R>(
        &self,
        pd: PdId,
        key: u32,
        f: impl FnOnce(ArcBorrow<'_, Mr>) -> Option<R>,
    ) -> Result<R, AccessFault> {
        self.regions
            .with(key >> 8, |mr| {
                if mr.key == key && mr.pd == pd {
                    f(mr)
                } else {
                    None
                }
            })
            .flatten()
            .ok_or(AccessFault::Denied)
    }
}
