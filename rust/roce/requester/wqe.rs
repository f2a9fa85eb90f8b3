// SPDX-License-Identifier: GPL-2.0

//! A send WQE in flight: what it asks for and how it is answered.

use crate::ids::Srqn;
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::qp::{Context, QpKind};
use crate::wc::{SendWc, WcOpcode, WcStatus};
use crate::wr::{AtomicOp, LocalOp, SendOp, SendSlot, SendTail, SendWr};

/// The longest message (IBTA 1.x §9.3.3.1).
const MAX_MESSAGE: u32 = 1 << 31;

/// How many packets one READ request asks for at most: a longer READ goes out as several requests,
/// cut at multiples of this. It keeps what is in flight bounded, and what a loss costs.
pub(super) const READ_SPAN: u32 = 1 << 7;

/// A send WQE in flight.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    pub(super) wr: SendWr,
    /// Its first PSN, once started.
    pub(super) first: Psn,
    /// How many PSNs it takes; 0 if nothing goes out.
    pub(super) packets: u32,
    /// It can't be carried out.
    pub(super) refused: Option<WcStatus>,
}

/// What completes a WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// An acknowledgement of it or of anything after it.
    Ack,
    /// READ responses with the payload.
    Read,
    /// An atomic acknowledgement.
    Atomic,
    /// A READ response without payload.
    Empty,
}

impl Default for SendWqe {
    fn default() -> Self {
        let wr = SendWr {
            slot: SendSlot(0),
            wr_id: 0,
            op: SendOp::Send(SendTail::Plain),
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
            refused: None,
        }
    }
}

impl SendWqe {
    pub(super) fn new(wr: SendWr, refused: Option<WcStatus>, context: &Context) -> Self {
        Self {
            wr,
            first: Psn::new(0),
            packets: count_packets(&wr, context),
            refused,
        }
    }

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

    /// It takes one of the `max_rd_atomic` credits while in flight.
    pub(super) fn takes_credit(&self) -> bool {
        self.answer() != Answer::Ack
    }

    pub(super) fn is_local(&self) -> bool {
        matches!(self.wr.op, SendOp::Local(_))
    }

    pub(super) fn is_send(&self) -> bool {
        matches!(self.wr.op, SendOp::Send(_) | SendOp::Datagram(..))
    }

    /// How many PSNs the request that starts with packet `index` takes.
    pub(super) fn span(&self, index: u32) -> u32 {
        match self.wr.op {
            SendOp::Read(_) => {
                let to_cut = READ_SPAN.wrapping_sub(index & READ_SPAN.wrapping_sub(1));
                to_cut.min(self.packets.saturating_sub(index))
            }
            _ => 1,
        }
    }

    /// A READ request ends with packet `index`.
    pub(super) fn request_ends(&self, index: u32) -> bool {
        self.span(index) == 1
    }

    /// Where packet `index` starts in the message, and its payload length.
    pub(super) fn piece(&self, index: u32, mtu: Mtu) -> (u32, u32) {
        let offset = index.wrapping_shl(mtu_shift(mtu));
        let rest = self.wr.length.saturating_sub(offset);
        (offset, rest.min(mtu.bytes()))
    }
}

/// The completion of `wr`.
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

/// How many PSNs `wr` takes.
fn count_packets(wr: &SendWr, context: &Context) -> u32 {
    match wr.op {
        SendOp::Local(_) => 0,
        // How long a frame may be is for the network device to say.
        SendOp::Datagram(..) if context.config.kind == QpKind::RawPacket => 1,
        // A datagram that doesn't fit completes, but nothing is sent.
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

fn mtu_shift(mtu: Mtu) -> u32 {
    mtu.bytes().trailing_zeros()
}

/// Why this QP can't carry out `wr` (IBTA 1.x §9.2, table of operations by service).
///
/// # Errors
///
/// The status of its completion.
pub(super) fn admit(wr: &SendWr, context: &Context) -> Result<(), WcStatus> {
    let known = match (context.config.kind, wr.op) {
        (QpKind::Rc, SendOp::Datagram(..)) => false,
        (QpKind::Rc, _) => true,
        // The extended header has no room beside those of the memory placement operations.
        (QpKind::XrcIni, SendOp::Datagram(..) | SendOp::Flush(..) | SendOp::AtomicWrite(_)) => {
            false
        }
        (QpKind::XrcIni, _) => true,
        (QpKind::XrcTgt, _) => false,
        (QpKind::Uc, SendOp::Send(SendTail::Plain | SendTail::Imm(_))) => true,
        (QpKind::Uc, SendOp::Write(..) | SendOp::Local(LocalOp::BindMw)) => true,
        (QpKind::Uc, _) => false,
        (QpKind::Ud | QpKind::Gsi | QpKind::RawPacket, op) => matches!(op, SendOp::Datagram(..)),
    };
    // Without a single credit it could never be sent.
    let creditless = context.settings.max_rd_atomic == 0
        && matches!(
            wr.op,
            SendOp::Read(_) | SendOp::Atomic(..) | SendOp::AtomicWrite(_) | SendOp::Flush(..)
        );
    if !known || creditless {
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
