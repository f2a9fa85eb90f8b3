// SPDX-License-Identifier: GPL-2.0

//! Accesses to memory that is always resident, of any length. They take no lock.

use rdma::{memory::fast_mr::kernel_span, verbs::mr::Span};
use roce::host::{AccessFault, LocalAccess};

use super::{is_all_memory, AccessRequest, Found, Mr, MrTable};
use crate::{
    memory::{mw::MwTable, remote::RemoteRange},
    qp::wqe::Sge,
    verbs::pd::PdId,
};

impl Mr {
    /// Works as [`Self::with`] for memory that is always resident.
    ///
    /// # Errors
    ///
    /// Those of [`Self::with`]; `Retry` for other kinds of memory.
    fn with_resident<R>(
        &self,
        key: u32,
        addr: u64,
        length: u32,
        right: impl AccessRequest,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        match self.find(key, addr, length, right)? {
            Found::Resident(span) => Ok(f(span)),
            Found::OnDemand(..) | Found::Fast(_) => Err(AccessFault::Retry),
        }
    }
}

impl MrTable {
    /// Works as [`Self::with_local`] for memory that is always resident.
    ///
    /// # Errors
    ///
    /// `Denied` as for [`Self::with_local`]; `Retry` for other kinds of memory.
    pub(crate) fn with_resident<R>(
        &self,
        pd: PdId,
        sge: &Sge,
        access: LocalAccess,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        let Sge { addr, length, lkey } = *sge;
        if is_all_memory(pd, lkey) {
            return kernel_span(addr, length).map(f).ok_or(AccessFault::Denied);
        }
        self.with(pd, lkey.0, |mr| {
            mr.with_resident(lkey.0, addr, length, access, f)
        })
    }

    /// Works as [`Self::with_remote`] for memory that is always resident, and that the peer reaches
    /// by the key of a region.
    ///
    /// # Errors
    ///
    /// `Denied` as for [`Self::with_remote`]; `Retry` for other kinds of memory and for windows.
    pub(crate) fn with_resident_range<R>(
        &self,
        range: &RemoteRange,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        let key = range.rkey.0;
        if MwTable::is_window(key) {
            return Err(AccessFault::Retry);
        }
        self.with(range.context.pd, key, |mr| {
            mr.with_resident(key, range.va, range.length, range.access, f)
        })
    }
}
