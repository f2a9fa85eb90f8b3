// SPDX-License-Identifier: GPL-2.0

//! Filling of gaps: the requester sends only the missing packets again.
//!
//! A NAK from a responder that keeps early packets says how many packets are missing
//! ([`GapReport`](crate::wire::packet::GapReport)). The cursor moves back to the oldest of them.
//! Behind the last of them it moves to the next gap, or else to the packets that were not sent
//! before. If a packet is lost again, a later NAK or the RTO has it sent once more.

use super::retry::Loss;
use super::wqe::SendWqe;
use super::Requester;
use crate::early::MOST_AHEAD;
use crate::host::Host;
use crate::psn::Psn;
use crate::qp::{Context, Outcome, Slots};
use crate::time::Instant;

impl<W: Slots<SendWqe>> Requester<W> {
    /// Handles a sequence NAK, which says that the `missing` oldest packets in flight are missing.
    /// If it is 0, or if the responses to READs and similar requests are awaited, all packets in
    /// flight are sent again.
    pub(super) fn fill_gap<H: Host>(
        &mut self,
        missing: u8,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        let missing = u32::from(missing);
        let later = self.later;
        let kept = self.kept;
        if self.is_lost_again(missing, now) {
            self.retry.forget_timed_from(self.una);
            self.rewind();
            self.mark_gap(missing, now);
            self.later = later;
            self.count_kept(kept);
            return Outcome::Continue;
        }
        let fills = missing != 0 && self.reads.requests == 0 && self.may_skip_kept();
        if !fills && self.reserved.extension() == 0 {
            return self.resend_on_hint(Loss::Unknown, now, context, host);
        }
        if self.hinted {
            if fills {
                self.count_kept(kept);
            }
            return Outcome::Continue;
        }
        let outcome = self.resend_on_hint(Loss::Known, now, context, host);
        if !self.hinted || outcome == Outcome::Fatal {
            return outcome;
        }
        self.note_losses(self.una, missing.max(1));
        if fills {
            self.mark_gap(missing, now);
            self.later = later;
            self.count_kept(kept);
        }
        outcome
    }

    /// Lowers the limit of packets in flight after `count` packets from `psn` on were lost.
    pub(super) fn note_losses(&mut self, psn: Psn, count: u32) {
        self.retry.note_losses(psn, count, self.una, self.sent);
    }

    /// Adds to `kept` the number of packets that one NAK stands for: the responder sends a NAK for
    /// each early packet that requests an acknowledgment.
    fn count_kept(&mut self, kept: u32) {
        let most = MOST_AHEAD.saturating_sub(self.retry.limit());
        self.kept = kept.saturating_add(self.retry.ask_every()).min(most);
    }

    /// Records that the `missing` oldest packets in flight, and no others, are to be sent again.
    fn mark_gap(&mut self, missing: u32, now: Instant) {
        let in_flight = self.sent.ahead_of(self.una);
        self.past_gap = Some(self.una.plus(missing.min(in_flight)));
        self.filled_at = Some((self.una, now));
    }

    /// Returns whether a NAK reports that a packet which filled a gap was lost, too: more than a
    /// round-trip time has passed since the packet was sent again. Sending it once more spends no
    /// retry, and does not restart the acknowledgment timer.
    fn is_lost_again(&self, missing: u32, now: Instant) -> bool {
        let filled = self.filled_at.filter(|(psn, _)| *psn == self.una);
        missing != 0
            && self.past_gap.is_none_or(|past| self.una.before(past))
            && self.is_behind_sent()
            && self.reads.requests == 0
            && filled.is_some_and(|(_, at)| self.retry.is_past_round_trip(at, now))
    }

    /// Returns whether no packet is to be sent again but those of gaps.
    fn may_skip_kept(&self) -> bool {
        self.past_gap.is_some() || self.is_behind_sent()
    }

    /// Handles a NAK of a later gap: `missing` packets from `psn` on. They are sent again after
    /// those of earlier gaps.
    pub(super) fn fill_later_gap(&mut self, psn: Psn, missing: u8) {
        let may_fill = self.may_skip_kept() && !self.retry.waits() && !self.retry.sends_oldest();
        if missing == 0 || self.reads.requests != 0 || !may_fill || !self.una.before(psn) {
            return;
        }
        let missing = u32::from(missing).min(self.sent.ahead_of(psn));
        self.filled_later = self.filled_later.saturating_add(missing);
        if self.filled_later > MOST_AHEAD {
            return;
        }
        self.later.push((psn, psn.plus(missing)));
        self.note_losses(psn, missing);
        if self.past_gap.is_none() && self.is_behind_sent() {
            self.leave_gap();
        }
    }

    /// Remembers the newest packet that requested a response, before earlier ones are sent again.
    pub(super) fn save_asked(&mut self) {
        if self.asked_first.before(self.asked) {
            self.asked_first = self.asked;
        }
    }

    /// Restores `asked`, because the packets that are not sent again have requested responses.
    pub(super) fn restore_asked(&mut self) {
        if self.asked.before(self.asked_first) {
            self.asked = self.asked_first;
        }
    }

    /// Moves the cursor to the next gap, or else behind the packets that were sent.
    pub(super) fn leave_gap(&mut self) {
        self.past_gap = None;
        self.save_asked();
        self.restore_asked();
        while let Some((psn, past)) = self.later.pop() {
            let psn = psn.latest(self.una);
            let position = self.position(psn).filter(|_| psn.before(past));
            if let Some(cursor) = position {
                self.cursor = cursor;
                self.past_gap = Some(past);
                return;
            }
        }
        self.skip_sent();
    }

    /// Moves the cursor to the next gap or behind the packets that were sent, if it has passed the
    /// gap. Returns whether it has.
    pub(super) fn skip_kept(&mut self) -> bool {
        let Some(past) = self.past_gap else {
            return false;
        };
        let wqe = self.window.get(self.cursor.wqe);
        let is_past = wqe.is_some_and(|wqe| !wqe.first.plus(self.cursor.packet).before(past));
        if is_past {
            self.leave_gap();
        }
        is_past
    }
}
