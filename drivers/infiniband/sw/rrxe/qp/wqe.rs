// SPDX-License-Identifier: GPL-2.0

//! Work queue elements (WQEs) of the stock rxe ABI (include/uapi/rdma/rdma_user_rxe.h), parsed from
//! a private copy.
//!
//! A process may change its rings at any time. So each WQE is copied out of the ring first, and
//! only the copy is parsed. Lengths are computed from the SGEs: stock librxe is known to write
//! wrong totals, and a hostile process may write any value.

use rdma::{
    abi::uabi::{av, kernel_opcode, opcode, recv_wqe, send_flag, send_wqe, sge},
    device::gid::Gid,
    memory::fast_mr::Registration,
    verbs::{av::PostedAv, mr::Access},
};
use roce::{
    ids::{Imm, Lkey, Qkey, Qpn, Rkey, Srqn},
    wc::WcStatus,
    wire::MAX_MESSAGE,
    wr::{AtomicOp, FlushKind, LocalOp, RemoteAddr, SendExtra, SendOp, UdDest},
};

use crate::{memory::mw::Bind, qp::peer::Destination};

/// Bytes of a send WQE before its SGEs: `struct rxe_send_wqe` up to `dma.sge`.
pub(crate) const SEND_HEADER: usize = send_wqe::PAYLOAD;
/// Bytes of a receive WQE before its SGEs: `struct rxe_recv_wqe` up to `dma.sge`.
pub(crate) const RECV_HEADER: usize = recv_wqe::PAYLOAD;
/// Bytes of one SGE: `struct rxe_sge`.
pub(crate) const SGE_SIZE: usize = sge::SIZE;

/// A scatter/gather element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sge {
    /// Address of the first byte, as the poster names it (IOVA).
    pub(crate) addr: u64,
    /// Number of bytes.
    pub(crate) length: u32,
    /// L_Key of the memory region.
    pub(crate) lkey: Lkey,
}

impl Sge {
    /// Parses an SGE.
    pub(crate) fn parse(raw: &[u8; SGE_SIZE]) -> Self {
        Self {
            addr: u64_at(raw, sge::ADDR),
            length: u32_at(raw, sge::LENGTH),
            lkey: Lkey(u32_at(raw, sge::LKEY)),
        }
    }
}

/// Poster of a queue's WQEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A process.
    User,
    /// A kernel consumer. Only a kernel consumer may post REG_MR.
    Kernel,
}

/// Fixed part of a send WQE.
pub(crate) struct SendHeader {
    /// Cookie for the completion.
    pub(crate) wr_id: u64,
    /// Operation, or the status with which the WQE completes because its opcode is not supported.
    pub(crate) op: Result<SendOp, WcStatus>,
    /// The WQE waits for earlier READs and atomics (`IB_SEND_FENCE`).
    pub(crate) fence: bool,
    /// The WQE completes with a CQE (`IB_SEND_SIGNALED`).
    pub(crate) signaled: bool,
    /// The peer's completion is a solicited event (`IB_SEND_SOLICITED`).
    pub(crate) solicited: bool,
    /// Number of bytes of inline payload that follow. `None` if SGEs follow.
    pub(crate) inline: Option<u32>,
    /// Number of SGEs.
    pub(crate) num_sge: u32,
    /// Number of the peer's shared receive queue, if the QP is an XRC initiator.
    pub(crate) srqn: Srqn,
}

impl SendHeader {
    /// Parses a send WQE of `owner`. `datagram` says that the QP is a datagram QP or a raw packet
    /// QP.
    pub(crate) fn parse(raw: &[u8; SEND_HEADER], owner: Owner, datagram: bool) -> Self {
        let flags = u32_at(raw, send_wqe::FLAGS);
        // Some versions of librxe leave one of the two totals of an inline payload at zero, so the
        // larger one counts.
        let inline_len = u32_at(raw, send_wqe::LENGTH).max(u32_at(raw, send_wqe::RESIDUE));
        let op = if datagram {
            datagram_op(raw)
        } else {
            send_op(raw, owner)
        };
        // librxe stores the operand of an ATOMIC WRITE as inline payload, without `IB_SEND_INLINE`.
        let operand = matches!(op, Ok(SendOp::AtomicWrite(_)));
        Self {
            wr_id: u64_at(raw, send_wqe::WR_ID),
            op,
            fence: flags & send_flag::FENCE != 0,
            signaled: flags & send_flag::SIGNALED != 0,
            solicited: flags & send_flag::SOLICITED != 0,
            inline: (operand || flags & send_flag::INLINE != 0).then_some(inline_len),
            num_sge: u32_at(raw, send_wqe::NUM_SGE),
            srqn: Srqn::new(u32_at(raw, send_wqe::SRQN)),
        }
    }
}

/// Fixed part of a receive WQE.
pub(crate) struct RecvHeader {
    /// Cookie for the completion.
    pub(crate) wr_id: u64,
    /// Number of SGEs.
    pub(crate) num_sge: u32,
}

impl RecvHeader {
    /// Parses a receive WQE.
    pub(crate) fn parse(raw: &[u8; RECV_HEADER]) -> Self {
        Self {
            wr_id: u64_at(raw, recv_wqe::WR_ID),
            num_sge: u32_at(raw, recv_wqe::NUM_SGE),
        }
    }
}

/// Parses the operation of a connected QP: `enum ib_uverbs_wr_opcode` and the member of the `wr`
/// union that belongs to it.
///
/// # Errors
///
/// `LocQpOpErr` for other opcodes.
fn send_op(raw: &[u8; SEND_HEADER], owner: Owner) -> Result<SendOp, WcStatus> {
    // `ex` holds big-endian immediate data, or a key in host byte order.
    let imm = Imm(u32::from_be(u32_at(raw, send_wqe::EX)));
    let invalidate = u32_at(raw, send_wqe::EX);
    let rdma = RemoteAddr {
        va: u64_at(raw, send_wqe::RDMA_ADDR),
        rkey: Rkey(u32_at(raw, send_wqe::RDMA_RKEY)),
    };
    let atomic = RemoteAddr {
        va: u64_at(raw, send_wqe::ATOMIC_ADDR),
        rkey: Rkey(u32_at(raw, send_wqe::ATOMIC_RKEY)),
    };
    Ok(match u32_at(raw, send_wqe::OPCODE) {
        opcode::RDMA_WRITE => SendOp::Write(rdma, None),
        opcode::RDMA_WRITE_WITH_IMM => SendOp::Write(rdma, Some(imm)),
        opcode::SEND => SendOp::Send(SendExtra::Plain),
        opcode::SEND_WITH_IMM => SendOp::Send(SendExtra::Imm(imm)),
        opcode::RDMA_READ => SendOp::Read(rdma),
        opcode::COMPARE_SWAP => SendOp::Atomic(
            atomic,
            AtomicOp::CompareSwap {
                compare: u64_at(raw, send_wqe::ATOMIC_COMPARE_ADD),
                swap: u64_at(raw, send_wqe::ATOMIC_SWAP),
            },
        ),
        opcode::FETCH_ADD => SendOp::Atomic(
            atomic,
            AtomicOp::FetchAdd {
                add: u64_at(raw, send_wqe::ATOMIC_COMPARE_ADD),
            },
        ),
        opcode::LOCAL_INV => SendOp::Local(LocalOp::Invalidate(Lkey(invalidate))),
        opcode::BIND_MW => SendOp::Local(LocalOp::BindMw),
        opcode::SEND_WITH_INV => SendOp::Send(SendExtra::Invalidate(Rkey(invalidate))),
        opcode::FLUSH => flush_op(raw),
        opcode::ATOMIC_WRITE => SendOp::AtomicWrite(rdma),
        kernel_opcode::REG_MR if owner == Owner::Kernel => SendOp::Local(LocalOp::RegMr),
        _ => return Err(WcStatus::LocQpOpErr),
    })
}

/// Parses the operation of a datagram QP. The `wr` union names the destination QP.
///
/// # Errors
///
/// `LocQpOpErr` for operations other than SEND.
fn datagram_op(raw: &[u8; SEND_HEADER]) -> Result<SendOp, WcStatus> {
    let peer = UdDest {
        qpn: Qpn::new(u32_at(raw, send_wqe::UD_QPN)),
        qkey: Qkey(u32_at(raw, send_wqe::UD_QKEY)),
    };
    match u32_at(raw, send_wqe::OPCODE) {
        opcode::SEND => Ok(SendOp::Datagram(peer, None)),
        opcode::SEND_WITH_IMM => {
            let imm = Imm(u32::from_be(u32_at(raw, send_wqe::EX)));
            Ok(SendOp::Datagram(peer, Some(imm)))
        }
        _ => Err(WcStatus::LocQpOpErr),
    }
}

/// Parses the destination of a datagram. A library without numbers for address handles leaves the
/// number at zero, and stores the address itself behind it.
pub(crate) fn destination(raw: &[u8; SEND_HEADER]) -> Destination {
    match u32_at(raw, send_wqe::UD_AH) {
        0 => Destination::Posted(posted_av(raw.get(send_wqe::UD_AV..).unwrap_or_default())),
        number => Destination::Handle(number),
    }
}

/// Parses the address of a datagram: `struct rxe_av`.
fn posted_av(raw: &[u8]) -> PostedAv {
    let dgid = raw.get(av::DGID..).and_then(|tail| tail.first_chunk());
    PostedAv {
        dgid: Gid(dgid.copied().unwrap_or_default()),
        sgid_index: u8_at(raw, av::SGID_INDEX),
        traffic_class: u8_at(raw, av::TRAFFIC_CLASS),
        hop_limit: u8_at(raw, av::HOP_LIMIT),
        flow_label: u32_at(raw, av::FLOW_LABEL),
        port: u8_at(raw, av::PORT),
    }
}

/// Parses the arguments of a fast registration (REG_MR).
pub(crate) fn registration(raw: &[u8; SEND_HEADER]) -> Registration {
    Registration {
        key: u32_at(raw, send_wqe::REG_KEY),
        iova: u64_at(raw, send_wqe::REG_IOVA),
        access: Access::from_bits(u32_at(raw, send_wqe::REG_ACCESS)),
    }
}

/// Parses the arguments of a memory window bind (BIND_MW).
pub(crate) fn bind(raw: &[u8; SEND_HEADER]) -> Bind {
    Bind {
        window: Rkey(u32_at(raw, send_wqe::MW_WINDOW)),
        rkey: Rkey(u32_at(raw, send_wqe::MW_RKEY)),
        region: Lkey(u32_at(raw, send_wqe::MW_REGION)),
        addr: u64_at(raw, send_wqe::MW_ADDR),
        length: u64_at(raw, send_wqe::MW_LENGTH),
        access: Access::from_bits(u32_at(raw, send_wqe::MW_ACCESS)),
    }
}

/// Parses the arguments of a FLUSH.
fn flush_op(raw: &[u8; SEND_HEADER]) -> SendOp {
    SendOp::Flush(
        RemoteAddr {
            va: u64_at(raw, send_wqe::FLUSH_ADDR),
            rkey: Rkey(u32_at(raw, send_wqe::FLUSH_RKEY)),
        },
        FlushKind::new(
            u8_at(raw, send_wqe::FLUSH_TYPE),
            u8_at(raw, send_wqe::FLUSH_LEVEL),
        ),
    )
}

/// Returns the length of a FLUSH's range. A FLUSH has no payload. librxe stores the range's length
/// where other WQEs have the payload's length, and leaves the FLUSH's own length field at zero.
pub(crate) fn flush_length(raw: &[u8; SEND_HEADER]) -> u32 {
    u32_at(raw, send_wqe::LENGTH)
}

/// Returns the sum of the SGEs' lengths. Returns `None` if the sum exceeds [`MAX_MESSAGE`].
pub(crate) fn total_length(sges: &[Sge]) -> Option<u32> {
    sges.iter()
        .try_fold(0u32, |sum, sge| sum.checked_add(sge.length))
        .filter(|sum| *sum <= MAX_MESSAGE)
}

/// Returns the byte at `at`. Returns 0 beyond the end, which no offset in this file reaches.
fn u8_at(raw: &[u8], at: usize) -> u8 {
    raw.get(at).copied().unwrap_or(0)
}

/// Returns the native-endian 32-bit word at `at`. Returns 0 beyond the end.
fn u32_at(raw: &[u8], at: usize) -> u32 {
    raw.get(at..)
        .and_then(|tail| tail.first_chunk())
        .map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Returns the native-endian 64-bit word at `at`. Returns 0 beyond the end.
fn u64_at(raw: &[u8], at: usize) -> u64 {
    raw.get(at..)
        .and_then(|tail| tail.first_chunk())
        .map_or(0, |word| u64::from_ne_bytes(*word))
}
