// SPDX-License-Identifier: GPL-2.0

//! Memory regions: the table of keys, and the check that every access goes through.
//!
//! A key is a region's place in the table and eight more bits, all but the top bit random, and it opens only
//! what belongs to the protection domain of who uses it. Regions are looked up and used within [`Table::with`];
//! deregistration takes the region out of the table and waits for the users, so that after it
//! returns nobody touches the memory any more.

mod odp;
mod register;
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

/// The local key of all memory in the kernel's protection domains. No region has it, and no peer.
pub(crate) const LOCAL_DMA_LKEY: Lkey = Lkey(1);

/// Whether `lkey` opens all memory to who is in `pd`.
#[inline]
fn is_all_memory(pd: PdId, lkey: Lkey) -> bool {
    lkey == LOCAL_DMA_LKEY && pd.is_kernels()
}

/// Places of the table: the lower half of 24 bits, the upper one is windows'. Zero is left out, so that no key is zero.
const PLACES: RangeInclusive<u32> = 1..=0x7f_ffff;

/// A count of windows: the region is going, no window may be bound to it any more.
const CLOSED: u32 = u32::MAX;

/// A memory region.
///
/// What every access reads is of `core`'s atomics: the kernel's are calls of C.
pub(crate) struct Mr {
    object: ObjectClaim,
    /// Changed by `rereg_user_mr`, as are the rights of a process's memory.
    pd: AtomicU64,
    /// Local and remote key are the same.
    key: u32,
    memory: Memory,
    /// Windows bound to it, or [`CLOSED`].
    windows: Atomic<u32>,
}

/// What a region is made of.
enum Memory {
    /// Memory of a process, named from `iova` on.
    User {
        memory: RegionMemory,
        iova: u64,
        access: AtomicU32,
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

    fn pd(&self) -> PdId {
        PdId::from_raw(self.pd.load(Ordering::Relaxed))
    }

    /// Changes domain and rights; when this returns, nobody uses it by the old ones. Process context;
    /// sleeps.
    fn change(&self, rights: &AtomicU32, pd: Option<PdId>, access: Access) {
        if let Some(pd) = pd {
            // Nobody may have the old domain and the new rights.
            rights.store(0, Ordering::Relaxed);
            self.pd.store(pd.get(), Ordering::Relaxed);
            wait_for_readers();
        }
        rights.store(access.bits(), Ordering::Relaxed);
        wait_for_readers();
    }

    /// Excludes windows from now on.
    ///
    /// # Errors
    ///
    /// `EINVAL` while there are some.
    fn close(&self) -> Result {
        let closed = self.windows.cmpxchg(0, CLOSED, ordering::Full);
        closed.map(|_| ()).map_err(|_| EINVAL)
    }

    /// Lets windows be bound again.
    fn reopen(&self) {
        self.windows.store(0, ordering::Release);
    }

    /// Counts one more window.
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

    /// The memory of a region for fast registration.
    pub(crate) fn fast_memory(&self) -> Option<&FastMemory> {
        match &self.memory {
            Memory::Fast(memory) => Some(memory),
            _ => None,
        }
    }

    /// Its rights, unless they change with every use.
    pub(crate) fn rights(&self) -> Option<Access> {
        match &self.memory {
            Memory::User { access, .. } => Some(rights(access)),
            Memory::Kernel(access) => Some(*access),
            Memory::Fast(_) => None,
        }
    }

    /// Where `length` bytes at address `addr` are, if they are within the region, `key` opens it and its
    /// rights suffice.
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
        span.map(Found::Here).ok_or(AccessFault::Denied)
    }

    /// Runs `f` on what [`Self::find`] finds.
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
            Found::Here(span) => Ok(f(span)),
            Found::Fast(memory) => memory
                .with(key, addr, length, |rights| right.is_allowed_by(rights), f)
                .ok_or(AccessFault::Denied),
            Found::OnDemand(memory, offset) => memory
                .with_span(offset, length, right.writes(), f)
                .map_err(access_fault),
        }
    }

    /// Checks that [`Self::with`] would succeed; if `ahead` is not set, once the memory is resident.
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
            Found::Here(_) => Ok(()),
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

    /// The process's memory of the region, and the place of address `addr` in it.
    fn locate(&self, addr: u64) -> Option<(&RegionMemory, u64)> {
        match &self.memory {
            Memory::User { memory, iova, .. } => Some((memory, addr.checked_sub(*iova)?)),
            Memory::Kernel(_) | Memory::Fast(_) => None,
        }
    }

    /// Whether `key` opens the region and `allows` says that its rights suffice.
    fn grants(&self, key: u32, allows: impl FnOnce(Access) -> bool) -> bool {
        match &self.memory {
            Memory::Fast(memory) => memory.grants(key, allows),
            Memory::User { access, .. } => key == self.key && allows(rights(access)),
            Memory::Kernel(access) => key == self.key && allows(*access),
        }
    }
}

/// What a region has at a place.
enum Found<'a> {
    /// Bytes that are there.
    Here(Span<'a>),
    /// They may be there, so many bytes from the beginning.
    OnDemand(&'a OnDemand, u64),
    /// The memory finds out for itself.
    Fast(&'a FastMemory),
}

fn rights(access: &AtomicU32) -> Access {
    Access::from_bits(access.load(Ordering::Relaxed))
}

/// Whether who asks for memory will use it: FLUSH only names it.
fn looks_ahead(access: RemoteAccess) -> bool {
    !matches!(access, RemoteAccess::Flush(_))
}

/// All regions of a device.
///
/// The accessors run in any context that the data path runs in, and their closures keep deregistration waiting: those
/// must not sleep.
#[pin_data]
pub(crate) struct MrTable {
    #[pin]
    regions: Table<Mr>,
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

    /// Takes `mr` away: when this returns, nobody accesses its memory. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` while windows are bound to it.
    pub(crate) fn deregister(&self, mr: &Mr) -> Result {
        mr.close()?;
        drop(self.regions.remove(mr.key >> 8));
        Ok(())
    }

    /// Checks that a window may be bound so (IBTA 1.x §10.6.7.2.3), and counts it at its region.
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

    /// A window is no longer bound to the region of this key.
    pub(crate) fn detach(&self, key: u32) {
        self.regions.with(key >> 8, |mr| {
            mr.windows.fetch_sub(1, ordering::Full);
        });
    }

    /// Runs `f` on what `sge` names of the caller's own memory. `recent` is the region that the caller used last.
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain, a range beyond the region or a right
    /// that was not given; `Retry` for memory that isn't resident.
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
        self.with_recent(recent, pd, lkey.0, |mr| {
            mr.with(lkey.0, addr, length, access, f)
        })
    }

    /// Checks that the owner may use what `sge` names, resident or not.
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

    /// Runs `f` on what a peer comes to. `recent` is the region that it came to last.
    ///
    /// # Errors
    ///
    /// `Denied` for an unknown key, another protection domain, a range beyond the region or a right
    /// that was not granted.
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
        self.with_recent(recent, range.context.pd, key, |mr| {
            mr.with(key, range.va, range.length, range.access, f)
        })
    }

    /// Checks that a peer may use what it comes to. `recent` as for [`Self::with_remote`].
    ///
    /// # Errors
    ///
    /// As for [`Self::with_remote`]; `Retry` if something at the beginning isn't resident.
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
        self.with_recent(recent, range.context.pd, key, |mr| {
            mr.check(key, range.va, range.length, access, looks_ahead(access))
        })
    }

    #[cold]
    fn check_window(&self, range: &RemoteRange) -> Result<(), AccessFault> {
        self.windows.with_range(range, |region, addr| {
            let (right, ahead) = (Granted(range.access), looks_ahead(range.access));
            self.with(range.context.pd, region, |mr| {
                mr.check(region, addr, range.length, right, ahead)
            })
        })
    }

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

    /// Checks that a peer may use the region, or window, as a whole.
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

    /// Invalidates a key by a work request or for a peer.
    ///
    /// # Errors
    ///
    /// `Denied`: only windows and fast-registered regions can be invalidated (IBTA 1.x §10.6.5), by the
    /// key under which they are valid.
    pub(crate) fn invalidate(&self, context: RemoteContext, key: Rkey) -> Result<(), AccessFault> {
        if MwTable::is_window(key.0) {
            return self.windows.invalidate(context, key.0, self);
        }
        self.with(context.pd, key.0, |mr| {
            let memory = mr.fast_memory().ok_or(AccessFault::Denied)?;
            require(memory.invalidate(key.0))
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
            let memory = mr.fast_memory().ok_or(AccessFault::Denied)?;
            memory
                .register(registration)
                .map_err(|_| AccessFault::Denied)
        })
    }

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

    /// As [`Self::with`], for one who comes to the same region again and again.
    #[inline]
    fn with_recent<R>(
        &self,
        recent: &mut LastLookup<Mr>,
        pd: PdId,
        key: u32,
        f: impl FnOnce(ArcBorrow<'_, Mr>) -> Result<R, AccessFault>,
    ) -> Result<R, AccessFault> {
        self.regions
            .with_recent(recent, key >> 8, |mr| {
                require(mr.pd() == pd)?;
                f(mr)
            })
            .ok_or(AccessFault::Denied)?
    }
}
