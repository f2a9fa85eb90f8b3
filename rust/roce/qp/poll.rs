// SPDX-License-Identifier: GPL-2.0

//! Selection of the side that sends the next packet.

use super::state::State;
use super::{Outcome, Qp, Side, Slots};
use crate::host::Host;
use crate::requester::{Progress, SendWqe};
use crate::responder::Replay;
use crate::time::Instant;
use crate::transmit::{TrainLimits, Transmit};

impl<W: Slots<SendWqe>, R: Slots<Replay>> Qp<W, R> {
    /// Polls the sides, or flushes, as the state requires. In this and all functions below, `next`
    /// is `None` at the call, and receives the train to send.
    pub(super) fn poll_next<H: Host>(
        &mut self,
        next: &mut Option<Transmit>,
        now: Instant,
        limits: TrainLimits,
        host: &mut H,
    ) {
        self.backlog = false;
        let may_send = self.pause.is_over(now);
        if self.state.sends() && may_send {
            self.poll_sides(next, now, limits, host);
            if next.is_some() {
                return;
            }
        }
        self.flush_posted(host);
        if matches!(
            self.state,
            State::Reset | State::Init | State::Rts | State::Sqd(_)
        ) {
            return;
        }
        if !may_send {
            return;
        }
        // In ERR: sends the answers that are due, and then the NAK of the request that broke the
        // QP. The host must read the memory of each answer now, because the owner will use it for
        // something else.
        let limit = if self.flushes() { 1 } else { limits.responses };
        self.responder
            .poll_transmit(next, limit, &self.context, host);
    }

    /// Polls both sides, beginning with `next_side`. If the responder is first and returns a
    /// packet, the requester is first in the next poll, otherwise the responder.
    fn poll_sides<H: Host>(
        &mut self,
        next: &mut Option<Transmit>,
        now: Instant,
        limits: TrainLimits,
        host: &mut H,
    ) {
        let limit = limits.responses;
        let responder_is_first = self.next_side == Side::Responder;
        if responder_is_first {
            self.responder
                .poll_transmit(next, limit, &self.context, host);
            if next.is_some() {
                self.next_side = Side::Requester;
                return;
            }
        }
        self.next_side = Side::Responder;
        if !self.context.config.kind.has_requester() {
            return self
                .responder
                .poll_transmit(next, limit, &self.context, host);
        }
        let draining = matches!(self.state, State::Sqd(_));
        match self.requester.poll_transmit(
            next,
            now,
            limits.requests,
            draining,
            &self.context,
            &mut self.allowance.sends,
            host,
        ) {
            Progress::Send => return,
            Progress::Idle => {}
            Progress::Busy => self.backlog = true,
            Progress::Fatal => self.apply_outcome(Side::Requester, Outcome::Fatal, host),
        }
        self.check_drained(host);
        if !responder_is_first {
            self.responder
                .poll_transmit(next, limit, &self.context, host);
        }
    }
}
