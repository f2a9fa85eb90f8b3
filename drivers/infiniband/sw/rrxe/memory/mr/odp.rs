// SPDX-License-Identifier: GPL-2.0

//! Regions on demand: how their memory becomes resident.

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
    /// Its memory, if that comes when it is used, and the place of address `addr` in it.
    pub(crate) fn on_demand(&self, addr: u64) -> Option<(&OnDemand, u64)> {
        let (memory, offset) = self.locate(addr)?;
        Some((memory.on_demand()?, offset))
    }
}

/// Memory that an access found absent.
pub(crate) struct AbsentMemory {
    mr: Arc<Mr>,
    /// The region's address.
    addr: u64,
    writes: bool,
}

impl AbsentMemory {
    /// The region's memory, and the place in it. `None` if it is always there.
    pub(crate) fn place(&self) -> Option<(&OnDemand, u64)> {
        self.mr.on_demand(self.addr)
    }
}

impl MrTable {
    /// The memory that an access found absent, if the access would still be allowed: keys, protection domains and rights
    /// may have changed since. The access is to be tried again in any case, and finds out for itself what is wrong.
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

    /// Memory of the region that `key` opens in domain `pd`, from `addr` on.
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

    /// Makes memory resident that an access found absent. In a thread of its process ([`OnDemand::is_here`]); sleeps.
    ///
    /// # Errors
    ///
    /// Those of [`OnDemand::serve`].
    pub(crate) fn fault_in(&self, absent: &Absent) -> Result {
        let Some(found) = self.absent(absent) else {
            return Ok(());
        };
        let (memory, offset) = found.place().ok_or(EFAULT)?;
        if !memory.is_here() {
            // It was registered again meanwhile, by another process: the access has not come to that memory yet.
            return Ok(());
        }
        let room = memory.length().saturating_sub(offset);
        let ahead = u32::try_from(room).unwrap_or(u32::MAX).min(absent.ahead);
        memory
            .serve(offset, ahead, found.writes)
            .or_else(|_| memory.serve(offset, absent.least, found.writes))
            .or_else(|error| match self.regions.get(found.mr.key >> 8) {
                // The same.
                Some(now) if !Arc::ptr_eq(&now, &found.mr) => Ok(()),
                _ => Err(error),
            })
    }

    /// The region whose memory its owner wants to be made resident. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a key that isn't an on-demand region's of this domain, `EPERM` for a right that it
    /// hasn't, `EFAULT` for a range beyond it.
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
