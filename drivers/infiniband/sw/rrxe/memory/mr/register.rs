// SPDX-License-Identifier: GPL-2.0

//! Registration and reregistration of memory regions.

use core::sync::atomic::AtomicU32;

use kernel::{prelude::*, sync::Arc};
use rdma::{
    memory::{
        fast_mr::{FastKind, FastMemory},
        odp,
    },
    verbs::mr::{Access, MrChange, UserRange},
};

use super::{rights, Memory, Mr, MrTable, INDICES};
use crate::{
    device::workqueues::Workqueues,
    limits::{
        self,
        accounts::{Accounts, ObjectClaim, Payer},
        thread_permit::OwnerPermit,
    },
    verbs::pd::Pd,
};

/// Creates the permit of the calling process's address space for threads that release chunks of
/// on-demand memory. The calling process is the payer, not the process that opened the device: a
/// file descriptor of an open device may be passed on.
fn release_permit(accounts: &Arc<Accounts>) -> Result<Arc<dyn odp::ReleaseThreads>> {
    let payer = Arc::new(Payer::current(accounts)?, GFP_KERNEL_ACCOUNT)?;
    Ok(OwnerPermit::new(&payer)?)
}

impl MrTable {
    /// Registers memory of a process in protection domain `pd`. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and those of [`UserRange::pin`].
    pub(crate) fn register(
        &self,
        pd: &Pd,
        range: &UserRange<'_>,
        access: Access,
    ) -> Result<Arc<Mr>> {
        let workqueues = &pd.device().workqueues;
        let permit = || release_permit(&workqueues.accounts);
        let memory = Memory::User {
            memory: range.pin(access, &workqueues.owners, &permit)?,
            iova: range.iova(access),
            access: AtomicU32::new(access.bits()),
        };
        self.publish(pd, memory)
    }

    /// Changes `mr` and returns it, or returns a new region that replaces it under the same key. If
    /// the memory is on demand, its process is entered in the owners of `workqueues`. On error,
    /// nothing has changed. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` while windows are bound to the region, and for a region of
    /// [`Self::register_kernel`] or [`Self::alloc_fast`]; those of [`UserRange::pin`] and of
    /// `RegionMemory::with_access()`; `ENOMEM`.
    pub(crate) fn reregister(
        &self,
        workqueues: &Workqueues,
        mr: &Arc<Mr>,
        change: MrChange<'_, Pd>,
    ) -> Result<Arc<Mr>> {
        mr.close()?;
        let changed = self.change(workqueues, mr, change);
        mr.reopen();
        changed
    }

    /// Carries out [`Self::reregister`] while no window can be bound to `mr`.
    fn change(
        &self,
        workqueues: &Workqueues,
        mr: &Arc<Mr>,
        change: MrChange<'_, Pd>,
    ) -> Result<Arc<Mr>> {
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
            (Some(access), None) => access.with_memory_of(rights(old)),
        };
        let pd = change.pd.map(|pd| pd.id());
        let replacement = match &change.range {
            Some(range) => {
                let permit = || release_permit(&workqueues.accounts);
                let memory = range.pin(access, &workqueues.owners, &permit)?;
                Some((range.iova(access), memory))
            }
            None => memory.with_access(access)?.map(|memory| (*iova, memory)),
        };
        let Some((iova, memory)) = replacement else {
            mr.change(old, pd, access);
            return Ok(mr.clone());
        };
        let memory = Memory::User {
            memory,
            iova,
            access: AtomicU32::new(access.bits()),
        };
        let object = ObjectClaim::new(mr.object.payer())?;
        let changed = Mr::new(object, pd.unwrap_or(mr.pd()), mr.key, memory)?;
        drop(self.regions.replace(mr.key >> 8, changed.clone())?);
        Ok(changed)
    }

    /// Registers all of the kernel's memory in protection domain `pd`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if the device has too many regions.
    pub(crate) fn register_kernel(&self, pd: &Pd, access: Access) -> Result<Arc<Mr>> {
        self.publish(pd, Memory::Kernel(access))
    }

    /// Creates a region for fast registration of at most `max` pages, or, for
    /// [`FastKind::Gaps`], of at most `max` pieces of memory of any size. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `max` is zero or more than [`limits::MAX_FAST_REG_PAGES`]; `ENOMEM`.
    pub(crate) fn alloc_fast(&self, pd: &Pd, kind: FastKind, max: u32) -> Result<Arc<Mr>> {
        if max == 0 || max > limits::MAX_FAST_REG_PAGES {
            return Err(EINVAL);
        }
        self.publish(pd, Memory::Fast(FastMemory::new(kind, max)?))
    }

    /// Gives `memory` a random key in protection domain `pd`, and enters the region in the table.
    fn publish(&self, pd: &Pd, memory: Memory) -> Result<Arc<Mr>> {
        let object = pd.claim_object()?;
        let reservation = self.regions.reserve_random(INDICES, limits::KEY_SCATTER)?;
        let key = reservation.id().wrapping_shl(8) | (rdma::support::random::next_u32() & 0xff);
        let mr = Mr::new(object, pd.id(), key, memory)?;
        reservation.publish(mr.clone());
        Ok(mr)
    }
}
