// SPDX-License-Identifier: GPL-2.0

//! The processing of responses: acknowledgments, READ responses, NAKs (IBTA 1.x §9.7.5, §9.7.6).
//!
//! A response for a PSN acknowledges all PSNs before it. If a READ or atomic before it has no
//! response yet, that response was lost, and the requester sends the request again.

use super::retry::{Loss, RtoResult};
use super::wqe::{Answer, SendWqe};
use super::Requester;
use crate::host::{Count, Host, QpDropReason, ScatterFault};
use crate::psn::Psn;
use crate::qp::{Context, Outcome, QpKind, Slots};
use crate::time::Instant;
use crate::train::Train;
use crate::wc::WcStatus;
use crate::wire::packet::{Aeth, Body, GapReport, NakCode, Packet, ReadPart, Syndrome};

impl<W: Slots<SendWqe>> Requester<W> {
    /// Processes a response. A response whose PSN isn't in flight is late or forged, and is
    /// dropped, unless it is a [needless NAK](Self::needless_nak).
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        now: Instant,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        let psn = packet.bth.psn;
        if let Some(msn) = self.needless_nak(packet, context) {
            host.count(Count::RcvdSeqErr);
            self.record_msn(psn, msn);
            self.vouch(psn, now, context, host);
            return self.check_gap(now, context, host);
        }
        if psn.ahead_of(self.una) >= self.sent.ahead_of(self.una) {
            host.count(Count::Dropped(QpDropReason::Unsolicited));
            return Outcome::Continue;
        }
        match packet.body {
            Body::Ack(aeth) => match aeth.syndrome {
                Syndrome::Ack { .. } => {
                    self.learn_cookie(packet, aeth.msn, context);
                    self.record_msn(psn.next(), aeth.msn);
                    self.vouch(psn.next(), now, context, host);
                    self.check_gap(now, context, host)
                }
                Syndrome::RnrNak { timer } => {
                    let proven = self.is_plausible(aeth.msn);
                    self.record_msn(psn, aeth.msn);
                    self.wait(psn, timer, proven, now, context, host)
                }
                Syndrome::Nak(NakCode::PsnSequence) => {
                    let report = gap_report(packet, context);
                    host.count(Count::RcvdSeqErr);
                    if report.is_later {
                        self.fill_later_gap(psn, report.missing);
                        return Outcome::Continue;
                    }
                    self.record_msn(psn, aeth.msn);
                    self.vouch(psn, now, context, host);
                    self.fill_gap(report.missing, now, context, host)
                }
                Syndrome::Nak(code) => {
                    let status = refusal(code, context);
                    if !self.is_plausible(aeth.msn) {
                        self.challenge(psn, status, now, context);
                        return Outcome::Continue;
                    }
                    self.vouch(psn, now, context, host);
                    self.fail_at(psn, status, host)
                }
            },
            Body::ReadResponse(_) | Body::AtomicAck(..) => {
                self.answered(packet, now, context, host)
            }
            _ => Outcome::Continue,
        }
    }

    /// Learns the cookie of early packets from a positive response with this MSN. The responder
    /// doesn't change it.
    #[inline]
    fn learn_cookie(&mut self, packet: &Packet, msn: u32, context: &Context) {
        let told = packet.bth.reserved;
        let is_new = told.fills_gaps() && self.reserved.extension() == 0;
        if is_new && context.offers_to_fill_gaps() && self.is_plausible(msn) {
            self.reserved = self.reserved.with_extension(told.extension());
        }
    }

    /// Returns the MSN of `packet` if it is a sequence NAK for the PSN after the newest one that
    /// was sent, and a request is unfinished. Such a NAK reports no lost request, because it
    /// acknowledges all packets that were sent.
    ///
    /// A third party's packet ahead of the expected PSN makes the responder send such a NAK,
    /// possibly in place of the acknowledgment of all packets.
    fn needless_nak(&self, packet: &Packet, context: &Context) -> Option<u32> {
        match packet.body {
            Body::Ack(Aeth {
                syndrome: Syndrome::Nak(NakCode::PsnSequence),
                msn,
            }) if packet.bth.psn == self.sent
                && self.una != self.sent
                && !gap_report(packet, context).is_later =>
            {
                Some(msn)
            }
            _ => None,
        }
    }

    /// Records that the responder has carried out all requests before `psn`, and completes the WQEs
    /// that are finished now.
    fn vouch<H: Host>(&mut self, psn: Psn, now: Instant, context: &Context, host: &mut H) {
        if self.acked.before(psn) {
            self.acked = psn;
        }
        let una = self.una;
        self.finish_acked(host);
        self.progress_since(una, now, context, host);
    }

    /// Completes the oldest WQEs as long as all their packets are acknowledged and they need no
    /// other response.
    pub(super) fn finish_acked<H: Host>(&mut self, host: &mut H) {
        while self.started > 0 {
            let Some(oldest) = self.window.get(0) else {
                return;
            };
            if oldest.uses_rd_atomic() {
                return;
            }
            let acked = self.acked.ahead_of(oldest.first);
            if acked < oldest.packets {
                self.una = self.acked;
                if self.cursor.wqe == 0 {
                    self.cursor.packet = self.cursor.packet.max(acked);
                }
                return;
            }
            self.una = oldest.first.plus(oldest.packets);
            self.finish_oldest(WcStatus::Success, host);
        }
    }

    /// Restores all retries if the oldest unfinished PSN is no longer `una`. After an RTO, this
    /// decides whether the packets after the oldest one are sent again.
    fn progress_since<H: Host>(&mut self, una: Psn, now: Instant, context: &Context, host: &mut H) {
        self.clear_answered_challenge();
        let packets = self.una.ahead_of(una);
        if packets == 0 {
            return;
        }
        self.hinted = false;
        self.filled_later = 0;
        self.continue_rereads(now, context, host);
        if self.kept != 0 {
            self.retry.limit_burst(self.sent.ahead_of(self.una));
        }
        self.kept = 0;
        if self.asked_first.before(self.una) {
            self.asked_first = self.una;
        }
        if self.past_gap.is_some_and(|past| !self.una.before(past)) {
            self.leave_gap();
        }
        let awaits = self.una.before(self.asked);
        let rto = self
            .retry
            .progress(self.una, packets, awaits, now, &context.settings);
        match rto {
            Some(RtoResult::Loss) => host.count(Count::CompleterRetry),
            Some(RtoResult::Spurious { may_skip }) => self.continue_after_rto(may_skip, now),
            None => {}
        }
        if self.una == self.sent {
            self.retry.stop();
        }
    }

    /// Detects a lost response: the oldest unfinished PSN is acknowledged, but its own response is
    /// missing.
    fn check_gap<H: Host>(&mut self, now: Instant, context: &Context, host: &mut H) -> Outcome {
        if !self.una.before(self.acked) {
            return Outcome::Continue;
        }
        if self.may_reread(context) {
            self.reread(now, host);
            return Outcome::Continue;
        }
        self.resend_on_hint(Loss::Unknown, now, context, host)
    }

    /// Continues after an RTO, when the acknowledgment covers more than the packet that was sent
    /// again. A responder that keeps early packets may have missed that packet only.
    fn continue_after_rto(&mut self, may_skip: bool, now: Instant) {
        if self.reserved.extension() != 0 {
            self.note_losses(self.una.minus(1), 1);
        }
        self.retry.limit_burst(self.sent.ahead_of(self.una));
        if may_skip {
            self.skip_sent();
            self.restore_asked();
            if self.una.before(self.asked) {
                self.retry.await_response(self.una, false, now);
            }
        }
    }

    /// Resends from the oldest unfinished packet, because it or the response to it was lost.
    pub(super) fn resend_on_hint<H: Host>(
        &mut self,
        loss: Loss,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        if self.hinted || self.started == 0 || self.is_rewound() {
            return Outcome::Continue;
        }
        self.hinted = true;
        self.go_back(loss, now, context, host)
    }

    /// Processes an RNR NAK: everything from `psn` on waits as long as the peer asked.
    ///
    /// An RNR NAK with an implausible MSN isn't `proven`: it may be forged. It acknowledges nothing
    /// and costs time only, unless too many arrive (`Retry::spend_rnr`).
    fn wait<H: Host>(
        &mut self,
        psn: Psn,
        timer: u8,
        proven: bool,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        if proven {
            self.vouch(psn, now, context, host);
        }
        if self.retry.waits() {
            return Outcome::Continue;
        }
        host.count(Count::RcvdRnrErr);
        if !self.retry.spend_rnr(proven, &context.settings) {
            host.count(Count::RnrRetryExceeded);
            return self.fail_at(psn, WcStatus::RnrRetryExcErr, host);
        }
        self.retry.wait(psn, timer, now);
        self.hinted = false;
        self.rewind();
        Outcome::Continue
    }

    /// Returns whether the cursor is at the oldest unfinished packet already.
    fn is_rewound(&self) -> bool {
        let oldest = self.window.get(0);
        self.cursor.wqe == 0
            && oldest.is_some_and(|wqe| wqe.first.plus(self.cursor.packet) == self.una)
    }

    /// Completes the WQE of the packet `psn` in error. The WQEs before it are flushed: their
    /// responses were lost, and won't come any more.
    pub(super) fn fail_at<H: Host>(&mut self, psn: Psn, status: WcStatus, host: &mut H) -> Outcome {
        while let Some(oldest) = self.window.get(0) {
            if psn.ahead_of(oldest.first) < oldest.packets {
                break;
            }
            self.finish_oldest(WcStatus::WrFlushErr, host);
        }
        self.fail_oldest(status, host)
    }

    /// Processes a response to a READ, an atomic, an ATOMIC WRITE or a FLUSH.
    fn answered<H: Host>(
        &mut self,
        packet: &Packet,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        let psn = packet.bth.psn;
        let aeth = aeth(&packet.body);
        let proven = aeth.is_some_and(|aeth| self.is_plausible(aeth.msn));
        if !proven && !self.is_awaited(packet, context) {
            self.challenge(psn, WcStatus::BadRespErr, now, context);
            return Outcome::Continue;
        }
        if let Some(aeth) = aeth {
            if psn == self.una {
                self.learn_cookie(packet, aeth.msn, context);
            }
            self.record_msn(psn, aeth.msn);
        }
        self.vouch(psn, now, context, host);
        // A WQE that failed when it was sent again no longer counts as started. It ends with its
        // fault, whatever the response to its first copy says.
        if psn != self.una || self.started == 0 {
            self.keep_early(packet, now, context, host);
            return self.check_gap(now, context, host);
        }
        match self.accept(packet, context, host) {
            Ok(()) => {
                self.finish_answered(1, now, context, host);
                Outcome::Continue
            }
            Err(ScatterFault::Failed(status)) => self.fail_oldest(status, host),
            Err(ScatterFault::Retry) => Outcome::Continue,
        }
    }

    /// Returns whether `packet` is the kind of response that the request with its PSN waits for.
    pub(super) fn is_awaited(&self, packet: &Packet, context: &Context) -> bool {
        let psn = packet.bth.psn;
        let mut started = (0..self.started).map_while(|index| self.window.get(index));
        let asked = started.find(|wqe| psn.ahead_of(wqe.first) < wqe.packets);
        asked.is_some_and(|wqe| self.awaits(wqe, packet, context))
    }

    /// Returns whether `packet` is the response that `wqe` waits for. The PSN of `packet` is one of
    /// `wqe`.
    ///
    /// A response that was asked for again may begin and end anywhere in its READ.
    fn awaits(&self, wqe: &SendWqe, packet: &Packet, context: &Context) -> bool {
        let psn = packet.bth.psn;
        let index = psn.ahead_of(wqe.first);
        match (wqe.answer(), packet.body) {
            (Answer::Read, Body::ReadResponse(part)) => {
                let (_, length) = wqe.piece(index, context.settings.path_mtu);
                let fits = fits(part, wqe.request_ends(index))
                    || self.rereads.may_include(psn) && is_no_refusal(part);
                fits && packet.payload_len == length
            }
            (Answer::Empty, Body::ReadResponse(part @ ReadPart::Only(_))) => {
                fits(part, true) && packet.payload_len == 0
            }
            (Answer::Atomic, Body::AtomicAck(aeth, _)) => is_positive(aeth),
            _ => false,
        }
    }

    /// Checks the response to the oldest unfinished PSN against its request, and stores its
    /// payload.
    fn accept<H: Host>(
        &self,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Result<(), ScatterFault> {
        let oldest = self.window.get(0).ok_or(WcStatus::BadRespErr)?;
        if !self.awaits(oldest, packet, context) {
            return Err(WcStatus::BadRespErr.into());
        }
        let slot = oldest.wr.slot;
        match packet.body {
            Body::AtomicAck(_, original) => host.scatter_atomic(slot, original),
            _ if packet.payload_len == 0 => Ok(()),
            _ => {
                let index = packet.bth.psn.ahead_of(oldest.first);
                let (offset, _) = oldest.piece(index, context.settings.path_mtu);
                host.scatter_send(slot, offset)
            }
        }
    }

    /// Processes a train of READ responses as one. Returns `false` and changes nothing but the
    /// READ's buffer if the train isn't the next part of the oldest READ, or its payload can't be
    /// stored.
    pub(crate) fn handle_train<H: Host>(
        &mut self,
        train: &Train,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> bool {
        let Body::ReadResponse(part) = train.packet.body else {
            return false;
        };
        let psn = train.packet.bth.psn;
        let Some(oldest) = self.window.get(0).filter(|_| self.started > 0) else {
            return false;
        };
        if psn != self.una || psn == self.sent || !awaits_train(oldest, part, train, context) {
            return false;
        }
        let (offset, _) = oldest.piece(psn.ahead_of(oldest.first), context.settings.path_mtu);
        if host.scatter_send(oldest.wr.slot, offset).is_err() {
            return false;
        }
        if let Some(aeth) = aeth(&train.packet.body) {
            self.learn_cookie(&train.packet, aeth.msn, context);
        }
        let last = psn.plus(train.count.saturating_sub(1));
        match part {
            ReadPart::First(aeth) => self.record_msn(psn, aeth.msn),
            ReadPart::Middle => {}
            ReadPart::Last(aeth) => self.record_msn(last, aeth.msn),
            ReadPart::Only(aeth) => {
                self.record_msn(psn, aeth.msn);
                self.record_msn(last, aeth.msn);
            }
        }
        self.finish_answered(train.count, now, context, host);
        true
    }

    /// Advances past the oldest `count` unfinished PSNs, whose responses have arrived. They belong
    /// to one request.
    fn finish_answered<H: Host>(
        &mut self,
        count: u32,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) {
        let Some(oldest) = self.window.get(0) else {
            return;
        };
        let una = self.una;
        let index = una.ahead_of(oldest.first);
        let past = index.wrapping_add(count);
        let ends = oldest.request_ends(past.wrapping_sub(1));
        let is_last = past >= oldest.packets;
        // If the cursor has moved back to this request, it no longer counts in `reads`.
        if self.cursor.wqe > 0 || self.cursor.packet > index {
            self.reads.packets = self.reads.packets.saturating_sub(count);
            if ends {
                self.reads.requests = self.reads.requests.saturating_sub(1);
            }
        } else {
            self.cursor.packet = past;
        }
        self.una = una.plus(count);
        if self.acked.before(self.una) {
            self.acked = self.una;
        }
        if is_last {
            self.finish_oldest(WcStatus::Success, host);
            self.finish_acked(host);
        }
        self.progress_since(una, now, context, host);
    }
}

/// Returns the gap that a sequence NAK reports. A peer may report one only to a requester that has
/// offered to fill it.
fn gap_report(packet: &Packet, context: &Context) -> GapReport {
    match context.offers_to_fill_gaps() {
        true => GapReport::decode(packet.bth.reserved.extension()),
        false => GapReport::default(),
    }
}

/// Returns the status of a request that the responder refused with `code` (IBTA 1.x §10.10.3,
/// §11.6.2).
fn refusal(code: NakCode, context: &Context) -> WcStatus {
    match code {
        NakCode::InvalidRequest => WcStatus::RemInvReqErr,
        NakCode::RemoteAccess => WcStatus::RemAccessErr,
        NakCode::RemoteOperational => WcStatus::RemOpErr,
        // This code reports violations of XRC, and `enum ib_wc_status` has a status of its own for
        // it.
        NakCode::InvalidRdRequest if context.config.kind == QpKind::XrcIni => {
            WcStatus::RemInvRdReqErr
        }
        NakCode::InvalidRdRequest | NakCode::PsnSequence => WcStatus::BadRespErr,
    }
}

/// Returns the header with the MSN. A middle READ response has none.
fn aeth(body: &Body) -> Option<Aeth> {
    match *body {
        Body::Ack(aeth) | Body::AtomicAck(aeth, _) => Some(aeth),
        Body::ReadResponse(ReadPart::First(aeth) | ReadPart::Last(aeth) | ReadPart::Only(aeth)) => {
            Some(aeth)
        }
        _ => None,
    }
}

/// Returns whether `train`, whose place is `part`, holds the next READ responses of one request of
/// `wqe`. Its first PSN is one of `wqe`.
fn awaits_train(wqe: &SendWqe, part: ReadPart, train: &Train, context: &Context) -> bool {
    let index = train.packet.bth.psn.ahead_of(wqe.first);
    let left = wqe.span(index);
    let (_, length) = wqe.train_piece(index, train.count, context.settings.path_mtu);
    wqe.answer() == Answer::Read
        && train.count <= left
        && fits(part, train.count == left)
        && train.packet.payload_len == length
}

/// Returns whether the READ response `part` can have the last PSN of a request (`ends`) or an
/// earlier one (`!ends`), and its AETH, if it has one, is positive (IBTA 1.x §9.7.5.1.4).
///
/// Whether `part` may start a response isn't checked: that depends on the PSN from which the
/// requester last resent, and a late response may answer an earlier copy of the request.
fn fits(part: ReadPart, ends: bool) -> bool {
    match part {
        ReadPart::First(aeth) => !ends && is_positive(aeth),
        ReadPart::Middle => !ends,
        ReadPart::Last(aeth) | ReadPart::Only(aeth) => ends && is_positive(aeth),
    }
}

/// Returns whether a READ response has no AETH or a positive one.
fn is_no_refusal(part: ReadPart) -> bool {
    aeth(&Body::ReadResponse(part)).is_none_or(is_positive)
}

/// Returns whether the syndrome says that the request was carried out.
fn is_positive(aeth: Aeth) -> bool {
    matches!(aeth.syndrome, Syndrome::Ack { .. })
}
