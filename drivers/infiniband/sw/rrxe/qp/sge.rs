// SPDX-License-Identifier: GPL-2.0

//! Walks of scatter/gather lists: each piece is looked up, checked and used at once.
//!
//! Keys are resolved at every use: a region deregistered in the meantime is simply no longer there.

use rdma::{
    abi::ring::Ring,
    memory::odp::LONGEST_SPAN,
    support::table::LastLookup,
    verbs::mr::{Span, SpanFault},
};
use roce::{
    host::{AccessFault, LocalAccess, ScatterFault},
    wc::WcStatus,
};

use crate::{
    memory::mr::{Mr, MrTable},
    net::rx::RxPacket,
    qp::{
        parked::{Absent, Access, Parked},
        wqe::{Sge, SGE_SIZE},
    },
    verbs::pd::PdId,
};

/// The memory of a QP's owner.
pub(crate) struct OwnMemory<'a> {
    pub(crate) mrs: &'a MrTable,
    pub(crate) pd: PdId,
    /// The region that was used last.
    pub(crate) recent: &'a mut LastLookup<Mr>,
    /// What to do about absent memory.
    pub(crate) parked: &'a mut Parked,
}

impl OwnMemory<'_> {
    /// The same for a shorter time.
    #[inline]
    pub(crate) fn reborrow(&mut self) -> OwnMemory<'_> {
        OwnMemory {
            mrs: self.mrs,
            pd: self.pd,
            recent: self.recent,
            parked: self.parked,
        }
    }
}

/// Bytes of `count` SGEs in a WQE.
pub(crate) const fn bytes(count: u32) -> usize {
    SGE_SIZE.saturating_mul(count as usize)
}

/// Checks key, range and permission of every SGE that isn't empty.
///
/// # Errors
///
/// `LocProtErr`.
pub(crate) fn check(
    sges: &[Sge],
    access: LocalAccess,
    mrs: &MrTable,
    pd: PdId,
) -> Result<(), WcStatus> {
    for sge in sges.iter().filter(|sge| sge.length != 0) {
        mrs.check_local(pd, sge, access)
            .map_err(|_| WcStatus::LocProtErr)?;
    }
    Ok(())
}

/// Calls `visit` with each span of the `length` bytes at `offset`, and its distance from `offset`. No span is longer
/// than [`LONGEST_SPAN`], which every region serves; the frame of a raw packet QP may be.
///
/// # Errors
///
/// `LocProtErr` when a key, range or permission is wrong, `LocLenErr` when the list is too short,
/// what `visit` returns, and [`ScatterFault::Retry`].
pub(crate) fn walk(
    sges: &[Sge],
    offset: u32,
    length: u32,
    access: LocalAccess,
    own: OwnMemory<'_>,
    mut visit: impl FnMut(&Span<'_>, u32) -> Result<(), WcStatus>,
) -> Result<(), ScatterFault> {
    let OwnMemory {
        mrs,
        pd,
        recent,
        parked,
    } = own;
    let mut skip = offset;
    let mut done = 0u32;
    for sge in sges {
        while done < length && skip < sge.length {
            let left = sge.length.wrapping_sub(skip);
            let piece = Sge {
                addr: sge.addr.wrapping_add(u64::from(skip)),
                length: left.min(length.wrapping_sub(done)).min(LONGEST_SPAN),
                lkey: sge.lkey,
            };
            mrs.with_local(recent, pd, &piece, access, |span| visit(&span, done))
                .map_err(|fault| match fault {
                    AccessFault::Retry => parked.local(&Absent {
                        key: piece.lkey.0,
                        addr: piece.addr,
                        least: piece.length,
                        ahead: left,
                        access: Access::Local(pd, access),
                    }),
                    _ => ScatterFault::Failed(WcStatus::LocProtErr),
                })??;
            skip = skip.wrapping_add(piece.length);
            done = done.wrapping_add(piece.length);
        }
        skip = skip.saturating_sub(sge.length);
    }
    (done == length)
        .then_some(())
        .ok_or(ScatterFault::Failed(WcStatus::LocLenErr))
}

/// Calls `copy` with each span of the `length` bytes at `offset`, to be written, and its distance from `offset`.
///
/// # Errors
///
/// Those of [`walk`]; `LocProtErr` for those of `copy`.
pub(crate) fn write(
    sges: &[Sge],
    offset: u32,
    length: u32,
    own: OwnMemory<'_>,
    mut copy: impl FnMut(&Span<'_>, u32) -> Result<(), SpanFault>,
) -> Result<(), ScatterFault> {
    let access = LocalAccess::Write;
    walk(sges, offset, length, access, own, |span, done| {
        copy(span, done).map_err(|_| WcStatus::LocProtErr)
    })
}

/// Copies the payload of `packet` to `offset` bytes into the list.
///
/// # Errors
///
/// Those of [`write`].
pub(crate) fn scatter(
    sges: &[Sge],
    offset: u32,
    packet: &RxPacket,
    own: OwnMemory<'_>,
) -> Result<(), ScatterFault> {
    let length = packet.packet.payload_len;
    write(sges, offset, length, own, |span, done| {
        packet.copy_payload(done, span)
    })
}

/// Copies a few bytes to `offset` bytes into the list.
///
/// # Errors
///
/// Those of [`write`].
pub(crate) fn scatter_bytes(
    sges: &[Sge],
    offset: u32,
    bytes: &[u8],
    own: OwnMemory<'_>,
) -> Result<(), ScatterFault> {
    let length = u32::try_from(bytes.len()).map_err(|_| WcStatus::LocLenErr)?;
    write(sges, offset, length, own, |span, done| {
        let from = done as usize;
        let piece = bytes.get(from..from.saturating_add(span.len()));
        span.copy_from_slice(0, piece.ok_or(SpanFault::Range)?)
    })
}

/// Copies SGEs out of a WQE, each word once.
pub(crate) fn read_sges(ring: &Ring, slot: u32, at: usize, sges: &mut [Sge]) {
    for (index, sge) in sges.iter_mut().enumerate() {
        let offset = index.saturating_mul(SGE_SIZE).saturating_add(at);
        *sge = Sge::parse(&ring.read_words(slot, offset));
    }
}
