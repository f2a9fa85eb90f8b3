// SPDX-License-Identifier: GPL-2.0

//! Gaps: request packets that are missing, the NAKs that report them, and the early packets that
//! the host keeps behind them ([`crate::early`], IBTA 1.x §9.7.5.2.8).
//!
//! A peer that knows only the specification sends all packets after a NAK again, and no early
//! packet of such a peer is kept. A peer that fills gaps
//! ([`Reserved::fills_gaps`](crate::wire::packet::Reserved)) sends only the missing packets again,
//! since the NAK says which ones are missing. So it needs a NAK for each gap.
//!
//! An early packet is kept only if it has the responder's cookie, which acknowledgments tell the
//! peer. Otherwise a forger who doesn't see the traffic would have to hit one of 511 PSNs instead
//! of one. With the cookie, it needs 2²⁴ · 2¹¹ / 511 packets on average.

use super::{is_recorded, Answer, Replay, Responder};
use crate::early::{Direction, Kept, MOST_KEPT};
use crate::host::{Count, Host};
use crate::psn::Psn;
use crate::qp::{Context, Slots};
use crate::time::Instant;
use crate::wire::packet::{GapReport, Packet, Reserved, MOST_EXTENSION, MOST_MISSING};

/// Whether a NAK has told the peer to send the expected packet again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// No NAK was sent for the expected packet. A packet ahead of it causes a NAK.
    #[default]
    Unbroken,
    /// A sequence NAK for the expected packet is due or was sent.
    Missing,
    /// An RNR NAK for the expected packet is due or was sent. Packets ahead of it are just dropped.
    NotReady,
}

/// The packets that were missing when early packets arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gap {
    pub(super) order: Order,
    /// One past the newest early packet with the cookie, whether the host keeps it or has refused
    /// it. `None` if there is none, it was carried out, or the host has dropped all early packets.
    past_seen: Option<Psn>,
    /// The last NAK of the first gap reported the missing packets before this one.
    past_reported: Option<Psn>,
    /// The extension that early packets must have to be kept. 0 before the peer has said that it
    /// fills gaps.
    cookie: u16,
    /// An early READ or atomic was dropped, so the peer sends all packets again.
    peer_goes_back: bool,
    /// First PSN of a gap behind early packets, which a NAK is due to report.
    later: Option<Psn>,
    /// Time at which the host drops the early packets.
    kept_until: Option<Instant>,
}

impl Gap {
    /// Returns [`Reserved::fills_gaps`](crate::wire::packet::Reserved) and the extension of
    /// acknowledgments.
    pub(super) fn announced_cookie(&self) -> Reserved {
        Reserved::default()
            .with_fills_gaps(self.cookie != 0)
            .with_extension(self.cookie)
    }

    /// Returns whether the packet has the cookie, and is that of a peer that fills gaps.
    fn is_proven(&self, packet: &Packet) -> bool {
        let reserved = packet.bth.reserved;
        self.cookie != 0 && reserved.fills_gaps() && reserved.extension() == self.cookie
    }
}

impl<R: Slots<Replay>> Responder<R> {
    /// Handles a packet ahead of the expected one. The host keeps the packet if it has room.
    ///
    /// One NAK tells the peer to resend, unless the missing packets arrive before the host polls
    /// the NAK. A peer that fills gaps gets another one for each early packet that requests an
    /// acknowledgment: a packet that was sent again may be lost, too.
    pub(super) fn handle_early<H: Host>(&mut self, packet: &Packet, now: Instant, host: &mut H) {
        let psn = packet.bth.psn;
        host.count(Count::OutOfSeqRequest);
        if self.gap.is_proven(packet) && self.gap.order != Order::NotReady {
            self.note_gap(psn);
            if self.keeps(packet, host) {
                host.count(Count::EarlyRequest);
                self.gap.kept_until.get_or_insert(now.after(MOST_KEPT));
            }
            if packet.bth.ack_req && self.gap.order == Order::Missing {
                self.gap.order = Order::Unbroken;
            }
        }
        self.report_missing(psn);
    }

    /// Records the gap between the newest early packet and this one, if the latter is newer.
    fn note_gap(&mut self, psn: Psn) {
        let past = psn.next();
        match self.gap.past_seen {
            Some(newest) if !newest.before(past) => return,
            Some(newest) if newest.before(psn) => self.gap.later = Some(newest),
            _ => {}
        }
        self.gap.past_seen = Some(past);
    }

    /// Has the host keep an early packet. Returns whether it does.
    ///
    /// READs and atomics are not kept: the peer goes back while one is in flight, and the answers
    /// to both copies would cost more than the request.
    fn keeps<H: Host>(&mut self, packet: &Packet, host: &mut H) -> bool {
        if is_recorded(&packet.body) {
            self.gap.peer_goes_back = true;
            return false;
        }
        host.keep_early(Direction::Request, self.expected, packet.bth.psn) == Kept::Kept
    }

    /// Takes the later gap to report: its first PSN and the number of missing packets. Returns
    /// `None` if the gap is filled, or has become the first gap.
    pub(super) fn take_later_gap<H: Host>(&mut self, host: &mut H) -> Option<(Psn, GapReport)> {
        let start = self.gap.later.take()?;
        let next = host.first_early(Direction::Request, self.expected, start)?;
        let missing = next.ahead_of(start).min(u32::from(MOST_MISSING)) as u8;
        let is_later = self.expected.before(start) && self.gap.order != Order::NotReady;
        let report = GapReport { missing, is_later };
        (missing != 0 && is_later).then_some((start, report))
    }

    /// Returns whether no later gap is to be reported.
    #[inline]
    pub(super) fn has_no_later_gap(&self) -> bool {
        self.gap.later.is_none()
    }

    /// Schedules the NAK of the expected packet, unless it was sent. `psn` is ahead of that packet.
    fn report_missing(&mut self, psn: Psn) {
        let is_first = self.gap.order == Order::Unbroken;
        if is_first {
            self.gap.order = Order::Missing;
        }
        self.answer = match self.answer {
            Answer::Missing { newest, due } => Answer::Missing {
                newest: newest.latest(psn),
                due,
            },
            Answer::Nothing if is_first => Answer::Missing {
                newest: psn,
                due: None,
            },
            Answer::Ack(due) if is_first => Answer::Missing {
                newest: psn,
                due: Some(due),
            },
            answer => answer,
        };
    }

    /// Continues after a packet was carried out: `last` is its last PSN.
    ///
    /// While the host keeps early packets, each packet is acknowledged at once, so that the peer
    /// learns which packets it need not send again. A NAK reports the next gap once the last
    /// reported one is filled.
    #[inline]
    pub(super) fn continue_gap<H: Host>(
        &mut self,
        packet: &Packet,
        last: Psn,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) {
        if packet.bth.reserved.fills_gaps() && self.gap.cookie == 0 && context.config.fills_gaps {
            self.gap.cookie = cookie(host.random());
        }
        if let Some(past_seen) = self.gap.past_seen {
            self.fill(past_seen, packet, last, now, host);
        }
    }

    /// Continues after a packet was carried out. `past_seen` is one past the newest early packet.
    #[cold]
    fn fill<H: Host>(
        &mut self,
        past_seen: Psn,
        packet: &Packet,
        last: Psn,
        now: Instant,
        host: &mut H,
    ) {
        if self.answer == Answer::Nothing && !is_recorded(&packet.body) {
            self.answer = Answer::Ack(last);
        }
        if !self.expected.before(past_seen) {
            self.forget_early();
            return;
        }
        let is_reported = |past: &Psn| self.expected.before(*past);
        self.gap.past_reported = self.gap.past_reported.filter(is_reported);
        match host.first_early(Direction::Request, self.expected, self.expected) {
            Some(first) => {
                self.gap.kept_until = Some(now.after(MOST_KEPT));
                if first != self.expected {
                    self.report_next(past_seen.minus(1));
                }
            }
            // The host has refused or dropped the early packets.
            None => {
                self.gap.past_reported = None;
                self.report_next(past_seen.minus(1));
                self.forget_early();
            }
        }
    }

    /// Reports the gap at the expected packet, unless a NAK has reported it or the peer sends all
    /// packets again. `newest` is the newest early packet.
    fn report_next(&mut self, newest: Psn) {
        match self.gap.past_reported {
            None if !self.gap.peer_goes_back => self.report_missing(newest),
            _ => self.gap.order = Order::Missing,
        }
    }

    /// Forgets which early packets have arrived. The host keeps none of them, or will pass none.
    fn forget_early(&mut self) {
        let Gap { order, cookie, .. } = self.gap;
        self.gap = Gap {
            order,
            cookie,
            ..Gap::default()
        };
    }

    /// Returns [`GapReport::missing`] of the NAK that is sent now: the number of packets before the
    /// first one that the host keeps.
    pub(super) fn count_missing<H: Host>(&mut self, host: &mut H) -> u8 {
        let first = host.first_early(Direction::Request, self.expected, self.expected);
        let missing = first.map_or(0, |first| first.ahead_of(self.expected));
        let missing = missing.min(u32::from(MOST_MISSING)) as u8;
        self.gap.past_reported = Some(self.expected.plus(u32::from(missing)));
        missing
    }

    /// Returns the time at which [`Self::expire_early`] must be called, if packets are kept.
    #[inline]
    pub(crate) fn early_deadline(&self) -> Option<Instant> {
        self.gap.kept_until
    }

    /// Drops the early packets if they were kept too long.
    pub(crate) fn expire_early<H: Host>(&mut self, now: Instant, host: &mut H) {
        if self.gap.kept_until.is_some_and(|until| until <= now) {
            host.drop_early(Direction::Request);
            self.forget_early();
        }
    }

    /// Returns whether a sequence NAK is due, but the host still has the expected packet and is
    /// about to pass it.
    pub(super) fn is_gap_being_left<H: Host>(&self, host: &mut H) -> bool {
        matches!(self.answer, Answer::Missing { due: None, .. })
            && self.gap.past_seen.is_some()
            && host.first_early(Direction::Request, self.expected, self.expected)
                == Some(self.expected)
    }

    /// Records that the last NAK did not leave the host.
    pub(super) fn forget_report(&mut self) {
        self.gap.past_reported = None;
    }

    /// Forgets the gap, and drops the early packets.
    pub(super) fn forget_gap<H: Host>(&mut self, host: &mut H) {
        host.drop_early(Direction::Request);
        self.gap = Gap::default();
    }
}

/// Returns a cookie, which is not 0.
fn cookie(random: u32) -> u16 {
    (random as u16 & MOST_EXTENSION).max(1)
}
