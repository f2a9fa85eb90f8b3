// SPDX-License-Identifier: GPL-2.0

//! On-demand regions: page faults on their memory, and advice (`ibv_advise_mr()`) for it.

use kernel::{prelude::*, sync::Arc};
use rdma::{
    memory::odp::{Fault, OnDemand},
    verbs::mr::Advised,
};
use roce::ids::Rkey;

use super::{rights, Found, Memory, Mr, MrTable};
use crate::{
    memory::{
        access::{AccessRequest, Granted},
        mw::MwTable,
        remote::RemoteRange,
    },
    qp::parked::{Absent, Access},
    verbs::pd::PdId,
};

impl Mr {
    /// Returns the region's on-demand memory, and the offset of address `addr` in it. `None` if the
    /// region's memory is pinned or isn't a process's, or if `addr` is before the region.
    pub(crate) fn on_demand(&self, addr: u64) -> Option<(&OnDemand, u64)> {
        let (memory, offset) = self.locate(addr)?;
        Some((memory.on_demand()?, offset))
    }
}

/// Memory that an access found absent: not resident.
pub(crate) struct AbsentMemory {
    mr: Arc<Mr>,
    /// Address of the first absent byte, in the region's addresses.
    addr: u64,
    /// Whether the access changes the memory.
    writes: bool,
}

impl AbsentMemory {
    /// Returns the region's on-demand memory, and the offset of the absent part in it. `None` if
    /// the region's memory is pinned.
    pub(crate) fn place(&self) -> Option<(&OnDemand, u64)> {
        self.mr.on_demand(self.addr)
    }
}

impl MrTable {
    /// Returns the memory that an access found absent. Returns `None` if the access is not allowed
    /// any more: keys, protection domains and rights may have changed since. In both cases the
    /// engine retries the access, and a retry that is not allowed fails.
    pub(crate) fn absent(&self, absent: &Absent) -> Option<AbsentMemory> {
        let Absent { key, addr, .. } = *absent;
        match absent.access {
            Access::Local(pd, access) => self.absent_of_region(pd, key, addr, absent, access),
            Access::Remote(context, access) if MwTable::is_window(key) => {
                let range = RemoteRange {
                    context,
                    rkey: Rkey(key),
                    va: addr,
                    length: absent.least,
                    access,
                };
                let place = |region, addr| Ok((region, addr));
                let (region, addr) = self.windows.with_range(&range, place).ok()?;
                self.absent_of_region(context.pd, region, addr, absent, Granted(access))
            }
            Access::Remote(context, access) => {
                self.absent_of_region(context.pd, key, addr, absent, access)
            }
        }
    }

    /// Returns the absent memory of the region with key `key` in protection domain `pd`, which
    /// begins at address `addr`. Returns `None` if the region does not allow the access `right`
    /// there any more, or its memory is not on demand.
    fn absent_of_region(
        &self,
        pd: PdId,
        key: u32,
        addr: u64,
        absent: &Absent,
        right: impl AccessRequest,
    ) -> Option<AbsentMemory> {
        let mr = self.regions.get(key >> 8).filter(|mr| mr.pd() == pd)?;
        let Ok(Found::OnDemand(memory, offset)) = mr.find(key, addr, absent.least, right) else {
            return None;
        };
        let within = memory.contains(offset, absent.least.into());
        within.then(|| AbsentMemory {
            mr: mr.clone(),
            addr,
            writes: right.writes(),
        })
    }

    /// Makes the memory resident that an access found absent: `absent.ahead` bytes, or
    /// `absent.least` bytes if that fails. Does nothing if the access is not allowed any more. Must
    /// be called in a thread of the memory's process ([`OnDemand::is_here`]); sleeps.
    ///
    /// # Errors
    ///
    /// Those of [`OnDemand::serve`] for `absent.least` bytes; `EFAULT`.
    pub(crate) fn fault_in(&self, absent: &Absent) -> Result {
        let Some(found) = self.absent(absent) else {
            return Ok(());
        };
        let (memory, offset) = found.place().ok_or(EFAULT)?;
        if !memory.is_here() {
            // The region was registered again meanwhile with memory of another process. The engine
            // retries the access, which then faults on that memory.
            return Ok(());
        }
        let room = memory.length().saturating_sub(offset);
        let ahead = u32::try_from(room).unwrap_or(u32::MAX).min(absent.ahead);
        memory
            .serve(offset, ahead, found.writes)
            .or_else(|_| memory.serve(offset, absent.least, found.writes))
            .or_else(|error| match self.regions.get(found.mr.key >> 8) {
                // The region was registered again meanwhile with other memory, so this error
                // doesn't concern the retried access.
                Some(now) if !Arc::ptr_eq(&now, &found.mr) => Ok(()),
                _ => Err(error),
            })
    }

    /// Returns the on-demand region that advice names. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a key that is not that of an on-demand region of this protection domain,
    /// `EPERM` for advice to prepare the memory for writes if the region is read-only, `EFAULT` for
    /// a range beyond the region.
    pub(crate) fn advised(&self, pd: PdId, advised: &Advised, how: Fault) -> Result<Arc<Mr>> {
        let key = advised.lkey.0;
        let mr = self.regions.get(key >> 8).ok_or(EINVAL)?;
        let Memory::User { access, .. } = &mr.memory else {
            return Err(EINVAL);
        };
        if mr.key != key || mr.pd() != pd || !rights(access).is_on_demand() {
            return Err(EINVAL);
        }
        let (memory, offset) = mr.locate(advised.addr).ok_or(EFAULT)?;
        if how == Fault::Write && !memory.is_writable() {
            return Err(EPERM);
        }
        if !memory.contains(offset, advised.length.into()) {
            return Err(EFAULT);
        }
        Ok(mr)
    }
}
