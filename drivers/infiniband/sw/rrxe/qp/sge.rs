// SPDX-License-Identifier: GPL-2.0

//! Access to the memory of scatter/gather lists. Each span of an SGE is looked up, checked and used
//! before the next one.
//!
//! Keys are looked up at every use, so a region that was deregistered meanwhile is not found.

use rdma::{
    abi::ring::Ring, memory::odp::LONGEST_SPAN, support::table::LastLookup, verbs::mr::Span,
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

/// Access to the memory of a QP's owner.
pub(crate) struct OwnMemory<'a> {
    /// Memory regions of the device.
    pub(crate) mrs: &'a MrTable,
    /// Protection domain to which the keys must belong.
    pub(crate) pd: PdId,
    /// Memory region that was used last.
    pub(crate) recent: &'a mut LastLookup<Mr>,
    /// State in which an access to absent memory is stored, which parks the QP (`qp/parked.rs`).
    pub(crate) parked: &'a mut Parked,
}

impl OwnMemory<'_> {
    /// Borrows the same access for a shorter time.
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

/// Returns the bytes of `count` SGEs in a WQE.
pub(crate) const fn bytes(count: u32) -> usize {
    SGE_SIZE.saturating_mul(count as usize)
}

/// Checks key, range and permission of each SGE whose length is not zero.
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

/// Returns the parts of the SGEs that hold the `length` bytes that begin at byte `offset` of the
/// list. Their lengths add up to less than `length` if the list is too short.
pub(crate) fn parts(sges: &[Sge], offset: u32, length: u32) -> impl Iterator<Item = Sge> + '_ {
    let (mut skip, mut left) = (offset, length);
    sges.iter().filter_map(move |sge| {
        let part = Sge {
            addr: sge.addr.wrapping_add(u64::from(skip)),
            length: sge.length.saturating_sub(skip).min(left),
            lkey: sge.lkey,
        };
        skip = skip.saturating_sub(sge.length);
        left = left.wrapping_sub(part.length);
        (part.length != 0).then_some(part)
    })
}

/// Calls `visit` with each span of the `length` bytes that begin at byte `offset` of the list. The
/// second argument is the span's distance from `offset`. A span has at most [`LONGEST_SPAN`] bytes,
/// as many as every kind of region can serve at once. The frame of a raw packet QP may be longer
/// than one span.
///
/// # Errors
///
/// `LocProtErr` if a key, range or permission is wrong, `LocLenErr` if the list is too short, the
/// error of `visit`, and [`ScatterFault::Retry`] if memory is absent.
pub(crate) fn walk(
    sges: &[Sge],
    offset: u32,
    length: u32,
    access: LocalAccess,
    own: OwnMemory<'_>,
    mut visit: impl FnMut(&Span<'_>, u32) -> Result<(), ScatterFault>,
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

/// Calls `copy` with each span of the `length` bytes that begin at byte `offset` of the list, in
/// order to write to them. The second argument is the span's distance from `offset`.
///
/// # Errors
///
/// The errors of [`walk`]. If `copy` fails, [`ScatterFault::Retry`] for `Retry` and `LocProtErr`
/// for any other error.
pub(crate) fn write(
    sges: &[Sge],
    offset: u32,
    length: u32,
    own: OwnMemory<'_>,
    mut copy: impl FnMut(&Span<'_>, u32) -> Result<(), AccessFault>,
) -> Result<(), ScatterFault> {
    let access = LocalAccess::Write;
    walk(sges, offset, length, access, own, |span, done| {
        copy(span, done).map_err(|fault| match fault {
            AccessFault::Retry => ScatterFault::Retry,
            _ => ScatterFault::Failed(WcStatus::LocProtErr),
        })
    })
}

/// Copies the payload of `packet` to the list, from byte `offset` on.
///
/// # Errors
///
/// The errors of [`write()`].
pub(crate) fn scatter(
    sges: &[Sge],
    offset: u32,
    packet: &RxPacket,
    own: OwnMemory<'_>,
) -> Result<(), ScatterFault> {
    let mrs = own.mrs;
    if packet.count > 1 {
        return scatter_train(sges, offset, packet, mrs, own.pd);
    }
    let length = packet.packet.payload_len;
    write(sges, offset, length, own, |span, done| {
        packet.copy_payload(done, span, mrs)
    })
}

/// Copies the payload of several packets of a train to the list, from byte `offset` on, if the
/// memory of both ends is always resident.
///
/// # Errors
///
/// [`ScatterFault::Retry`] for any other memory and for any error. The packets are then copied one
/// by one.
fn scatter_train(
    sges: &[Sge],
    offset: u32,
    packet: &RxPacket,
    mrs: &MrTable,
    pd: PdId,
) -> Result<(), ScatterFault> {
    let length = packet.packet.payload_len;
    let mut done = 0u32;
    for part in parts(sges, offset, length) {
        mrs.with_resident(pd, &part, LocalAccess::Write, |span| {
            packet.copy_payload(done, &span, mrs)
        })
        .and_then(|copied| copied)
        .map_err(|_| ScatterFault::Retry)?;
        done = done.wrapping_add(part.length);
    }
    (done == length).then_some(()).ok_or(ScatterFault::Retry)
}

/// Copies `bytes` to the list, from byte `offset` on. For short data.
///
/// # Errors
///
/// The errors of [`write()`].
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
        let piece = piece.ok_or(AccessFault::Denied)?;
        span.copy_from_slice(0, piece)
            .map_err(|_| AccessFault::Denied)
    })
}

/// Copies the SGEs at byte `at` of a WQE to `sges`. Reads each word of the ring once.
pub(crate) fn read_sges(ring: &Ring, slot: u32, at: usize, sges: &mut [Sge]) {
    for (index, sge) in sges.iter_mut().enumerate() {
        let offset = index.saturating_mul(SGE_SIZE).saturating_add(at);
        *sge = Sge::parse(&ring.read_words(slot, offset));
    }
}
