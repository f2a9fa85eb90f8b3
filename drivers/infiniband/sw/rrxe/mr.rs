// SPDX-License-Identifier: GPL-2.0

//! Memory regions: the table of keys, and the check that every access goes through.
//!
//! A key is a region's place in the table and eight more bits, all but the top bit random, and it opens only
//! what belongs to the protection domain of who uses it. Regions are looked up and used under RCU;
//! deregistration takes the region out of the table and waits for the users, so that after it
//! returns nobody touches the memory any more.

use core::ops::RangeInclusive;

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc, ArcBorrow,
    },
};
use rdma::{
    fast_mr::{kernel_span, FastMemory, Registration},
    mr::{Access, MrChange, MrKeys, Span, UserRange},
    sync::wait_for_readers,
    table::Table,
    umem::UserMemory,
};
use roce::{
    host::{AccessFault, LocalAccess, RemoteAccess},
    ids::{Lkey, Rkey},
};

use crate::{
    limits,
    mw::{Bind, MwTable, Via},
    pd::{Pd, PdId},
};

/// Places of the table: the lower half of 24 bits, the upper one is windows'. Zero is left out, so that no key is zero.
const PLACES: RangeInclusive<u32> = 1..=0x7f_ffff;

/// A count of windows: the region is going, no window may be bound to it any more.
const CLOSED: u32 = u32::MAX;

/// A memory region.
pub(crate) struct Mr {
    /// Changed by `rereg_user_mr`, as are the rights of a process's memory.
    pd: Atomic<u64>,
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
        memory: UserMemory,
        iova: u64,
        access: Atomic<u32>,
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

    fn new(pd: PdId, key: u32, memory: Memory) -> Result<Arc<Self>> {
        let mr = Self {
            pd: Atomic::new(pd.get()),
            key,
            memory,
            windows: Atomic::new(0),
        };
        Ok(Arc::new(mr, GFP_KERNEL_ACCOUNT)?)
    }

    fn pd(&self) -> PdId {
        PdId::from_raw(self.pd.load(ordering::Relaxed))
    }

    /// Changes domain and rights; when this returns, nobody uses it by the old ones. Process context;
    /// sleeps.
    fn change(&self, rights: &Atomic<u32>, pd: Option<PdId>, access: Access) {
        if let Some(pd) = pd {
            // Nobody may have the old domain and the new rights.
            rights.store(0, ordering::Relaxed);
            self.pd.store(pd.get(), ordering::Relaxed);
            wait_for_readers();
        }
        rights.store(access.bits(), ordering::Relaxed);
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
            } => (
                rights(access),
                memory.span(addr.checked_sub(*iova)?, length)?,
            ),
            Memory::Kernel(access) => (*access, kernel_span(addr, length)?),
        };
        allows(access).then(|| f(span))
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

fn rights(access: &Atomic<u32>) -> Access {
    Access::from_bits(access.load(ordering::Relaxed))
}

/// All regions of a device.
///
/// The accessors run in any context that the data path runs in, and their closures under RCU: those
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
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            regions <- Table::new(),
            windows <- MwTable::new(),
        })
    }

    /// Makes memory of a process accessible in protection domain `pd`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EBUSY` when there is no place left, and those of [`UserRange::pin`].
    pub(crate) fn register(
        &self,
        pd: PdId,
        range: &UserRange<'_>,
        access: Access,
    ) -> Result<Arc<Mr>> {
        let memory = Memory::User {
            memory: range.pin(access)?,
            iova: range.iova(access),
            access: Atomic::new(access.bits()),
        };
        self.publish(pd, memory)
    }

    /// Changes `mr` and returns it, or what takes its place under the same key. On error nothing has
    /// changed. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` while windows are bound to it and for what isn't a process's memory, and those of
    /// [`UserRange::pin`].
    pub(crate) fn reregister(&self, mr: &Arc<Mr>, change: MrChange<'_, Pd>) -> Result<Arc<Mr>> {
        mr.close()?;
        let changed = self.change(mr, change);
        mr.reopen();
        changed
    }

    fn change(&self, mr: &Arc<Mr>, change: MrChange<'_, Pd>) -> Result<Arc<Mr>> {
        let Memory::User {
            memory,
            iova,
            access: old,
        } = &mr.memory
        else {
            return Err(EINVAL);
        };
        let access = match (change.access, &change.range) {
            (None, _) => rights(old),
            (Some(access), Some(_)) => access,
            (Some(access), None) => access.with_base_of(rights(old)),
        };
        let pd = change.pd.map(|pd| pd.id());
        let (iova, memory) = match change.range {
            Some(range) => (range.iova(access), range.pin(access)?),
            None if access.writes() && !memory.is_writable() => (*iova, memory.pin_again(access)?),
            None => {
                mr.change(old, pd, access);
                return Ok(mr.clone());
            }
        };
        let memory = Memory::User {
            memory,
            iova,
            access: Atomic::new(access.bits()),
        };
        let changed = Mr::new(pd.unwrap_or(mr.pd()), mr.key, memory)?;
        drop(self.regions.replace(mr.key >> 8, changed.clone())?);
        Ok(changed)
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
        let key = place.id().wrapping_shl(8) | (rdma::random::next_u32() & 0xff);
        let mr = Mr::new(pd, key, memory)?;
        place.publish(mr.clone());
        Ok(mr)
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
        self.with(pd, bind.region.0, |mr| {
            let Memory::User {
                memory,
                iova,
                access,
            } = &mr.memory
            else {
                return None;
            };
            let offset = bind.addr.checked_sub(*iova)?;
            let room = memory.length().checked_sub(offset)?;
            let suits = bind.access.suits_window(rights(access)) && bind.length <= room;
            (suits && mr.key == bind.region.0).then(|| mr.attach())?
        })
        .ok()
    }

    /// A window is no longer bound to the region of this key.
    pub(crate) fn detach(&self, key: u32) {
        self.regions.with(key >> 8, |mr| {
            mr.windows.fetch_sub(1, ordering::Full);
        });
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
        via: Via,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        if MwTable::is_window(rkey.0) {
            return self.with_window(via, rkey, va, length, access, f);
        }
        let allows = |rights: Access| rights.allows_remote(access);
        self.with(via.pd, rkey.0, |mr| mr.with(rkey.0, va, length, allows, f))
    }

    #[cold]
    fn with_window<R>(
        &self,
        via: Via,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        self.windows
            .with_range(via, rkey, va, length, access, |region, addr| {
                self.with(via.pd, region, |mr| {
                    mr.with(region, addr, length, |_| true, f)
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
        via: Via,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        if MwTable::is_window(rkey.0) {
            return self.windows.check(via, rkey, access);
        }
        let allows = |rights: Access| rights.allows_remote(access);
        self.with(via.pd, rkey.0, |mr| mr.grants(rkey.0, allows).then_some(()))
    }

    /// Invalidates a key by a work request or for a peer.
    ///
    /// # Errors
    ///
    /// `Denied`: only windows and fast-registered regions can be invalidated (IBTA 1.x §10.6.5), by the
    /// key under which they are valid.
    pub(crate) fn invalidate(&self, via: Via, key: Rkey) -> Result<(), AccessFault> {
        if MwTable::is_window(key.0) {
            return self.windows.invalidate(via, key.0, self);
        }
        self.with(via.pd, key.0, |mr| {
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
            .with(key >> 8, |mr| if mr.pd() == pd { f(mr) } else { None })
            .flatten()
            .ok_or(AccessFault::Denied)
    }
}
