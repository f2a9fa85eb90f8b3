// SPDX-License-Identifier: GPL-2.0

//! The requester.

use crate::host::Host;
use crate::psn::Psn;
use crate::qp::{Context, Outcome, Slots};
use crate::time::Instant;
use crate::transmit::Transmit;
use crate::wc::WcStatus;
use crate::wire::packet::Packet;
use crate::wr::{LocalOp, SendOp, SendSlot, SendWr};

/// A send WQE in flight.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    wr: SendWr,
    first: Psn,
    packets: u32,
}

impl Default for SendWqe {
    fn default() -> Self {
        Self {
            wr: SendWr {
                slot: SendSlot(0),
                wr_id: 0,
                op: SendOp::Local(LocalOp::RegMr),
                length: 0,
                signaled: false,
                solicited: false,
                fence: false,
            },
            first: Psn::new(0),
            packets: 0,
        }
    }
}

/// What a poll of the requester came to.
pub(crate) enum Progress {
    /// A packet to send.
    Send(Transmit),
    /// Nothing to do.
    Idle,
    /// Stopped at its budget: poll again.
    Busy,
    /// A local error.
    Fatal,
}

/// The send side of a QP.
#[derive(Debug)]
pub struct Requester<W> {
    window: W,
    next_psn: Psn,
}

impl<W: Slots<SendWqe>> Requester<W> {
    pub(crate) fn new(window: W) -> Self {
        Self {
            window,
            next_psn: Psn::new(0),
        }
    }
    pub(crate) fn sq_psn(&self) -> Psn {
        self.next_psn
    }
    pub(crate) fn start(&mut self, sq_psn: Psn) {
        self.next_psn = sq_psn;
    }
    pub(crate) fn resume(&mut self) {}
    pub(crate) fn drain(&mut self, _now: Instant, _context: &Context) {}
    pub(crate) fn is_drained(&self) -> bool {
        self.window.is_empty()
    }
    pub(crate) fn fail(&mut self) {}
    pub(crate) fn reset<H: Host>(&mut self, _host: &mut H) {}
    pub(crate) fn flush<H: Host>(&mut self, _host: &mut H, _budget: u32) -> bool {
        false
    }
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        _now: Instant,
        _packet: &Packet,
        _context: &Context,
        _host: &mut H,
    ) -> Outcome {
        Outcome::Continue
    }
    pub(crate) fn handle_timeout<H: Host>(
        &mut self,
        _now: Instant,
        _context: &Context,
        _host: &mut H,
    ) -> Outcome {
        Outcome::Continue
    }
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        _now: Instant,
        _draining: bool,
        _context: &Context,
        _host: &mut H,
    ) -> Progress {
        Progress::Idle
    }
    pub(crate) fn transmit_failed<H: Host>(
        &mut self,
        _now: Instant,
        _slot: SendSlot,
        _status: WcStatus,
        _context: &Context,
        _host: &mut H,
    ) -> Outcome {
        Outcome::Continue
    }
}
