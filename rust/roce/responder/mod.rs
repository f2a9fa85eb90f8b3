// SPDX-License-Identifier: GPL-2.0

//! The responder.

use crate::host::{AccessFault, Host};
use crate::psn::Psn;
use crate::qp::{Context, Outcome, Slots};
use crate::time::Instant;
use crate::transmit::Transmit;
use crate::wire::packet::Packet;

/// A request that the responder remembers, to answer it again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replay {}

/// The receive side of a QP.
#[derive(Debug)]
pub struct Responder<R> {
    replays: R,
    expected: Psn,
}

impl<R: Slots<Replay>> Responder<R> {
    pub(crate) fn new(replays: R) -> Self {
        Self {
            replays,
            expected: Psn::new(0),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.replays.len()
    }

    pub(crate) fn start(&mut self, rq_psn: Psn) {
        self.expected = rq_psn;
    }

    pub(crate) fn rq_psn(&self) -> Psn {
        self.expected
    }

    pub(crate) fn handle_request<H: Host>(
        &mut self,
        _now: Instant,
        _packet: &Packet,
        _context: &Context,
        _host: &mut H,
    ) -> Outcome {
        Outcome::Continue
    }

    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        _context: &Context,
        _host: &mut H,
    ) -> Option<Transmit> {
        None
    }

    pub(crate) fn transmit_failed<H: Host>(
        &mut self,
        _transmit: &Transmit,
        _fault: AccessFault,
        _context: &Context,
        _host: &mut H,
    ) -> Outcome {
        Outcome::Continue
    }

    pub(crate) fn fail<H: Host>(&mut self, _context: &Context, _host: &mut H) {}

    pub(crate) fn flush_recv<H: Host>(
        &mut self,
        _context: &Context,
        _host: &mut H,
        _budget: u32,
    ) -> bool {
        false
    }

    pub(crate) fn reset<H: Host>(&mut self, _host: &mut H) {}
}
