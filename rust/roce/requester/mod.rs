// SPDX-License-Identifier: GPL-2.0

//! The requester: turns send WQEs into request packets, and responses into completions.
//!
//! WQEs are taken from the send queue into the `window`, oldest first, and leave it in that order.
//! A cursor, the position of the next packet to send, moves through the window. After a loss the
//! requester moves the cursor back to the oldest unfinished packet, which always belongs to the
//! oldest WQE of the window. So the work per packet doesn't depend on the number of packets in
//! flight.
//!
//! `repair` sends only missing packets again, if the responder keeps those that arrived after them.
//!
//! `send` selects the next packet, `segment` builds it, `ask` requests acknowledgments later, `ack`
//! processes the responses, and `retry` holds the timers and the retry counts. UC and datagram QPs
//! need neither `ack` nor `retry`: their WQEs are finished as soon as they are sent.

mod ack;
mod ask;
mod challenge;
mod repair;
mod reread;
mod retry;
mod rto;
mod segment;
mod send;
mod short_queue;
mod window;
mod wqe;

#[cfg(test)]
mod tests;

use crate::early::Direction;
use crate::host::{Count, Fetch, Host};
use crate::psn::Psn;
use crate::qp::{earliest, Context, Outcome, Slots, Steps};
use crate::time::Instant;
use crate::wc::WcStatus;
use crate::wire::packet::Reserved;
use crate::wr::SendSlot;

use challenge::Challenge;
use reread::Rereads;
use retry::{Due, Loss, Retry};
use short_queue::ShortQueue;
use window::Window;
use wqe::{admit, completion};

pub use wqe::SendWqe;

/// Result of a poll of the requester.
#[derive(Debug)]
pub(crate) enum Progress {
    /// `next`, the caller's storage, has the train to send.
    Send,
    /// There is nothing to do now.
    Idle,
    /// The poll stopped at its limit of steps. Work is left.
    Busy,
    /// A WQE failed, and has completed in error.
    Fatal,
}

/// Position of the next packet to send: packet `packet` of the WQE that is `wqe` places after the
/// oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    wqe: u32,
    packet: u32,
}

/// The position of the first packet of the oldest WQE.
const START: Cursor = Cursor { wqe: 0, packet: 0 };

/// READs, atomics and other requests that wait for more than an acknowledgment. A request that is
/// to be sent again doesn't count until it has been sent again.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    /// Number of requests in flight.
    requests: u32,
    /// Number of PSNs that the requests take.
    packets: u32,
}

/// Values of fields of [`Requester`] before the last train was polled.
#[derive(Clone, Copy, Debug)]
struct Before {
    cursor: Cursor,
    sent: Psn,
    asked: Psn,
    unasked: u32,
    /// A request for lost READ responses was polled instead.
    is_reread: bool,
}

/// The send side of a QP.
///
/// # Invariants
///
/// In RTS and SQD:
///
/// - The first `started` WQEs of the window have PSNs, consecutive and without a gap.
/// - Without a `fault`, the window holds at most one WQE more, which was taken to see whether the
///   queue has one. With a `fault`, the next WQE is the failed one, and WQEs that had started after
///   it may follow.
/// - The cursor's WQE is at most `started`.
/// - `una`, `acked`, `sent` come in this order and lie within 2²³ of one another. `una`
///   belongs to the oldest WQE, or equals `sent` if nothing is in flight.
#[derive(Debug)]
pub struct Requester<W> {
    /// The taken WQEs, oldest first.
    window: Window<W>,
    /// Number of WQEs in the window that have PSNs.
    started: u32,
    /// Position of the next packet to send.
    cursor: Cursor,
    /// First PSN of the next WQE to start.
    next: Psn,
    /// Oldest unfinished PSN.
    una: Psn,
    /// The responder has carried out all requests before this PSN.
    acked: Psn,
    /// One past the newest PSN that was ever sent.
    sent: Psn,
    /// Responses that READs and similar requests wait for.
    reads: Reads,
    /// Number of packets sent since the last one that requested an acknowledgment.
    unasked: u32,
    /// One past the newest packet that requested a response.
    asked: Psn,
    /// The value of `asked` before packets were sent again.
    asked_first: Psn,
    /// Fields to restore if the last packet was not sent.
    before: Before,
    /// The cursor's packet is sent even if the limit of packets in flight is reached, and requests
    /// an acknowledgment.
    probes: bool,
    /// Message sequence number (MSN) of the last accepted response.
    msn: u32,
    /// The last accepted MSN counts all messages before this PSN.
    counted: Psn,
    /// An implausible fatal NAK or response, which may be forged.
    challenge: Option<Challenge>,
    /// The packet `una` was sent again, after a response that implied a loss or after an RTO.
    /// Further hints may stem from the same loss. So they resend nothing, except the packets of
    /// later gaps and a packet that was lost again ([`Self::is_lost_again`]). This ends when the
    /// responder makes progress or sends an RNR NAK, or when the acknowledgment timer expires.
    hinted: bool,
    /// One past the gap that is being filled: only packets before it are sent again. `None` if no
    /// gap is being filled.
    past_gap: Option<Psn>,
    /// The reserved bits of requests: whether this requester fills gaps, and the cookie without
    /// which the responder keeps no early packet. The cookie is 0 if the responder has sent none.
    reserved: Reserved,
    /// Gaps to be filled after the one before `past_gap`: the first PSN of each, and one past its
    /// last PSN. A gap is forgotten if too many wait.
    later: ShortQueue<(Psn, Psn)>,
    /// Number of packets of later gaps since the last progress. A limit bounds the work that a peer
    /// causes.
    filled_later: u32,
    /// The oldest packet of the gap that was filled last, and the time at which that began.
    filled_at: Option<(Psn, Instant)>,
    /// Number of packets that may be in flight beyond the limit, because the responder keeps as
    /// many packets behind a gap.
    kept: u32,
    /// Lost READ responses.
    rereads: Rereads,
    /// Status of the WQE that follows the started ones, if that WQE has failed. The QP enters an
    /// error state once the failed WQE is the oldest.
    fault: Option<WcStatus>,
    retry: Retry,
}

impl<W: Slots<SendWqe>> Requester<W> {
    /// Creates a requester in RESET. The length of `window` limits the number of taken WQEs.
    pub(crate) fn new(window: W) -> Self {
        Self {
            window: Window::new(window),
            started: 0,
            cursor: START,
            next: Psn::new(0),
            una: Psn::new(0),
            acked: Psn::new(0),
            sent: Psn::new(0),
            reads: Reads::default(),
            unasked: 0,
            asked: Psn::new(0),
            asked_first: Psn::new(0),
            before: Before {
                cursor: START,
                sent: Psn::new(0),
                asked: Psn::new(0),
                unasked: 0,
                is_reread: false,
            },
            probes: false,
            msn: 0,
            counted: Psn::new(0),
            challenge: None,
            hinted: false,
            past_gap: None,
            reserved: Reserved::default(),
            later: ShortQueue::default(),
            filled_later: 0,
            filled_at: None,
            kept: 0,
            rereads: Rereads::default(),
            fault: None,
            retry: Retry::new(),
        }
    }

    /// Returns the first PSN of the next message to start.
    pub(crate) fn sq_psn(&self) -> Psn {
        self.next
    }

    /// Enters RTS from RTR: the first message starts at `sq_psn`.
    pub(crate) fn start(&mut self, sq_psn: Psn) {
        self.next = sq_psn;
        self.una = sq_psn;
        self.acked = sq_psn;
        self.sent = sq_psn;
        self.asked = sq_psn;
        self.asked_first = sq_psn;
        self.before = Before {
            cursor: START,
            sent: sq_psn,
            asked: sq_psn,
            unasked: 0,
            is_reread: false,
        };
        self.msn = 0;
        self.counted = sq_psn;
    }

    /// Enters RESET: gives every taken slot back without a completion and clears all state.
    pub(crate) fn reset<H: Host>(&mut self, host: &mut H) {
        while let Some(wqe) = self.window.pop() {
            host.retire_send(wqe.wr.slot);
        }
        self.fail(host);
        self.start(Psn::new(0));
    }

    /// Enters an error state: nothing is sent any more.
    pub(crate) fn fail<H: Host>(&mut self, host: &mut H) {
        self.forget();
        host.drop_early(Direction::Response);
    }

    /// Enters RTS from SQE: flushes the WQEs that were taken before the error. The WQEs that are
    /// still posted will be carried out.
    pub(crate) fn resume<H: Host>(&mut self, host: &mut H) {
        while self.finish_oldest(WcStatus::WrFlushErr, host) {}
        self.forget();
        self.start(self.next);
    }

    /// Clears all state of the requests in flight. The WQEs stay in the window.
    fn forget(&mut self) {
        self.started = 0;
        self.cursor = START;
        self.reads = Reads::default();
        self.unasked = 0;
        self.probes = false;
        self.challenge = None;
        self.hinted = false;
        self.past_gap = None;
        self.reserved = Reserved::default();
        self.later.clear();
        self.filled_later = 0;
        self.filled_at = None;
        self.kept = 0;
        self.rereads = Rereads::default();
        self.fault = None;
        self.retry = Retry::new();
    }

    /// Enters SQD from RTS: no new WQE starts, so the last packet sent must request an
    /// acknowledgment.
    pub(crate) fn drain(&mut self, now: Instant, context: &Context) {
        let _ = self.ask_again(now, context);
    }

    /// Enters RTS from SQD: checks the WQE that was taken but not started against the settings,
    /// which may have changed.
    pub(crate) fn undrain(&mut self, context: &Context) {
        if let Some(wqe) = self.window.get_mut(self.started) {
            wqe.refused = wqe.refused.or(admit(&wqe.wr, context).err());
        }
    }

    /// Returns whether all started WQEs are finished and no failed one is left to complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.started == 0 && self.fault.is_none()
    }

    /// Flushes the taken WQEs in an error state, then the posted ones, one per step. Returns
    /// whether it stopped because no step was left.
    pub(crate) fn flush<H: Host>(&mut self, host: &mut H, steps: &mut Steps) -> bool {
        while steps.take() {
            if self.finish_oldest(WcStatus::WrFlushErr, host) {
                continue;
            }
            match host.take_send() {
                Fetch::Empty => return false,
                Fetch::Wr(wr) | Fetch::Malformed(wr, _) => {
                    host.retire_send(wr.slot);
                    host.complete_send(completion(&wr, WcStatus::WrFlushErr));
                }
            }
        }
        true
    }

    /// Returns the instant at which [`Self::handle_timeout`] must be called, if a timer runs.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        earliest(self.retry.deadline(), self.rereads.deadline())
    }

    /// Tells the peer, in further requests, whether this requester fills gaps. If it doesn't, its
    /// requests have no cookie either, so that the responder keeps none of them.
    pub(crate) fn offer_to_fill_gaps(&mut self, offers: bool) {
        self.reserved = match offers {
            true => self.reserved.with_fills_gaps(true),
            false => Reserved::default(),
        };
    }

    /// Ends the slow start of a new connection.
    #[cfg(test)]
    pub(crate) fn end_slow_start(&mut self) {
        self.retry.end_slow_start();
    }

    /// Returns the limit of packets in flight that counts once the recovery from a gap has ended.
    #[cfg(test)]
    pub(crate) fn limit_after_recovery(&self) -> u32 {
        self.retry.limit_after_recovery()
    }

    /// Returns the end of the acknowledgment timer, or of the wait after an RNR NAK.
    #[cfg(test)]
    pub(crate) fn end_of_timer(&self) -> Option<Instant> {
        self.retry.end_of_timer()
    }

    /// Processes the timer, if it has expired: resends, requests an acknowledgment, or ends a
    /// wait. `Fatal` means that the retries are exceeded.
    pub(crate) fn handle_timeout<H: Host>(
        &mut self,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        self.expire_early(now, host);
        match self.retry.due(now) {
            Due::Nothing => Outcome::Continue,
            Due::Rto => {
                self.resend_oldest(context, host);
                Outcome::Continue
            }
            Due::Resume => {
                self.retry.resume(now, &context.settings);
                Outcome::Continue
            }
            // No packet in flight requested a response, so the silence doesn't mean a loss.
            Due::Lost if !self.una.before(self.asked) && self.asks_first(now, context) => {
                self.retry.restart(now, &context.settings);
                Outcome::Continue
            }
            Due::Lost => {
                self.hinted = false;
                self.go_back(Loss::Unknown, now, context, host)
            }
        }
    }

    /// Sends the oldest packet in flight again after an RTO. This isn't a retry.
    ///
    /// A NAK that arrives before the next progress is ignored: it may report the same loss.
    fn resend_oldest<H: Host>(&mut self, context: &Context, host: &mut H) {
        host.count(Count::Rto);
        if self.reread_after_rto(context) {
            return;
        }
        let may_skip = self.reads.requests == 0 && self.is_behind_sent();
        self.retry.end_rto(self.una, self.sent, may_skip);
        self.hinted = true;
        self.rewind();
    }

    /// Fails the WQE of `slot`, because the payload of the train before the PSN `past` could not be
    /// read.
    pub(crate) fn transmit_failed(
        &mut self,
        now: Instant,
        slot: SendSlot,
        past: Psn,
        status: WcStatus,
        context: &Context,
    ) {
        if let Some(offset) = self.started_at(slot) {
            self.undo_poll(past);
            self.stop_at(offset, status, now, context);
        }
    }

    /// Returns the place in the window of the WQE of `slot`, if the WQE has PSNs and has not
    /// completed.
    fn started_at(&self, slot: SendSlot) -> Option<u32> {
        let is_it = |offset: &u32| {
            let wqe = self.window.get(*offset);
            wqe.is_some_and(|wqe| wqe.wr.slot == slot)
        };
        (0..self.started).find(is_it)
    }

    /// Returns the PSN of the oldest packet that the peer has not acknowledged.
    pub(crate) fn una(&self) -> Psn {
        self.una
    }

    /// Returns whether a packet of `slot` that was polled before may still be sent. Once the WQE
    /// has completed, its owner may use the memory again.
    pub(crate) fn may_send(&self, slot: SendSlot) -> bool {
        self.started_at(slot).is_some()
    }

    /// Schedules the train before the PSN `past` again, which was polled last and was not sent.
    /// Nothing happened since the poll.
    pub(crate) fn withdraw(&mut self, past: Psn) {
        self.cursor = self.before.cursor;
        self.undo_poll(past);
        self.unasked = self.before.unasked;
    }

    /// Undoes the effects of polling the train before the PSN `past`, which was not sent. If an
    /// earlier copy was sent, the packet stays in flight.
    fn undo_poll(&mut self, past: Psn) {
        if self.sent == past {
            self.sent = self.before.sent;
        }
        self.retry.forget_timed_from(self.before.sent);
        if self.asked == past {
            (self.asked, self.unasked) = (self.before.asked, self.before.unasked);
            if !self.una.before(self.asked) {
                self.retry.stop_rto();
            }
        }
        if self.una == self.sent {
            self.retry.stop();
        }
    }

    /// Schedules the train of `count` packets from `psn` on, the last one that was polled, again,
    /// because the host dropped it. The next copy of its first packet requests an acknowledgment.
    ///
    /// The packets count as in flight meanwhile: the timer runs, and spends its retries if no
    /// packet leaves.
    ///
    /// Responses may have been processed since the poll. If one moved the cursor back, the packet
    /// is sent when the cursor reaches it. If one acknowledged the packet, an earlier copy has
    /// arrived.
    pub(crate) fn take_back(&mut self, psn: Psn, count: u32) {
        if self.before.is_reread {
            return self.rereads.ask_from(psn);
        }
        let at = match self.cursor.packet {
            0 => self.cursor.wqe.checked_sub(1),
            _ => Some(self.cursor.wqe),
        };
        let Some((at, wqe)) = at.and_then(|at| Some((at, self.window.get(at)?))) else {
            return;
        };
        let end = match self.cursor.packet {
            0 => wqe.packets,
            packet => packet,
        };
        let packet = psn.ahead_of(wqe.first);
        let span = wqe.span(packet).max(count);
        let is_last = packet < end && packet.saturating_add(span) == end;
        if !is_last || psn.before(self.una) {
            return;
        }
        if wqe.uses_rd_atomic() {
            self.reads.requests = self.reads.requests.saturating_sub(1);
            self.reads.packets = self.reads.packets.saturating_sub(span);
        }
        self.cursor = Cursor { wqe: at, packet };
        self.probes = true;
        self.retry.forget_timed_from(psn);
        self.retry.stop_rto();
        let past = psn.plus(span);
        if self.asked.before(past) {
            self.asked = past;
        }
    }

    /// Fails the WQE at `offset`: no more packets of it, or after it, are sent.
    ///
    /// The packets that were sent keep their PSNs. Their acknowledgment also covers the WQEs
    /// before, and the packets that an unreliable QP sends after SQE must not look like a
    /// continuation of the failed message.
    fn stop_at(&mut self, offset: u32, status: WcStatus, now: Instant, context: &Context) {
        self.fault = Some(status);
        self.started = self.started.min(offset);
        if self.cursor.wqe >= offset {
            self.cursor = Cursor {
                wqe: offset,
                packet: 0,
            };
        }
        if self.started == 0 {
            self.retry.stop();
        } else {
            let _ = self.ask_again(now, context);
        }
    }

    /// Moves the cursor behind the packets that were sent, so that none of them is sent again.
    fn skip_sent(&mut self) {
        if let Some(cursor) = self.behind_sent() {
            self.cursor = cursor;
        }
    }

    /// Returns whether the cursor is behind the packets that were sent.
    fn is_behind_sent(&self) -> bool {
        Some(self.cursor) == self.behind_sent()
    }

    /// Returns the PSN of the cursor's packet.
    fn cursor_psn(&self) -> Psn {
        match self.window.get(self.cursor.wqe) {
            Some(wqe) if self.cursor.wqe < self.started => wqe.first.plus(self.cursor.packet),
            _ => self.next,
        }
    }

    /// Returns the position behind the newest packet that was sent. Returns `None` if no WQE has
    /// started.
    fn behind_sent(&self) -> Option<Cursor> {
        let newest = self.started.checked_sub(1)?;
        let wqe = self.window.get(newest)?;
        let sent = self.sent.ahead_of(wqe.first);
        Some(match sent < wqe.packets {
            true => Cursor {
                wqe: newest,
                packet: sent,
            },
            false => Cursor {
                wqe: self.started,
                packet: 0,
            },
        })
    }

    /// Returns the position of the packet `psn`, if it belongs to a started WQE.
    fn position(&self, psn: Psn) -> Option<Cursor> {
        (0..self.started).find_map(|at| {
            let wqe = self.window.get(at)?;
            let packet = psn.ahead_of(wqe.first);
            (packet < wqe.packets).then_some(Cursor { wqe: at, packet })
        })
    }

    /// Moves the cursor back to the oldest unfinished packet.
    fn rewind(&mut self) {
        let first = match self.window.get(0) {
            Some(oldest) if self.started > 0 => oldest.first,
            _ => return,
        };
        self.cursor = Cursor {
            wqe: 0,
            packet: self.una.ahead_of(first),
        };
        self.reads = Reads::default();
        self.past_gap = None;
        self.later.clear();
        self.kept = 0;
        self.rereads.forget_gaps();
        self.save_asked();
    }

    /// Resends from the oldest unfinished packet after a loss, if a retry is left (IBTA 1.x
    /// §9.7.6.1).
    fn go_back<H: Host>(
        &mut self,
        loss: Loss,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        if !self.retry.spend(loss, &context.settings) {
            if let Some(challenge) = self.challenge {
                return self.fail_challenged(challenge, host);
            }
            host.count(Count::RetryExceeded);
            return self.fail_oldest(WcStatus::RetryExcErr, host);
        }
        host.count(Count::CompleterRetry);
        self.rewind();
        self.retry.restart(now, &context.settings);
        Outcome::Continue
    }

    /// Completes the oldest WQE in error.
    fn fail_oldest<H: Host>(&mut self, status: WcStatus, host: &mut H) -> Outcome {
        self.finish_oldest(status, host);
        Outcome::Fatal
    }

    /// Gives back and completes the oldest WQE. Returns `false` if there is none.
    fn finish_oldest<H: Host>(&mut self, status: WcStatus, host: &mut H) -> bool {
        let Some(wqe) = self.window.pop() else {
            return false;
        };
        // The slot must be free before the consumer sees the completion.
        host.retire_send(wqe.wr.slot);
        if wqe.wr.signaled || status != WcStatus::Success {
            host.complete_send(completion(&wqe.wr, status));
        }
        if status == WcStatus::Success && wqe.is_send() {
            host.count(Count::RdmaSends);
        }
        self.started = self.started.saturating_sub(1);
        match self.cursor.wqe.checked_sub(1) {
            Some(wqe) => self.cursor.wqe = wqe,
            None => {
                self.cursor.packet = 0;
                self.probes = false;
            }
        }
        true
    }
}
