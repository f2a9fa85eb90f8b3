// SPDX-License-Identifier: GPL-2.0

//! Late requests for an acknowledgment of packets that were sent without such a request.

use super::wqe::SendWqe;
use super::{Cursor, Requester};
use crate::psn::Psn;
use crate::qp::{Context, Slots};
use crate::time::Instant;

impl<W: Slots<SendWqe>> Requester<W> {
    /// Schedules the newest packet in flight again, with an acknowledgment request, because the
    /// copy that was sent had none. This isn't a retry.
    ///
    /// Returns `false` if the newest packet was acknowledged or has requested a response, or if a
    /// packet that follows will request a response. Also returns `false` if no packet is in flight,
    /// or during a wait after an RNR NAK.
    pub(super) fn ask_again(&mut self, now: Instant, context: &Context) -> bool {
        if self.retry.waits() || self.una == self.sent {
            return false;
        }
        let Some((newest, psn)) = self.newest(context) else {
            return false;
        };
        if !self.asked.before(psn.next()) {
            return false;
        }
        self.cursor = newest;
        self.probes = true;
        self.retry.restart(now, &context.settings);
        true
    }

    /// Calls [`Self::ask_again`]. Returns whether a packet will request an acknowledgment: the
    /// newest one, sent again, or a following one.
    ///
    /// The peer may keep this host from sending the following one, by packets that it lets wait in
    /// a queue. So a following one counts only once until the next progress.
    pub(super) fn asks_first(&mut self, now: Instant, context: &Context) -> bool {
        let Cursor { wqe: at, packet } = self.cursor;
        let next = self.window.get(at).filter(|_| at < self.started);
        let may_send = next.is_some_and(|wqe| self.has_room(wqe, packet, context));
        self.ask_again(now, context) || (may_send && self.retry.excuse())
    }

    /// Returns the position and the PSN of the newest packet in flight of the started WQEs. Returns
    /// `None` if the cursor hasn't passed that packet, if a packet may follow, if the newest packet
    /// was acknowledged, or if it waits for more than an acknowledgment.
    fn newest(&self, context: &Context) -> Option<(Cursor, Psn)> {
        let Cursor { wqe: at, packet } = self.cursor;
        if at < self.started {
            let has_room = self.has_room(self.window.get(at)?, packet, context);
            if has_room || !self.is_behind_sent() {
                return None;
            }
        }
        let has_packets = |at: &u32| self.window.get(*at).is_some_and(|wqe| wqe.packets > 0);
        let is_within = at < self.started && packet > 0;
        let (at, past) = match is_within {
            true => (at, packet),
            false => {
                let at = (0..at.min(self.started)).rev().find(has_packets)?;
                (at, self.window.get(at)?.packets)
            }
        };
        let wqe = self.window.get(at)?;
        let packet = past.checked_sub(1)?;
        let psn = wqe.first.plus(packet);
        if wqe.uses_rd_atomic() || psn.before(self.acked) {
            return None;
        }
        Some((Cursor { wqe: at, packet }, psn))
    }
}
