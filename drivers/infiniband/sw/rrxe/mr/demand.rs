// SPDX-License-Identifier: GPL-2.0

//! Regions on demand: how their memory becomes resident.

use kernel::{prelude::*, sync::Arc};
use rdma::{mr::Advised, odp::Fault};
use roce::ids::Rkey;

use super::{rights, Memory, Mr, MrTable};
use crate::{
    fault::{Absent, Access},
    mw::MwTable,
    pd::PdId,
    reach::Reach,
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
    /// Makes memory resident that an access found absent; the access is to be tried again, and finds
    /// out for itself what is wrong with the key. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// Those of [`ProcessMemory::fault_in`].
    pub(crate) fn fault_in(&self, absent: &Absent) -> Result {
        let Some((key, addr)) = self.region_of(absent) else {
            return Ok(());
        };
        let Some(mr) = self.regions.get(key >> 8) else {
            return Ok(());
        };
        let Some((memory, offset)) = mr.locate(addr) else {
            return Ok(());
        };
        let room = memory.length().saturating_sub(offset);
        let ahead = u32::try_from(room).unwrap_or(u32::MAX).min(absent.ahead);
        memory
            .fault_in(offset, ahead, absent.writes())
            .or_else(|_| memory.fault_in(offset, absent.least, absent.writes()))
    }

    /// Key and address of the region that an access comes to.
    fn region_of(&self, absent: &Absent) -> Option<(u32, u64)> {
        match absent.access {
            Access::Remote(via, access) if MwTable::is_window(absent.key) => {
                let reach = Reach {
                    via,
                    rkey: Rkey(absent.key),
                    va: absent.addr,
                    length: absent.least,
                    access,
                };
                let place = |key, addr| Ok((key, addr));
                self.windows.with_range(&reach, place).ok()
            }
            _ => Some((absent.key, absent.addr)),
        }
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
