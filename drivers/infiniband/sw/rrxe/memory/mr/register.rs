// SPDX-License-Identifier: GPL-2.0

//! Registration and reregistration of regions.

use core::sync::atomic::AtomicU32;

use kernel::{prelude::*, sync::Arc};
use rdma::{
    memory::{
        fast_mr::{FastKind, FastMemory},
        odp,
    },
    verbs::mr::{Access, MrChange, UserRange},
};

use super::{rights, Memory, Mr, MrTable, PLACES};
use crate::{
    device::workqueues::Workqueues,
    limits::{
        self,
        accounts::{Accounts, ObjectClaim, Payer},
        thread_permit::OwnerPermit,
    },
    verbs::pd::Pd,
};

/// A share of the calling process's address space in the threads that release memory on demand. The process pays, not the
/// one that opened the device: an open device may be passed on.
fn release_share(accounts: &Arc<Accounts>) -> Result<Arc<dyn odp::Threads>> {
    let payer = Arc::new(Payer::current(accounts)?, GFP_KERNEL_ACCOUNT)?;
    Ok(OwnerPermit::new(&payer)?)
}

impl MrTable {
    /// Makes memory of a process accessible in protection domain `pd`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and those of [`UserRange::take`].
    pub(crate) fn register(
        &self,
        pd: &Pd,
        range: &UserRange<'_>,
        access: Access,
    ) -> Result<Arc<Mr>> {
        let workqueues = &pd.device().workqueues;
        let share = || release_share(&workqueues.accounts);
        let memory = Memory::User {
            memory: range.take(access, &workqueues.owners, &share)?,
            iova: range.iova(access),
            access: AtomicU32::new(access.bits()),
        };
        self.publish(pd, memory)
    }

    /// Changes `mr` and returns it, or what takes its place under the same key. The process of memory on demand becomes one of
    /// the owners of `workqueues`. On error nothing has changed. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` while windows are bound to it and for what isn't a process's memory, and those of
    /// [`UserRange::take`].
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
        let other = match &change.range {
            Some(range) => {
                let share = || release_share(&workqueues.accounts);
                let memory = range.take(access, &workqueues.owners, &share)?;
                Some((range.iova(access), memory))
            }
            None => memory.again(access)?.map(|memory| (*iova, memory)),
        };
        let Some((iova, memory)) = other else {
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

    /// Makes all of the kernel's memory accessible in protection domain `pd`. Process context.
    ///
    /// # Errors
    ///
    /// As for [`Self::register`].
    pub(crate) fn register_kernel(&self, pd: &Pd, access: Access) -> Result<Arc<Mr>> {
        self.publish(pd, Memory::Kernel(access))
    }

    /// Makes a region for fast registration of at most `max` pages or pieces. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more than the limit; as for [`Self::register`].
    pub(crate) fn alloc_fast(&self, pd: &Pd, kind: FastKind, max: u32) -> Result<Arc<Mr>> {
        if max == 0 || max > limits::MAX_FAST_REG_PAGES {
            return Err(EINVAL);
        }
        self.publish(pd, Memory::Fast(FastMemory::new(kind, max)?))
    }

    fn publish(&self, pd: &Pd, memory: Memory) -> Result<Arc<Mr>> {
        let object = pd.claim_object()?;
        let place = self.regions.reserve_random(PLACES, limits::KEY_SCATTER)?;
        let key = place.id().wrapping_shl(8) | (rdma::support::random::next_u32() & 0xff);
        let mr = Mr::new(object, pd.id(), key, memory)?;
        place.publish(mr.clone());
        Ok(mr)
    }
}
