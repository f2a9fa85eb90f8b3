// SPDX-License-Identifier: GPL-2.0

//! Regions on demand: how their memory becomes resident.

use kernel::{prelude::*, sync::Arc};
use rdma::{mr::Advised, odp::Fault};
use roce::ids::Rkey;

use super::{rights, Found, Memory, Mr, MrTable};
use crate::{
    fault::{Absent, Access},
    mw::MwTable,
    pd::PdId,
    reach::Reach,
    right::{Granted, Right},
};

impl Mr {
    /// Makes memory resident because its owner advises it, and asks `goes_on` before each piece. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` for what isn't there, or not so, and those of [`ProcessMemory::prefetch`].
    pub(crate) fn prefetch(
        &self,
        advised: &Advised,
        how: Fault,
        goes_on: impl Fn() -> Result,
    ) -> Result {
        let (memory, offset) = self.locate(advised.addr).ok_or(EFAULT)?;
        memory.prefetch(offset, advised.length.into(), how, goes_on)
    }
}

impl MrTable {
    /// Makes memory resident that an access found absent, if the access would still be allowed: keys, protection
    /// domains and rights may have changed since. The access is to be tried again in any case, and finds out for
    /// itself what is wrong. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// Those of [`OnDemand::serve`](rdma::odp::OnDemand::serve).
    pub(crate) fn fault_in(&self, absent: &Absent) -> Result {
        let Absent { key, addr, .. } = *absent;
        match absent.access {
            Access::Local(pd, access) => self.fault_in_region(pd, key, addr, absent, access),
            Access::Remote(via, access) if MwTable::is_window(key) => {
                let reach = Reach {
                    via,
                    rkey: Rkey(key),
                    va: addr,
                    length: absent.least,
                    access,
                };
                let place = |region, addr| Ok((region, addr));
                let Ok((region, addr)) = self.windows.with_range(&reach, place) else {
                    return Ok(());
                };
                self.fault_in_region(via.pd, region, addr, absent, Granted(access))
            }
            Access::Remote(via, access) => self.fault_in_region(via.pd, key, addr, absent, access),
        }
    }

    /// Makes memory of the region that `key` opens in domain `pd` resident, from `addr` on.
    fn fault_in_region(
        &self,
        pd: PdId,
        key: u32,
        addr: u64,
        absent: &Absent,
        right: impl Right,
    ) -> Result {
        let Some(mr) = self.regions.get(key >> 8).filter(|mr| mr.pd() == pd) else {
            return Ok(());
        };
        let Ok(Found::OnDemand(memory, offset)) = mr.find(key, addr, absent.least, right) else {
            return Ok(());
        };
        if !memory.contains(offset, absent.least.into()) {
            return Ok(());
        }
        let room = memory.length().saturating_sub(offset);
        let ahead = u32::try_from(room).unwrap_or(u32::MAX).min(absent.ahead);
        memory
            .serve(offset, ahead, right.writes())
            .or_else(|_| memory.serve(offset, absent.least, right.writes()))
            .or_else(|error| match self.regions.get(key >> 8) {
                // It was registered again meanwhile: the access has not come to that memory yet.
                Some(now) if !Arc::ptr_eq(&now, &mr) => Ok(()),
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
