// SPDX-License-Identifier: GPL-2.0

//! The requester: turns send WQEs into request packets and answers into completions.
//!
//! WQEs are taken from the send queue into a `window`, oldest first, and leave it in that order.
//! The requester walks them with a cursor, the next packet to send; to go back after a loss is to
//! put the cursor back to the oldest packet that isn't finished, which always belongs to the
//! window's oldest WQE. So the work per packet doesn't depend on how much is in flight.
//!
//! `send` decides what may be sent next, `segment` builds it, `ack` takes in the answers and
//! `retry` holds the timers and counts. UC and datagram QPs use `send` only: their WQEs are
//! finished once sent.

mod ack;
mod challenge;
mod retry;
mod segment;
mod send;
mod window;
mod wqe;

#[cfg(test)]
mod tests;

use crate::host::{Count, Fetch, Host};
use crate::psn::Psn;
use crate::qp::{Context, Outcome, Slots, Steps};
use crate::time::Instant;
use crate::transmit::Transmit;
use crate::wc::WcStatus;
use crate::wr::SendSlot;

use challenge::Challenge;
use retry::{Due, Retry};
use window::Window;
use wqe::{admit, completion};

pub use wqe::SendWqe;

/// What a poll of the requester came to.
#[derive(Debug)]
pub(crate) enum Progress {
    /// A packet to send.
    Send(Transmit),
    /// Nothing to do.
    Idle,
    /// Stopped at its budget: poll again.
    Busy,
    /// A WQE failed and has completed so.
    Fatal,
}

/// The next packet to send: packet `packet` of the WQE `wqe` after the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    wqe: u32,
    packet: u32,
}

const START: Cursor = Cursor { wqe: 0, packet: 0 };

/// READs and atomics that were sent and not answered; those still to be sent again don't count.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    /// How many requests.
    requests: u32,
    /// How many PSNs they span.
    packets: u32,
}

/// Fields of [`Requester`] as they were before the last packet was polled.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    sent: Psn,
    asked: Psn,
    unasked: u32,
}

/// The send side of a QP.
///
/// # Invariants
///
/// - The window's first `started` WQEs have PSNs, one after the other without a gap; at most one
///   more is there, taken to see whether there is one, unless that one has failed.
/// - The cursor's WQE is at most `started`.
/// - `una`, `acked`, `sent` come in this order and lie within 2²³ of one another; `una` belongs
///   to the oldest WQE, or equals `sent` if nothing is in flight.
#[derive(Debug)]
pub struct Requester<W> {
    window: Window<W>,
    started: u32,
    cursor: Cursor,
    /// The first PSN of the next WQE to start.
    next: Psn,
    /// The oldest PSN that isn't finished.
    una: Psn,
    /// The responder has carried out everything before this PSN.
    acked: Psn,
    /// One past the newest PSN ever sent.
    sent: Psn,
    reads: Reads,
    /// Packets sent since the last one that asked for an acknowledgement.
    unasked: u32,
    /// One past the newest packet whose sender waits for an answer.
    asked: Psn,
    /// What the last packet changed.
    before: Before,
    /// The cursor's packet goes out even if there is no room for it, and asks for an acknowledgement.
    probes: bool,
    /// The message sequence number that the responder told last.
    msn: u32,
    /// It counts all messages before this PSN.
    counted: Psn,
    /// A NAK that may be forged.
    challenge: Option<Challenge>,
    /// The responder let it be known that the packet `una`, or the answer to it, was lost, and it
    /// was sent again. Further hints may be echoes: from here on the timer decides, until the peer asks to wait.
    hinted: bool,
    /// The WQE that follows the started ones has failed: it ends the queue once it is the oldest.
    fault: Option<WcStatus>,
    retry: Retry,
}

impl<W: Slots<SendWqe>> Requester<W> {
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
            before: Before::default(),
            probes: false,
            msn: 0,
            counted: Psn::new(0),
            challenge: None,
            hinted: false,
            fault: None,
            retry: Retry::new(),
        }
    }

    /// The PSN with which the next message will start.
    pub(crate) fn sq_psn(&self) -> Psn {
        self.next
    }

    /// RTR → RTS.
    pub(crate) fn start(&mut self, sq_psn: Psn) {
        self.next = sq_psn;
        self.una = sq_psn;
        self.acked = sq_psn;
        self.sent = sq_psn;
        self.asked = sq_psn;
        self.before = Before {
            sent: sq_psn,
            asked: sq_psn,
            unasked: 0,
        };
        self.msn = 0;
        self.counted = sq_psn;
    }

    /// → RESET: gives every taken slot back and forgets everything.
    pub(crate) fn reset<H: Host>(&mut self, host: &mut H) {
        while let Some(wqe) = self.window.pop() {
            host.retire_send(wqe.wr.slot);
        }
        self.forget();
        self.start(Psn::new(0));
    }

    /// The QP leaves RTS or SQD for an error state: nothing is sent any more.
    pub(crate) fn fail(&mut self) {
        self.forget();
    }

    /// SQE → RTS: flushes what was taken before the error; what is posted still is carried out.
    pub(crate) fn resume<H: Host>(&mut self, host: &mut H) {
        while self.finish_oldest(WcStatus::WrFlushErr, host) {}
        self.forget();
        self.start(self.next);
    }

    fn forget(&mut self) {
        self.started = 0;
        self.cursor = START;
        self.reads = Reads::default();
        self.unasked = 0;
        self.probes = false;
        self.challenge = None;
        self.hinted = false;
        self.fault = None;
        self.retry = Retry::new();
    }

    /// RTS → SQD: nothing new starts, so that the last packet sent must ask for its answer.
    pub(crate) fn drain(&mut self, now: Instant, context: &Context) {
        let _ = self.ask_again(now, context);
    }

    /// SQD → RTS: the WQE that was taken before must suit the settings that changed meanwhile.
    pub(crate) fn undrain(&mut self, context: &Context) {
        if let Some(wqe) = self.window.get_mut(self.started) {
            wqe.refused = wqe.refused.or(admit(&wqe.wr, context).err());
        }
    }

    /// Everything that was started is finished.
    pub(crate) fn is_drained(&self) -> bool {
        self.started == 0 && self.fault.is_none()
    }

    /// In an error state: flushes the taken WQEs, then those posted, one a step. Returns whether it
    /// stopped because the steps were spent.
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

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.retry.deadline()
    }

    pub(crate) fn handle_timeout<H: Host>(
        &mut self,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match self.retry.due(now) {
            Due::Nothing => Outcome::Continue,
            Due::Resume => {
                self.retry.restart(now, &context.settings);
                Outcome::Continue
            }
            // Nobody was asked, so nobody failed to answer.
            Due::Lost if !self.una.before(self.asked) && self.asks_first(now, context) => {
                self.retry.restart(now, &context.settings);
                Outcome::Continue
            }
            Due::Lost => {
                self.hinted = false;
                self.go_back(now, context, host)
            }
        }
    }

    /// The payload of the packet `psn` of `slot` could not be read: its WQE fails.
    pub(crate) fn transmit_failed(
        &mut self,
        now: Instant,
        slot: SendSlot,
        psn: Psn,
        status: WcStatus,
        context: &Context,
    ) {
        if let Some(offset) = self.started_at(slot) {
            self.withdraw(psn);
            self.stop_at(offset, status, now, context);
        }
    }

    /// Where in the window the WQE of `slot` is, if it has PSNs and has not completed.
    fn started_at(&self, slot: SendSlot) -> Option<u32> {
        let is_it = |offset: &u32| {
            let wqe = self.window.get(*offset);
            wqe.is_some_and(|wqe| wqe.wr.slot == slot)
        };
        (0..self.started).find(is_it)
    }

    /// Whether a packet of `slot`, which was polled before, may still leave: the memory of a WQE that has completed is its
    /// owner's again.
    pub(crate) fn may_send(&self, slot: SendSlot) -> bool {
        self.started_at(slot).is_some()
    }

    /// The packet `psn` didn't go out after all. If it had gone out before, it is in flight.
    fn withdraw(&mut self, psn: Psn) {
        if self.sent == psn.next() {
            self.sent = self.before.sent;
        }
        if self.asked == psn.next() {
            (self.asked, self.unasked) = (self.before.asked, self.before.unasked);
        }
        if self.una == self.sent {
            self.retry.stop();
        }
    }

    /// The host dropped the packet `psn`, the last one that was polled: it goes out again, and asks
    /// for an acknowledgement.
    ///
    /// It counts as in flight meanwhile: the timer runs, and spends its retries if no packet leaves.
    ///
    /// Responses may have come since it was polled. If one put the cursor back, the packet goes out in its
    /// turn; if one acknowledged it, an earlier copy has arrived.
    pub(crate) fn take_back(&mut self, psn: Psn) {
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
        let span = wqe.span(packet);
        let is_last = packet < end && packet.saturating_add(span) == end;
        if !is_last || psn.before(self.una) {
            return;
        }
        if wqe.takes_credit() {
            self.reads.requests = self.reads.requests.saturating_sub(1);
            self.reads.packets = self.reads.packets.saturating_sub(span);
        }
        self.cursor = Cursor { wqe: at, packet };
        self.probes = true;
        let past = psn.plus(span);
        if self.asked.before(past) {
            self.asked = past;
        }
    }

    /// The WQE at `offset` has failed: nothing of it or after it is sent any more.
    ///
    /// What was sent of it keeps its PSNs: its acknowledgement vouches for the WQEs before it, and
    /// what an unreliable QP sends after SQE must not be taken for its continuation.
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

    /// The newest packet in flight asked for no acknowledgement; now one is wanted: sends it again, with
    /// the question. This isn't a retry. `false` if it asked, or if packets follow, which will ask.
    fn ask_again(&mut self, now: Instant, context: &Context) -> bool {
        if self.retry.waits() || self.una == self.sent {
            return false;
        }
        let Some((newest, psn)) = self.newest() else {
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

    /// The newest packet goes out again with a question, or packets follow that will ask.
    fn asks_first(&mut self, now: Instant, context: &Context) -> bool {
        self.ask_again(now, context) || self.cursor.wqe < self.started
    }

    /// The newest packet in flight of the started WQEs. `None` if the cursor hasn't passed it, if it was
    /// acknowledged, or if it is answered by more than an acknowledgement.
    fn newest(&self) -> Option<(Cursor, Psn)> {
        if self.cursor.wqe < self.started {
            return None;
        }
        let has_packets = |at: &u32| self.window.get(*at).is_some_and(|wqe| wqe.packets > 0);
        let at = (0..self.started).rev().find(has_packets)?;
        let wqe = self.window.get(at)?;
        let packet = wqe.packets.checked_sub(1)?;
        let psn = wqe.first.plus(packet);
        if wqe.takes_credit() || psn.before(self.acked) {
            return None;
        }
        Some((Cursor { wqe: at, packet }, psn))
    }

    /// Puts the cursor back to the oldest packet that isn't finished.
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
    }

    /// Something was lost: sends everything again from the oldest packet that isn't finished, if
    /// there is a retry left (IBTA 1.x §9.7.6.1).
    fn go_back<H: Host>(&mut self, now: Instant, context: &Context, host: &mut H) -> Outcome {
        if !self.retry.spend(&context.settings) {
            if let Some(challenge) = self.challenge {
                return self.believe(challenge, host);
            }
            host.count(Count::RetryExceeded);
            return self.fail_oldest(WcStatus::RetryExcErr, host);
        }
        host.count(Count::CompleterRetry);
        self.rewind();
        self.retry.restart(now, &context.settings);
        Outcome::Continue
    }

    /// Ends the oldest WQE in error.
    fn fail_oldest<H: Host>(&mut self, status: WcStatus, host: &mut H) -> Outcome {
        self.finish_oldest(status, host);
        Outcome::Fatal
    }

    /// Gives the oldest WQE back and completes it; `false` if there is none.
    fn finish_oldest<H: Host>(&mut self, status: WcStatus, host: &mut H) -> bool {
        let Some(wqe) = self.window.pop() else {
            return false;
        };
        // The slot must be free by the time the poster learns of the completion.
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
