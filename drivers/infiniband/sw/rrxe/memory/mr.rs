// SPDX-License-Identifier: GPL-2.0

//! Memory regions: the table of keys, and the check that every access goes through.
//!
//! The upper 24 bits of a key are the region's index in the table. The lower eight bits are random,
//! or those that a REG_MR work request has chosen. The top bit of an index tells windows from
//! regions, and the other bits of the index are random, too. A key is valid only for QPs of the
//! region's protection domain. Regions are looked up and used within [`Table::with`].
//! Deregistration takes the region out of the table and waits until no caller uses the region:
//! after it returns, no access to the region's memory is in progress.

mod odp;
mod register;
mod resident;
mod undo;

use core::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc, ArcBorrow,
    },
};
use rdma::{
    memory::{
        fast_mr::{kernel_span, FastMemory, Registration},
        odp::OnDemand,
        RegionMemory,
    },
    support::{
        read_section::ReadSections,
        sync::wait_for_readers,
        table::{LastLookup, Table},
    },
    verbs::mr::{Access, MrKeys, Span},
};
use roce::{
    host::{AccessFault, LocalAccess, RemoteAccess},
    ids::{Lkey, Rkey},
};

use crate::{
    limits::{self, accounts::ObjectClaim},
    memory::{
        access::{access_fault, require, AccessRequest, Granted},
        mw::{Bind, MwTable, RemoteContext},
        remote::RemoteRange,
    },
    qp::wqe::Sge,
    verbs::pd::PdId,
};

/// Local key of all memory, valid in the protection domains of the kernel only. No region has this
/// key, and no peer can use it.
pub(crate) const LOCAL_DMA_LKEY: Lkey = Lkey(1);

/// Returns whether `lkey` allows QPs of protection domain `pd` to access all of the kernel's
/// memory.
#[inline]
fn is_all_memory(pd: PdId, lkey: Lkey) -> bool {
    lkey == LOCAL_DMA_LKEY && pd.is_kernels()
}

/// Range of table indices of regions: the lower half of the 24-bit numbers. The upper half belongs
/// to windows. Zero is left out, so that no key is zero.
const INDICES: RangeInclusive<u32> = 1..=0x7f_ffff;

/// Value of a region's window count that forbids further bindings: the region is being deregistered
/// or changed.
const CLOSED: u32 = u32::MAX;

/// A memory region.
///
/// The fields that every access reads are atomics of `core`, because the operations of the kernel's
/// atomics are calls of C functions.
pub(crate) struct Mr {
    /// Claim on the object limit of the owner's accounts.
    object: ObjectClaim,
    /// Number of the region's protection domain. `rereg_user_mr` changes it, as it changes the
    /// rights of a process's memory.
    pd: AtomicU64,
    /// Value of both keys: L_Key and R_Key are the same.
    key: u32,
    /// Memory of the region, with its access rights.
    memory: Memory,
    /// Number of windows that are bound to the region, or [`CLOSED`].
    windows: Atomic<u32>,
}

/// The kinds of memory that a region may have.
enum Memory {
    /// Memory of a process. Work requests and peers address its first byte by `iova`.
    User {
        memory: RegionMemory,
        iova: u64,
        access: AtomicU32,
    },
    /// All of the kernel's memory, with these rights (`get_dma_mr`).
    Kernel(Access),
    /// Memory that work requests of the kernel register (`alloc_mr`, REG_MR).
    Fast(Pin<KBox<FastMemory>>),
}

impl Mr {
    /// Returns the region's L_Key and R_Key.
    pub(crate) fn keys(&self) -> MrKeys {
        MrKeys {
            lkey: Lkey(self.key),
            rkey: Rkey(self.key),
        }
    }

    /// Creates a region of key `key` without bound windows.
    fn new(object: ObjectClaim, pd: PdId, key: u32, memory: Memory) -> Result<Arc<Self>> {
        let mr = Self {
            object,
            pd: AtomicU64::new(pd.get()),
            key,
            memory,
            windows: Atomic::new(0),
        };
        Ok(Arc::new(mr, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the present protection domain. To be called before the rights are read.
    fn pd(&self) -> PdId {
        // Acquire: pairs with the store in `change`.
        PdId::from_raw(self.pd.load(Ordering::Acquire))
    }

    /// Changes the protection domain, if `pd` is set, and the rights of a process's memory. After
    /// the return, no access with the old domain or the old rights is in progress. Process context;
    /// sleeps.
    fn change(&self, rights: &AtomicU32, pd: Option<PdId>, access: Access) {
        if let Some(pd) = pd {
            // No access may see the old domain together with the new rights, nor the new domain
            // together with the old rights. Release: an access that sees the new domain
            // (`Self::pd`) also sees that the old rights are gone.
            rights.store(0, Ordering::Relaxed);
            self.pd.store(pd.get(), Ordering::Release);
            wait_for_readers();
        }
        rights.store(access.bits(), Ordering::Relaxed);
        wait_for_readers();
    }

    /// Forbids further bindings of windows.
    ///
    /// # Errors
    ///
    /// `EINVAL` while windows are bound to the region.
    fn close(&self) -> Result {
        let closed = self.windows.cmpxchg(0, CLOSED, ordering::Full);
        closed.map(|_| ()).map_err(|_| EINVAL)
    }

    /// Allows bindings of windows again, after [`Self::close`].
    fn reopen(&self) {
        self.windows.store(0, ordering::Release);
    }

    /// Counts one more bound window. Returns `None` if the region is closed to windows.
    fn attach(&self) -> Option<()> {
        let mut count = self.windows.load(ordering::Relaxed);
        while count < CLOSED.wrapping_sub(1) {
            let next = count.wrapping_add(1);
            match self.windows.cmpxchg(count, next, ordering::Full) {
                Ok(_) => return Some(()),
                Err(seen) => count = seen,
            }
        }
        None
    }

    /// Returns the memory of a region for fast registration, `None` for other regions.
    pub(crate) fn fast_memory(&self) -> Option<&FastMemory> {
        match &self.memory {
            Memory::Fast(memory) => Some(memory),
            _ => None,
        }
    }

    /// Returns the access rights. `None` for a region for fast registration, whose rights change
    /// with every registration.
    pub(crate) fn rights(&self) -> Option<Access> {
        match &self.memory {
            Memory::User { access, .. } => Some(rights(access)),
            Memory::Kernel(access) => Some(*access),
            Memory::Fast(_) => None,
        }
    }

    /// Finds the memory of `length` bytes at address `addr`, or the object that has to be asked for
    /// it.
    ///
    /// # Errors
    ///
    /// `Denied` if `key` is not the region's key, the region's rights don't allow `right`, or the
    /// range is not within the region. For on-demand memory, the last of these checks is only that
    /// the range does not begin before the region. A region for fast registration checks all of
    /// these itself.
    #[inline(always)]
    fn find(
        &self,
        key: u32,
        addr: u64,
        length: u32,
        right: impl AccessRequest,
    ) -> Result<Found<'_>, AccessFault> {
        let span = match &self.memory {
            Memory::Fast(memory) => return Ok(Found::Fast(memory)),
            _ if key != self.key => None,
            Memory::User {
                memory,
                iova,
                access,
            } => {
                require(right.is_allowed_by(rights(access)))?;
                let offset = addr.checked_sub(*iova).ok_or(AccessFault::Denied)?;
                match memory {
                    RegionMemory::Pinned(memory) => memory.span(offset, length),
                    RegionMemory::OnDemand(memory) => return Ok(Found::OnDemand(memory, offset)),
                }
            }
            Memory::Kernel(access) => {
                require(right.is_allowed_by(*access))?;
                kernel_span(addr, length)
            }
        };
        span.map(Found::Resident).ok_or(AccessFault::Denied)
    }

    /// Runs `f` on the memory of `length` bytes at address `addr`. `f` must not sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Self::find`]; `Denied` if a region for fast registration refuses the access;
    /// `Retry` if on-demand memory isn't resident.
    #[inline]
    fn with<R>(
        &self,
        key: u32,
        addr: u64,
        length: u32,
        right: impl AccessRequest,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        match self.find(key, addr, length, right)? {
            Found::Resident(span) => Ok(f(span)),
            Found::Fast(memory) => memory
                .with(key, addr, length, |rights| right.is_allowed_by(rights), f)
                .ok_or(AccessFault::Denied),
            Found::OnDemand(memory, offset) => memory
                .with_span(offset, length, right.writes(), f)
                .map_err(access_fault),
        }
    }

    /// Checks that [`Self::with`] would not return `Denied` for the access. If `ahead` is true,
    /// on-demand memory must also be resident at the beginning of the range.
    ///
    /// # Errors
    ///
    /// Those of [`Self::with`].
    #[inline]
    fn check(
        &self,
        key: u32,
        addr: u64,
        length: u32,
        right: impl AccessRequest,
        ahead: bool,
    ) -> Result<(), AccessFault> {
        match self.find(key, addr, length, right)? {
            Found::Resident(_) => Ok(()),
            Found::Fast(memory) => memory
                .with(
                    key,
                    addr,
                    length,
                    |rights| right.is_allowed_by(rights),
                    |_| (),
                )
                .ok_or(AccessFault::Denied),
            Found::OnDemand(memory, offset) if ahead => memory
                .check_ahead(offset, length, right.writes())
                .map_err(access_fault),
            Found::OnDemand(memory, offset) => require(memory.contains(offset, length.into())),
        }
    }

    /// Returns the process's memory of the region, and the offset of address `addr` in it. `None`
    /// for the kernel's regions, and for an address before the region.
    fn locate(&self, addr: u64) -> Option<(&RegionMemory, u64)> {
        match &self.memory {
            Memory::User { memory, iova, .. } => Some((memory, addr.checked_sub(*iova)?)),
            Memory::Kernel(_) | Memory::Fast(_) => None,
        }
    }

    /// Returns whether `key` is the region's valid key and `allows` accepts its rights.
    fn grants(&self, key: u32, allows: impl FnOnce(Access) -> bool) -> bool {
        match &self.memory {
            Memory::Fast(memory) => memory.grants(key, allows),
            Memory::User { access, .. } => key == self.key && allows(rights(access)),
            Memory::Kernel(access) => key == self.key && allows(*access),
        }
    }
}

/// The result of a search for memory in a region.
enum Found<'a> {
    /// Memory that is resident.
    Resident(Span<'a>),
    /// On-demand memory, which may be absent, and the offset of the first byte in it.
    OnDemand(&'a OnDemand, u64),
    /// Memory of a region for fast registration, which checks key, rights and range itself.
    Fast(&'a FastMemory),
}

/// Returns the access rights that a process's memory has at present.
fn rights(access: &AtomicU32) -> Access {
    Access::from_bits(access.load(Ordering::Relaxed))
}

/// Returns whether the requester of `access` will read or write the memory soon. FLUSH only names a
/// range.
fn uses_memory(access: RemoteAccess) -> bool {
    !matches!(access, RemoteAccess::Flush(_))
}

/// All memory regions and memory windows of a device.
///
/// The methods that access memory may be called in any context of the data path. Deregistration
/// waits for their closures, so the closures must not sleep.
#[pin_data]
pub(crate) struct MrTable {
    /// Table of the regions.
    #[pin]
    regions: Table<Mr>,
    /// Memory windows.
    #[pin]
    pub(crate) windows: MwTable,
}

impl MrTable {
    /// Initialises an empty table.
    pub(crate) fn new(readers: &Arc<ReadSections>) -> impl PinInit<Self> + '_ {
        pin_init!(Self {
            regions <- Table::new(limits::MAX_MR, readers),
            windows <- MwTable::new(readers),
        })
    }

    /// Takes `mr` out of the table. After the return, no access to its memory is in progress.
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` while windows are bound to the region.
    pub(crate) fn deregister(&self, mr: &Mr) -> Result {
        mr.close()?;
        drop(self.regions.remove(mr.key >> 8));
        Ok(())
    }

    /// Checks that a window may be bound as `bind` requests (IBTA 1.x §10.6.7.2.3), and counts the
    /// window at its region. Returns `None` if it may not be bound.
    pub(crate) fn attach(&self, pd: PdId, bind: &Bind) -> Option<()> {
        let attach = |mr: ArcBorrow<'_, Mr>| {
            let Memory::User { access, .. } = &mr.memory else {
                return None;
            };
            let (memory, offset) = mr.locate(bind.addr)?;
            let room = memory.length().checked_sub(offset)?;
            let suits = bind.access.suits_window(rights(access)) && bind.length <= room;
            (suits && mr.key == bind.region.0).then(|| mr.attach())?
        };
        self.with(pd, bind.region.0, |mr| {
            attach(mr).ok_or(AccessFault::Denied)
        })
        .ok()
    }

    /// Lowers the window count of the region of key `key`, to which a window is no longer bound.
    pub(crate) fn detach(&self, key: u32) {
        self.regions.with(key >> 8, |mr| {
            mr.windows.fetch_sub(1, ordering::Full);
        });
    }

    /// Runs `f` on the memory that `sge` names, on behalf of a QP of protection domain `pd`.
    /// `recent` caches the region that the QP's previous SGEs named.
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain, a range beyond the region or a right
    /// that the region doesn't grant; `Retry` for memory that isn't resident.
    #[inline]
    pub(crate) fn with_local<R>(
        &self,
        recent: &mut LastLookup<Mr>,
        pd: PdId,
        sge: &Sge,
        access: LocalAccess,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        let Sge { addr, length, lkey } = *sge;
        if is_all_memory(pd, lkey) {
            return kernel_span(addr, length).map(f).ok_or(AccessFault::Denied);
        }
        self.with_cached(recent, pd, lkey.0, |mr| {
            mr.with(lkey.0, addr, length, access, f)
        })
    }

    /// Checks that a QP of protection domain `pd` may access the memory that `sge` names. The
    /// memory need not be resident.
    ///
    /// # Errors
    ///
    /// `Denied` as for [`Self::with_local`].
    #[inline]
    pub(crate) fn check_local(
        &self,
        pd: PdId,
        sge: &Sge,
        access: LocalAccess,
    ) -> Result<(), AccessFault> {
        let Sge { addr, length, lkey } = *sge;
        if is_all_memory(pd, lkey) {
            let span = kernel_span(addr, length);
            return span.map(|_| ()).ok_or(AccessFault::Denied);
        }
        self.with(pd, lkey.0, |mr| {
            mr.check(lkey.0, addr, length, access, false)
        })
    }

    /// Runs `f` on the memory that a peer accesses. `recent` caches the region that the peer
    /// accessed last.
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain, a range beyond the region or window
    /// or a right that was not granted; `Retry` for memory that isn't resident.
    #[inline]
    pub(crate) fn with_remote<R>(
        &self,
        recent: &mut LastLookup<Mr>,
        range: &RemoteRange,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        let key = range.rkey.0;
        if MwTable::is_window(key) {
            return self.with_window(range, f);
        }
        self.with_cached(recent, range.context.pd, key, |mr| {
            mr.with(key, range.va, range.length, range.access, f)
        })
    }

    /// Checks that a peer may access the memory of `range`. `recent` caches the region that the
    /// peer accessed last.
    ///
    /// # Errors
    ///
    /// `Denied` as for [`Self::with_remote`]; `Retry` if memory at the beginning of the range isn't
    /// resident.
    #[inline]
    pub(crate) fn check_remote(
        &self,
        recent: &mut LastLookup<Mr>,
        range: &RemoteRange,
    ) -> Result<(), AccessFault> {
        let (key, access) = (range.rkey.0, range.access);
        if MwTable::is_window(key) {
            return self.check_window(range);
        }
        self.with_cached(recent, range.context.pd, key, |mr| {
            mr.check(key, range.va, range.length, access, uses_memory(access))
        })
    }

    /// Works as [`Self::check_remote`], if the key is a window's.
    #[cold]
    fn check_window(&self, range: &RemoteRange) -> Result<(), AccessFault> {
        self.windows.with_range(range, |region, addr| {
            let (right, ahead) = (Granted(range.access), uses_memory(range.access));
            self.with(range.context.pd, region, |mr| {
                mr.check(region, addr, range.length, right, ahead)
            })
        })
    }

    /// Works as [`Self::with_remote`], if the key is a window's.
    #[cold]
    fn with_window<R>(
        &self,
        range: &RemoteRange,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        self.windows.with_range(range, |region, addr| {
            self.with(range.context.pd, region, |mr| {
                mr.with(region, addr, range.length, Granted(range.access), f)
            })
        })
    }

    /// Checks that a peer may use the region or window of key `rkey` as a whole.
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain or a right that was not granted.
    pub(crate) fn check_region(
        &self,
        context: RemoteContext,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        if MwTable::is_window(rkey.0) {
            return self.windows.check(context, rkey, access);
        }
        let allows = |rights: Access| rights.allows_remote(access);
        self.with(context.pd, rkey.0, |mr| require(mr.grants(rkey.0, allows)))
    }

    /// Invalidates a key, by a work request (LOCAL_INV) or for a peer (SEND WITH INVALIDATE).
    ///
    /// # Errors
    ///
    /// `Denied` unless `key` is the valid key of a window of type 2B or of a fast-registered
    /// region: no other object can be invalidated (IBTA 1.x §10.6.5).
    pub(crate) fn invalidate(&self, context: RemoteContext, key: Rkey) -> Result<(), AccessFault> {
        if MwTable::is_window(key.0) {
            return self.windows.invalidate(context, key.0, self);
        }
        self.with(context.pd, key.0, |mr| {
            let memory = mr.fast_memory().ok_or(AccessFault::Denied)?;
            require(memory.invalidate(key.0))
        })
    }

    /// Carries out a fast registration (REG_MR).
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain, a region that is registered already
    /// or is not for fast registration, or rights that contradict one another.
    pub(crate) fn register_fast(
        &self,
        pd: PdId,
        registration: Registration,
    ) -> Result<(), AccessFault> {
        self.with(pd, registration.key, |mr| {
            let memory = mr.fast_memory().ok_or(AccessFault::Denied)?;
            memory
                .register(registration)
                .map_err(|_| AccessFault::Denied)
        })
    }

    /// Runs `f` on the region at the index that `key` contains, if its protection domain is `pd`.
    /// `f` must not sleep.
    ///
    /// # Errors
    ///
    /// `Denied` if there is no such region, and the errors of `f`.
    #[inline]
    fn with<R>(
        &self,
        pd: PdId,
        key: u32,
        f: impl FnOnce(ArcBorrow<'_, Mr>) -> Result<R, AccessFault>,
    ) -> Result<R, AccessFault> {
        self.regions
            .with(key >> 8, |mr| {
                require(mr.pd() == pd)?;
                f(mr)
            })
            .ok_or(AccessFault::Denied)?
    }

    /// Works as [`Self::with`]. `recent` caches the region that the caller used last, and saves the
    /// look-up if it is the same.
    #[inline]
    fn with_cached<R>(
        &self,
        recent: &mut LastLookup<Mr>,
        pd: PdId,
        key: u32,
        f: impl FnOnce(ArcBorrow<'_, Mr>) -> Result<R, AccessFault>,
    ) -> Result<R, AccessFault> {
        self.regions
            .with_cached(recent, key >> 8, |mr| {
                require(mr.pd() == pd)?;
                f(mr)
            })
            .ok_or(AccessFault::Denied)?
    }
}
