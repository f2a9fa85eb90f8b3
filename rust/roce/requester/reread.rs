// SPDX-License-Identifier: GPL-2.0

//! Lost READ responses: the requester reads only their data again.
//!
//! A response acknowledges all requests before it. So the READ responses before it that have not
//! arrived are lost, or late. The host keeps the responses that arrive early ([`crate::early`]).
//! A READ request with the PSN of a lost response asks for the lost ones only (IBTA 1.x
//! §9.7.5.1.5). The cursor stays where it is. Such a request spends no retry: the acknowledgment
//! timer runs meanwhile.
//!
//! Early responses are kept only if they have the responder's cookie
//! ([`Reserved::extension`](crate::wire::packet::Reserved)). Otherwise a forger who doesn't see the
//! traffic would have to hit one of many PSNs instead of one.

use super::segment::{self, Marks};
use super::short_queue::ShortQueue;
use super::{Before, Progress, Requester, SendWqe};
use crate::early::{Direction, Kept, MOST_AHEAD, MOST_KEPT};
use crate::host::{Count, Host};
use crate::psn::Psn;
use crate::qp::{Context, Slots};
use crate::time::Instant;
use crate::transmit::Transmit;
use crate::wire::packet::{Body, Packet};

/// Consecutive PSNs whose responses have not arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    /// The first PSN.
    first: Psn,
    /// One past the last PSN.
    past: Psn,
    /// The next PSN to ask for. The gap's responses have been asked for if it is `past`.
    next: Psn,
    /// Time at which a request for the responses was last sent.
    asked_at: Instant,
}

impl Gap {
    /// Creates a gap whose responses have not been asked for.
    fn new(first: Psn, past: Psn) -> Self {
        Self {
            first,
            past,
            next: first,
            asked_at: Instant(0),
        }
    }

    /// Returns whether responses are to be asked for.
    fn is_due(&self) -> bool {
        self.next != self.past
    }

    /// Returns whether the host has refused the responses, and they have not been asked for.
    fn is_refused(&self) -> bool {
        self.asked_at == Instant(0) && !self.is_due()
    }
}

/// The READ responses to ask for again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rereads {
    /// Gaps that have not been filled.
    gaps: ShortQueue<Gap>,
    /// A gap may be one to ask for.
    may_be_due: bool,
    /// The gaps before this PSN have been found.
    past_seen: Option<Psn>,
    /// Time at which the host drops the early responses.
    kept_until: Option<Instant>,
}

impl Rereads {
    /// Adds a gap behind the others, unless too many wait.
    fn push(&mut self, gap: Gap) {
        self.may_be_due |= gap.is_due();
        self.gaps.push(gap);
    }

    /// Adds a gap before the others. If too many wait, the newest one is forgotten.
    fn push_front(&mut self, gap: Gap) {
        self.gaps.push_front(gap);
        self.may_be_due = true;
    }

    /// Adds responses that the host has refused. They are asked for when they are the oldest ones.
    fn push_refused(&mut self, first: Psn, past: Psn) {
        let newest = self.gaps.as_mut_slice().last_mut();
        match newest.filter(|gap| gap.past == first && gap.is_refused()) {
            Some(gap) => (gap.past, gap.next) = (past, past),
            None => self.push(Gap {
                next: past,
                ..Gap::new(first, past)
            }),
        }
    }

    /// Returns whether the response `psn` may be one that was asked for again.
    pub(super) fn may_include(&self, psn: Psn) -> bool {
        self.past_seen.is_some_and(|seen| psn.before(seen))
    }

    /// Removes the gaps before `una`.
    fn drop_before(&mut self, una: Psn) {
        while self.gaps.oldest().is_some_and(|gap| !una.before(gap.past)) {
            self.gaps.pop();
        }
    }

    /// Returns the oldest gap if it contains `una`, the oldest response that has not arrived. The
    /// caller has dropped the gaps before `una`.
    fn gap_of(&mut self, una: Psn) -> Option<&mut Gap> {
        self.gaps.oldest().filter(|gap| !una.before(gap.first))
    }

    /// Schedules the request for the responses from `psn` on again.
    pub(super) fn ask_from(&mut self, psn: Psn) {
        let has_it = |gap: &&mut Gap| !psn.before(gap.first) && psn.before(gap.next);
        if let Some(gap) = self.gaps.as_mut_slice().iter_mut().find(has_it) {
            gap.next = psn;
            self.may_be_due = true;
        }
    }

    /// Returns the oldest gap to ask for.
    fn first_due(&mut self) -> Option<&mut Gap> {
        let due = self.gaps.as_mut_slice().iter_mut().find(|gap| gap.is_due());
        self.may_be_due = due.is_some();
        due
    }

    /// Forgets the gaps, because all packets in flight are sent again.
    pub(super) fn forget_gaps(&mut self) {
        self.gaps.clear();
    }

    /// Returns whether a request may be to be sent.
    #[inline(always)]
    pub(super) fn may_be_due(&self) -> bool {
        self.may_be_due
    }

    /// Returns the time at which the early responses are to be dropped.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.kept_until
    }
}

impl<W: Slots<SendWqe>> Requester<W> {
    /// Has the host keep a response that arrived early, and all before which is acknowledged.
    #[cold]
    pub(super) fn keep_early<H: Host>(
        &mut self,
        packet: &Packet,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) {
        let psn = packet.bth.psn;
        if !self.is_awaited(packet, context) || !self.may_reread(context) {
            return;
        }
        let kept = match self.has_cookie(packet) {
            true => host.keep_early(Direction::Response, self.una, psn),
            false => Kept::Refused,
        };
        self.find_gap();
        let past = psn.next();
        if self.rereads.past_seen.is_none_or(|seen| seen.before(past)) {
            self.rereads.past_seen = Some(past);
            if kept == Kept::Refused {
                self.rereads.push_refused(psn, past);
            }
        }
        if kept == Kept::Kept {
            host.count(Count::EarlyResponse);
            let most = MOST_AHEAD.saturating_sub(self.retry.limit());
            self.kept = self.kept.saturating_add(1).min(most);
            self.rereads.kept_until.get_or_insert(now.after(MOST_KEPT));
        }
    }

    /// Returns whether a response has the responder's cookie.
    pub(super) fn has_cookie(&self, packet: &Packet) -> bool {
        let cookie = self.reserved.extension();
        cookie != 0 && packet.bth.reserved.extension() == cookie
    }

    /// Returns whether lost responses can be asked for one by one: the responder's cookie is known,
    /// and none of the requests before `acked` is to be sent again anyway.
    pub(super) fn may_reread(&self, context: &Context) -> bool {
        self.reserved.extension() != 0
            && context.offers_to_fill_gaps()
            && !self.cursor_psn().before(self.acked)
            && !self.retry.sends_oldest()
    }

    /// Schedules READ requests for the responses that are missing before `acked`.
    #[cold]
    pub(super) fn reread<H: Host>(&mut self, now: Instant, host: &mut H) {
        self.find_gap();
        self.rereads.drop_before(self.una);
        let una = self.una;
        if host.first_early(Direction::Response, una, una) == Some(una) {
            return;
        }
        let Some(gap) = self.rereads.gap_of(una) else {
            // There were too many gaps at once.
            let next = self.rereads.gaps.oldest();
            let past = next.map_or(self.acked, |gap| gap.first);
            self.rereads.push_front(Gap::new(una, past));
            return;
        };
        if gap.is_due() {
            return;
        }
        let is_refused = gap.is_refused();
        if is_refused || self.retry.is_past_round_trip(gap.asked_at, now) {
            self.rereads.ask_from(una);
            if !is_refused {
                self.retry.note_late();
            }
        }
    }

    /// Records the gap before `acked`, if it is new, and lowers the limit of packets in flight.
    fn find_gap(&mut self) {
        let seen = self.rereads.past_seen.filter(|seen| self.una.before(*seen));
        let first = seen.unwrap_or(self.una);
        if !first.before(self.acked) {
            return;
        }
        self.rereads.past_seen = Some(self.acked);
        let lost = self.count_responses(first, self.acked);
        if lost != 0 {
            self.rereads.push(Gap::new(first, self.acked));
            self.note_losses(first, lost);
        }
    }

    /// Returns the number of responses that READs and similar requests from `first` up to `past`
    /// wait for.
    fn count_responses(&self, first: Psn, past: Psn) -> u32 {
        let wqes = (0..self.started).map_while(|at| self.window.get(at));
        let overlap = |wqe: &SendWqe| {
            let end = wqe.first.plus(wqe.packets).earliest(past);
            u32::try_from(end.since(wqe.first.latest(first))).unwrap_or(0)
        };
        let waiting = wqes.filter(|wqe| wqe.uses_rd_atomic());
        waiting.map(overlap).fold(0, u32::saturating_add)
    }

    /// Asks for the oldest lost responses again after an RTO, if the later responses say that only
    /// those are missing. Returns whether it does.
    pub(super) fn reread_after_rto(&mut self, context: &Context) -> bool {
        let una = self.una;
        if !una.before(self.acked) || !self.may_reread(context) {
            return false;
        }
        self.rereads.drop_before(una);
        if self.rereads.gap_of(una).is_none() {
            return false;
        }
        self.rereads.ask_from(una);
        self.retry.end_rto_of_responses();
        true
    }

    /// Stores the next READ request for lost responses in `next`. Returns `None` if there is none,
    /// or if the caller shall continue.
    #[cold]
    pub(super) fn send_reread<H: Host>(
        &mut self,
        next: &mut Option<Transmit>,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Option<Progress> {
        self.rereads.drop_before(self.una);
        let una = self.una;
        let Gap {
            next: psn, past, ..
        } = *self.rereads.first_due()?;
        let mut psn = psn.latest(una);
        let mut kept = host.first_early(Direction::Response, una, psn);
        // At most `MOST_AHEAD` responses are kept.
        while kept == Some(psn) && psn.before(past) {
            psn = psn.next();
            kept = host.first_early(Direction::Response, una, psn);
        }
        let until = kept.filter(|kept| kept.before(past)).unwrap_or(past);
        let position = self.position(psn);
        let wqe = position.and_then(|at| Some((at.packet, self.window.get(at.wqe)?)));
        let mut sent = None;
        let asked = match wqe {
            // All responses have arrived.
            Some(_) if !psn.before(past) => past,
            Some((index, wqe)) if wqe.uses_rd_atomic() => {
                let count = until.ahead_of(psn).min(wqe.span(index));
                sent = segment::build(wqe, index, 1, self.marks_again(), context);
                if let Some(Transmit { packet, .. }) = &mut sent {
                    limit_length(
                        packet,
                        count.saturating_mul(context.settings.path_mtu.bytes()),
                    );
                }
                psn.plus(count)
            }
            // The WQE needs no response.
            Some((_, wqe)) => wqe.first.plus(wqe.packets),
            None => past,
        };
        let gap = self.rereads.first_due()?;
        gap.next = asked.earliest(past);
        sent.as_ref()?;
        gap.asked_at = now;
        *next = sent;
        self.before = Before {
            cursor: self.cursor,
            sent: self.sent,
            asked: self.asked,
            unasked: self.unasked,
            is_reread: true,
        };
        self.retry.sent(now, &context.settings);
        self.retry.forget_timed_from(psn);
        self.retry.stop_rto();
        self.retry.await_response(psn, false, now);
        Some(Progress::Send)
    }

    /// Returns the marks of a request that was sent before.
    fn marks_again(&self) -> Marks {
        Marks {
            asks: false,
            again: true,
            reserved: self.reserved,
        }
    }

    /// Continues after progress while responses are missing.
    pub(super) fn continue_rereads<H: Host>(
        &mut self,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) {
        let Some(past_seen) = self.rereads.past_seen else {
            return;
        };
        if !self.una.before(past_seen) {
            self.rereads = Rereads::default();
            return;
        }
        if self.rereads.kept_until.is_some() {
            self.rereads.kept_until = Some(now.after(MOST_KEPT));
        }
        if self.una.before(self.acked) && self.may_reread(context) {
            self.reread(now, host);
        }
    }

    /// Drops the early responses if they were kept too long.
    pub(super) fn expire_early<H: Host>(&mut self, now: Instant, host: &mut H) {
        if self.rereads.kept_until.is_some_and(|until| until <= now) {
            host.drop_early(Direction::Response);
            self.rereads.kept_until = None;
        }
    }
}

/// Limits the range that a READ request asks for.
fn limit_length(packet: &mut Packet, most: u32) {
    if let Body::ReadRequest(reth) = &mut packet.body {
        reth.length = reth.length.min(most);
    }
}
