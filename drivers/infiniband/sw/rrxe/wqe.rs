// SPDX-License-Identifier: GPL-2.0

//! Work queue elements of the stock rxe ABI, parsed from a private copy.
//!
//! A process may change its rings at any time, so each element is copied out of the ring first;
//! only the copy is looked at here. Lengths are recomputed from the SGEs: stock librxe is known to
//! write wrong totals, and a hostile process writes what it likes.

use roce::{
    ids::{Imm, Lkey, Rkey},
    wc::WcStatus,
    wr::{AtomicOp, FlushKind, LocalOp, RemoteAddr, SendOp, SendTail},
};

/// Bytes of a send WQE before its SGEs: `struct rxe_send_wqe` up to `dma.sge`.
pub(crate) const SEND_HEADER: usize = 208;
/// Bytes of a receive WQE before its SGEs: `struct rxe_recv_wqe` up to `dma.sge`.
pub(crate) const RECV_HEADER: usize = 40;
/// Bytes of one SGE: `struct rxe_sge`.
pub(crate) const SGE_SIZE: usize = 16;

/// Longest message (IBTA 1.x §9.7.6).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

const SEND_FENCE: u32 = 1 << 0;
const SEND_SIGNALED: u32 = 1 << 1;
const SEND_SOLICITED: u32 = 1 << 2;
const SEND_INLINE: u32 = 1 << 3;

/// A scatter/gather element.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: Lkey,
}

impl Sge {
    pub(crate) fn parse(raw: &[u8; SGE_SIZE]) -> Self {
        Self {
            addr: u64_at(raw, 0),
            length: u32_at(raw, 8),
            lkey: Lkey(u32_at(raw, 12)),
        }
    }
}

/// The fixed part of a send WQE.
pub(crate) struct SendHeader {
    pub(crate) wr_id: u64,
    pub(crate) op: Result<SendOp, WcStatus>,
    pub(crate) fence: bool,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// Bytes of inline payload that follow, or `None` when SGEs follow.
    pub(crate) inline: Option<u32>,
    pub(crate) num_sge: u32,
}

impl SendHeader {
    /// Parses a send WQE of an RC QP of user space.
    pub(crate) fn parse(raw: &[u8; SEND_HEADER]) -> Self {
        let flags = u32_at(raw, 16);
        // Some versions of librxe leave one of the two totals of an inline payload at zero.
        let inline_len = u32_at(raw, 184).max(u32_at(raw, 188));
        let op = send_op(raw);
        // librxe puts the operand where inline payload goes, without saying that it is inline.
        let operand = matches!(op, Ok(SendOp::AtomicWrite(_)));
        Self {
            wr_id: u64_at(raw, 0),
            op,
            fence: flags & SEND_FENCE != 0,
            signaled: flags & SEND_SIGNALED != 0,
            solicited: flags & SEND_SOLICITED != 0,
            inline: (operand || flags & SEND_INLINE != 0).then_some(inline_len),
            num_sge: u32_at(raw, 196),
        }
    }
}

/// The fixed part of a receive WQE.
pub(crate) struct RecvHeader {
    pub(crate) wr_id: u64,
    pub(crate) num_sge: u32,
}

impl RecvHeader {
    pub(crate) fn parse(raw: &[u8; RECV_HEADER]) -> Self {
        Self {
            wr_id: u64_at(raw, 0),
            num_sge: u32_at(raw, 28),
        }
    }
}

/// `enum ib_uverbs_wr_opcode` and the part of the `wr` union that belongs to it.
fn send_op(raw: &[u8; SEND_HEADER]) -> Result<SendOp, WcStatus> {
    // `ex` holds big-endian immediate data or a key in host order.
    let imm = Imm(u32::from_be(u32_at(raw, 20)));
    let invalidate = u32_at(raw, 20);
    let rdma = RemoteAddr {
        va: u64_at(raw, 24),
        rkey: Rkey(u32_at(raw, 32)),
    };
    let atomic = RemoteAddr {
        va: rdma.va,
        rkey: Rkey(u32_at(raw, 48)),
    };
    Ok(match u32_at(raw, 12) {
        0 => SendOp::Write(rdma, None),
        1 => SendOp::Write(rdma, Some(imm)),
        2 => SendOp::Send(SendTail::Plain),
        3 => SendOp::Send(SendTail::Imm(imm)),
        4 => SendOp::Read(rdma),
        5 => SendOp::Atomic(
            atomic,
            AtomicOp::CompareSwap {
                compare: u64_at(raw, 32),
                swap: u64_at(raw, 40),
            },
        ),
        6 => SendOp::Atomic(
            atomic,
            AtomicOp::FetchAdd {
                add: u64_at(raw, 32),
            },
        ),
        7 => SendOp::Local(LocalOp::Invalidate(Lkey(invalidate))),
        9 => SendOp::Send(SendTail::Invalidate(Rkey(invalidate))),
        14 => flush_op(raw),
        15 => SendOp::AtomicWrite(rdma),
        _ => return Err(WcStatus::LocQpOpErr),
    })
}

fn flush_op(raw: &[u8; SEND_HEADER]) -> SendOp {
    let [placement, selectivity, ..] = u32_at(raw, 40).to_ne_bytes();
    SendOp::Flush(
        RemoteAddr {
            va: u64_at(raw, 24),
            rkey: Rkey(u32_at(raw, 36)),
        },
        FlushKind {
            placement,
            selectivity,
        },
    )
}

/// The length that a FLUSH names; no payload belongs to it.
pub(crate) fn flush_length(raw: &[u8; SEND_HEADER]) -> u32 {
    u32_at(raw, 32)
}

/// The sum of the SGEs' lengths, if it is a legal message length.
pub(crate) fn total_length(sges: &[Sge]) -> Option<u32> {
    sges.iter()
        .try_fold(0u32, |sum, sge| sum.checked_add(sge.length))
        .filter(|sum| *sum <= MAX_MESSAGE)
}

/// The native-endian word at `at`; 0 beyond the end, which the constants above rule out.
fn u32_at(raw: &[u8], at: usize) -> u32 {
    raw.get(at..)
        .and_then(|tail| tail.first_chunk())
        .map_or(0, |word| u32::from_ne_bytes(*word))
}

/// The native-endian double word at `at`.
fn u64_at(raw: &[u8], at: usize) -> u64 {
    raw.get(at..)
        .and_then(|tail| tail.first_chunk())
        .map_or(0, |word| u64::from_ne_bytes(*word))
}
