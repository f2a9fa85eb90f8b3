// SPDX-License-Identifier: GPL-2.0

//! A send WQE that the requester has taken: its operation, its packets and the response that
//! completes it.

use crate::ids::Srqn;
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::qp::{Context, QpKind};
use crate::wc::{SendWc, WcOpcode, WcStatus};
use crate::wire::MAX_MESSAGE;
use crate::wr::{AtomicOp, LocalOp, SendExtra, SendOp, SendSlot, SendWr};

/// Largest number of packets that one READ request asks for.
pub(super) const READ_SPAN: u32 = 1 << 7;

/// A send WQE that the requester has taken.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    /// The work request.
    pub(super) wr: SendWr,
    /// First PSN, valid once the WQE has started.
    pub(super) first: Psn,
    /// Number of PSNs that the WQE takes. 0 if it sends no packet.
    pub(super) packets: u32,
    /// Largest number of packets that a READ request of the WQE asks for, a power of two. A longer
    /// READ is sent as several requests, cut at multiples of this number. This limits the packets
    /// in flight, and the cost of a loss. Valid once the WQE has started.
    pub(super) read_span: u32,
    /// The WQE can't be carried out, and ends with this status.
    pub(super) refused: Option<WcStatus>,
}

/// Kind of the response that completes a WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// An acknowledgment of the WQE or of any later packet. Also the kind of WQEs that get no
    /// response: local operations, datagrams and WQEs of UC.
    Ack,
    /// READ responses with payload.
    Read,
    /// An atomic acknowledgment, with the original value.
    Atomic,
    /// One READ response without payload (ATOMIC WRITE, FLUSH).
    Empty,
}

impl Default for SendWqe {
    fn default() -> Self {
        let wr = SendWr {
            slot: SendSlot(0),
            wr_id: 0,
            op: SendOp::Send(SendExtra::Plain),
            length: 0,
            signaled: false,
            solicited: false,
            fence: false,
            srqn: Srqn::default(),
        };
        Self {
            wr,
            first: Psn::new(0),
            packets: 0,
            read_span: READ_SPAN,
            refused: None,
        }
    }
}

impl SendWqe {
    /// Creates a WQE that hasn't started.
    #[inline]
    pub(super) fn new(wr: SendWr, refused: Option<WcStatus>, context: &Context) -> Self {
        Self {
            wr,
            first: Psn::new(0),
            packets: count_packets(&wr, context),
            read_span: READ_SPAN,
            refused,
        }
    }

    /// Returns the kind of response that completes the WQE.
    pub(super) fn answer(&self) -> Answer {
        match self.wr.op {
            SendOp::Read(_) => Answer::Read,
            SendOp::Atomic(..) => Answer::Atomic,
            SendOp::AtomicWrite(_) | SendOp::Flush(..) => Answer::Empty,
            SendOp::Send(_) | SendOp::Datagram(..) | SendOp::Write(..) | SendOp::Local(_) => {
                Answer::Ack
            }
        }
    }

    /// Returns whether the WQE counts towards `max_rd_atomic` while it is in flight.
    pub(super) fn uses_rd_atomic(&self) -> bool {
        self.answer() != Answer::Ack
    }

    /// Returns whether the WQE is a local operation, which sends no packet.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.wr.op, SendOp::Local(_))
    }

    /// Returns whether the WQE is a SEND or a datagram.
    pub(super) fn is_send(&self) -> bool {
        matches!(self.wr.op, SendOp::Send(_) | SendOp::Datagram(..))
    }

    /// Returns the number of PSNs of the request that starts with packet `index`.
    pub(super) fn span(&self, index: u32) -> u32 {
        match self.wr.op {
            SendOp::Read(_) => {
                let to_cut = self
                    .read_span
                    .wrapping_sub(index & self.read_span.wrapping_sub(1));
                to_cut.min(self.packets.saturating_sub(index))
            }
            _ => 1,
        }
    }

    /// Returns whether packet `index` is the last one of its request.
    #[inline]
    pub(super) fn request_ends(&self, index: u32) -> bool {
        self.span(index) == 1
    }

    /// Returns the offset of packet `index` in the message, and its payload length, in bytes.
    #[inline]
    pub(super) fn piece(&self, index: u32, mtu: Mtu) -> (u32, u32) {
        self.train_piece(index, 1, mtu)
    }

    /// Returns the offset of packet `index` in the message, and the payload length of `count`
    /// packets from it on, in bytes.
    pub(super) fn train_piece(&self, index: u32, count: u32, mtu: Mtu) -> (u32, u32) {
        let offset = index.wrapping_shl(mtu_shift(mtu));
        let rest = self.wr.length.saturating_sub(offset);
        (offset, rest.min(count.saturating_mul(mtu.bytes())))
    }
}

/// Creates the completion of `wr`.
pub(super) fn completion(wr: &SendWr, status: WcStatus) -> SendWc {
    let (opcode, byte_len) = match wr.op {
        SendOp::Send(_) | SendOp::Datagram(..) => (WcOpcode::Send, wr.length),
        SendOp::Write(..) => (WcOpcode::RdmaWrite, wr.length),
        SendOp::Read(_) => (WcOpcode::RdmaRead, wr.length),
        SendOp::Atomic(_, AtomicOp::CompareSwap { .. }) => (WcOpcode::CompSwap, 8),
        SendOp::Atomic(_, AtomicOp::FetchAdd { .. }) => (WcOpcode::FetchAdd, 8),
        SendOp::AtomicWrite(_) => (WcOpcode::AtomicWrite, wr.length),
        SendOp::Flush(..) => (WcOpcode::Flush, wr.length),
        SendOp::Local(LocalOp::Invalidate(_)) => (WcOpcode::LocalInv, 0),
        SendOp::Local(LocalOp::RegMr) => (WcOpcode::RegMr, 0),
        SendOp::Local(LocalOp::BindMw) => (WcOpcode::BindMw, 0),
    };
    SendWc {
        wr_id: wr.wr_id,
        status,
        opcode,
        byte_len,
    }
}

/// Returns the number of PSNs that `wr` takes.
fn count_packets(wr: &SendWr, context: &Context) -> u32 {
    match wr.op {
        SendOp::Local(_) => 0,
        // The network device limits the length of a frame, not the engine.
        SendOp::Datagram(..) if context.config.kind == QpKind::RawPacket => 1,
        // A datagram that doesn't fit completes, but no packet is sent.
        SendOp::Datagram(..) => u32::from(wr.length <= context.config.port_mtu.bytes()),
        SendOp::Atomic(..) | SendOp::AtomicWrite(_) | SendOp::Flush(..) => 1,
        SendOp::Send(_) | SendOp::Write(..) | SendOp::Read(_) => {
            let mtu = context.settings.path_mtu;
            let full = wr.length >> mtu_shift(mtu);
            let rest = u32::from(wr.length & mtu.bytes().wrapping_sub(1) != 0);
            full.wrapping_add(rest).max(1)
        }
    }
}

/// Returns the binary logarithm of the MTU in bytes.
fn mtu_shift(mtu: Mtu) -> u32 {
    mtu.bytes().trailing_zeros()
}

/// Checks that this QP can carry out `wr` (IBTA 1.x §9.2, table of operations by service).
///
/// # Errors
///
/// Returns the status of the completion: `LocQpOpErr` or `LocLenErr`.
#[inline]
pub(super) fn admit(wr: &SendWr, context: &Context) -> Result<(), WcStatus> {
    let known = match (context.config.kind, wr.op) {
        (QpKind::Rc, SendOp::Datagram(..)) => false,
        (QpKind::Rc, _) => true,
        // The decoder (`wire/opcode.rs`) knows no XRC opcode of FLUSH or ATOMIC WRITE.
        (QpKind::XrcIni, SendOp::Datagram(..) | SendOp::Flush(..) | SendOp::AtomicWrite(_)) => {
            false
        }
        (QpKind::XrcIni, _) => true,
        (QpKind::XrcTgt, _) => false,
        (QpKind::Uc, SendOp::Send(SendExtra::Plain | SendExtra::Imm(_))) => true,
        (QpKind::Uc, SendOp::Write(..) | SendOp::Local(LocalOp::BindMw)) => true,
        (QpKind::Uc, _) => false,
        (QpKind::Ud | QpKind::Gsi | QpKind::RawPacket, op) => matches!(op, SendOp::Datagram(..)),
    };
    // With `max_rd_atomic` 0 such a request could never be sent.
    let never_sent = context.settings.max_rd_atomic == 0
        && matches!(
            wr.op,
            SendOp::Read(_) | SendOp::Atomic(..) | SendOp::AtomicWrite(_) | SendOp::Flush(..)
        );
    if !known || never_sent {
        return Err(WcStatus::LocQpOpErr);
    }
    let fits = match wr.op {
        SendOp::Atomic(..) => wr.length >= 8,
        SendOp::AtomicWrite(_) => wr.length == 8,
        _ => wr.length <= MAX_MESSAGE,
    };
    if fits {
        Ok(())
    } else {
        Err(WcStatus::LocLenErr)
    }
}
