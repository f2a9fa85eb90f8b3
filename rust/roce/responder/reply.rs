// SPDX-License-Identifier: GPL-2.0

//! Builds the responses that are due: a poll returns one packet, or a train of READ responses.

use super::replay::{Pending, Recorded, Sent, Stream};
use super::{event, is_recorded, nak_code, Answer, Order, Refusal, Replay, Responder, Undo};
use crate::host::{AccessFault, Count, Event, Host};
use crate::ids::Srqn;
use crate::psn::Psn;
use crate::qp::{Context, Outcome, QpKind, Slots};
use crate::transmit::{Source, Transmit};
use crate::wire::aeth::UNLIMITED_CREDITS;
use crate::wire::packet::{
    Aeth, Body, Bth, GapReport, NakCode, Packet, ReadPart, Reserved, Reth, Service, Syndrome,
};

/// The encoded timer of an RNR NAK that requests a wait of 10 µs (IBTA 1.x table 45).
const SHORTEST_RNR_TIMER: u8 = 1;

/// Maximum number of READ responses that are sent without a packet from the peer between them: as
/// many as a requester may have outstanding, half of all PSNs (IBTA 1.x §9.7.4.1).
///
/// READ responses aren't acknowledged (§9.7.5.1.4). A requester may send one request for a
/// whole READ, and C rxe sends nothing until it has all responses, so with a smaller limit such a
/// requester would stall until its timer expires. A peer that is gone gets this many responses at
/// most.
pub(super) const MOST_UNHEARD: u32 = 1 << 23;

/// Maximum number of READ responses that are sent before the NAK of the request that broke the QP.
/// Soon after the error, the application may reuse the memory. So the limit is far below the number
/// of responses to the longest READ.
pub(super) const MOST_AFTER_ERROR: u32 = 1024;

/// The syndrome of an acknowledgment without end-to-end flow control.
const UNLIMITED: Syndrome = Syndrome::Ack {
    credits: UNLIMITED_CREDITS,
};

impl<R: Slots<Replay>> Responder<R> {
    /// Stores the response that is due next, if any, in `next`: one packet, or a train of READ
    /// responses, `limit` at most.
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        next: &mut Option<Transmit>,
        limit: u32,
        context: &Context,
        host: &mut H,
    ) {
        self.undo = Undo::Nothing;
        if self.unheard >= MOST_UNHEARD && !self.ring.rests() {
            if !matches!(self.answer, Answer::Refused(..)) {
                return;
            }
            self.cancel_responses();
        }
        let msn = self.msn;
        let limit = limit.min(MOST_UNHEARD.saturating_sub(self.unheard));
        let answer = self.ring.send_next(|replay| {
            let before = (replay.pending, replay.sent);
            *next = next_packet(replay, msn, limit, context);
            (before, (replay.pending, replay.sent))
        });
        if let Some((number, (before, after))) = answer {
            self.undo = Undo::Replay {
                number,
                before,
                after,
            };
            self.announce_cookie(next);
            if matches!(before.0, Pending::Stream(_)) {
                let count = next.as_ref().map_or(1, |transmit| transmit.count);
                self.unheard = self.unheard.saturating_add(count);
            }
            return;
        }
        if self.answer == Answer::Nothing && self.has_no_later_gap() {
            return;
        }
        self.undo = Undo::Answer(self.answer);
        let (mut left, mut report) = (Answer::Nothing, GapReport::default());
        if self.is_gap_being_left(host) {
            return;
        }
        let (psn, syndrome) = match self.answer {
            Answer::Nothing => {
                *next = self.report_later_gap(context, host);
                return;
            }
            Answer::Ack(psn) => (psn, UNLIMITED),
            Answer::Missing {
                newest,
                due: Some(psn),
            } => {
                left = Answer::Missing { newest, due: None };
                (psn, UNLIMITED)
            }
            Answer::Missing { .. } => {
                report.missing = self.count_missing(host);
                (self.expected, Syndrome::Nak(NakCode::PsnSequence))
            }
            Answer::NotReady(srqn) => (self.expected, self.not_ready(srqn, context, host)),
            Answer::Refused(psn, code) => (psn, Syndrome::Nak(code)),
        };
        self.answer = left;
        let aeth = Aeth {
            syndrome,
            msn: self.msn,
        };
        let transmit = next.insert(response(psn, Body::Ack(aeth), context));
        let bth = &mut transmit.packet.bth;
        match syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => {
                bth.reserved = bth.reserved.with_extension(report.encode());
            }
            Syndrome::Ack { .. } => bth.reserved = self.gap.announced_cookie(),
            Syndrome::Nak(_) | Syndrome::RnrNak { .. } => {}
        }
    }

    /// Writes the responder's cookie to the reserved bits of a response to a READ, atomic, ATOMIC
    /// WRITE or FLUSH. The responder keeps request packets behind a gap only if they have the
    /// cookie.
    #[inline]
    fn announce_cookie(&self, next: &mut Option<Transmit>) {
        if let Some(Transmit { packet, .. }) = next {
            if !matches!(packet.body, Body::Ack(_)) {
                packet.bth.reserved = self.gap.announced_cookie();
            }
        }
    }

    /// Builds the NAK for a gap behind the first one, if such a gap is to be reported. If the host
    /// drops the NAK, the gap is reported once it has become the first gap.
    fn report_later_gap<H: Host>(&mut self, context: &Context, host: &mut H) -> Option<Transmit> {
        let (start, report) = self.take_later_gap(host)?;
        let aeth = Aeth {
            syndrome: Syndrome::Nak(NakCode::PsnSequence),
            msn: self.msn,
        };
        let mut transmit = response(start, Body::Ack(aeth), context);
        transmit.packet.bth.reserved = Reserved::default().with_extension(report.encode());
        self.undo = Undo::Nothing;
        Some(transmit)
    }

    /// Schedules the train of `count` READ responses of the last poll again. The caller has called
    /// nothing else of the responder since.
    pub(crate) fn withdraw(&mut self, count: u32) {
        self.unheard = self.unheard.saturating_sub(count);
        self.take_back();
    }

    /// Schedules the response of the last poll again, because the host dropped it.
    ///
    /// Requests may have arrived since the poll. The dropped response is scheduled only if no newer
    /// acknowledgment covers it, and if no duplicate request has scheduled it already.
    pub(crate) fn take_back(&mut self) {
        let undo = core::mem::replace(&mut self.undo, Undo::Nothing);
        if matches!(undo, Undo::Answer(Answer::Missing { due: None, .. })) {
            self.forget_report();
        }
        match undo {
            // No packet is missing any more, and the response to a READ or an atomic covers the
            // acknowledgment that was due.
            Undo::Answer(Answer::Missing { newest, .. })
                if self.answer == Answer::Nothing && newest.before(self.expected) => {}
            Undo::Answer(answer) if self.answer == Answer::Nothing => self.answer = answer,
            Undo::Answer(Answer::Missing { due: Some(psn), .. }) => self.acknowledge_first(psn),
            Undo::Nothing | Undo::Answer(_) => {}
            Undo::Replay {
                number,
                before: (pending, sent),
                after,
            } => {
                let Some(replay) = self.ring.get_mut(number) else {
                    return;
                };
                let restored = match (replay.pending, pending) {
                    _ if (replay.pending, replay.sent) == after => pending,
                    // The peer has asked for lost responses meanwhile.
                    (Pending::Stream(lost), Pending::Stream(dropped))
                        if lost.rest == next_of(after.0) && lost.next < dropped.next =>
                    {
                        Pending::Stream(Stream {
                            rest: dropped.next,
                            rest_again: dropped.again,
                            ..lost
                        })
                    }
                    _ => return,
                };
                replay.sent = sent;
                self.ring.demand(number, restored);
            }
        }
    }

    /// Updates the acknowledgment or NAK that is due, after `packet` was carried out. `psn` is the
    /// last PSN of `packet`, which may be a train.
    ///
    /// An acknowledgment of `psn` is due if `packet` requests one, or if an acknowledgment or a NAK
    /// was due before. While later packets are missing, their NAK stays due, behind the
    /// acknowledgment. A packet with a response of its own needs no acknowledgment.
    pub(super) fn acknowledge<H: Host>(&mut self, packet: &Packet, psn: Psn, host: &mut H) {
        let answered = is_recorded(&packet.body);
        let wants_ack = packet.bth.ack_req && !answered;
        self.answer = match self.answer {
            // Packets after this one arrived early, and packets before those may be missing.
            Answer::Missing { newest, due } if !newest.before(self.expected) => {
                let due = match (answered, wants_ack) {
                    (true, _) => None,
                    (false, true) => Some(psn),
                    (false, false) => due,
                };
                self.answer = Answer::Missing { newest, due };
                return;
            }
            Answer::Ack(_) if !answered => {
                host.count(Count::AckDeferred);
                Answer::Ack(psn)
            }
            // The NAK that is no longer needed would have acknowledged the packets before it.
            Answer::NotReady(_) | Answer::Missing { .. } if !answered => Answer::Ack(psn),
            _ if wants_ack => Answer::Ack(psn),
            _ => Answer::Nothing,
        };
        self.gap.order = Order::Unbroken;
    }

    /// If a sequence NAK is due, schedules the acknowledgment of `psn` before the NAK, unless an
    /// acknowledgment of a later PSN is due.
    pub(super) fn acknowledge_first(&mut self, psn: Psn) {
        if let Answer::Missing { due, .. } = &mut self.answer {
            *due = due.filter(|due| psn.before(*due)).or(Some(psn));
        }
    }

    /// Returns whether no response is due.
    #[inline]
    pub(crate) fn rests(&self) -> bool {
        self.answer == Answer::Nothing && self.has_no_later_gap() && self.ring.rests()
    }

    /// Returns whether the ring has a record of a READ, an atomic, an ATOMIC WRITE or a FLUSH.
    pub(crate) fn remembers_answers(&self) -> bool {
        self.ring.newest().is_some()
    }

    /// Handles a READ response whose memory the host could not read.
    ///
    /// The peer gets a NAK in place of the response. The QP enters ERR, unless all responses to the
    /// READ were sent before. After [`AccessFault::Retry`] the response counts as lost instead.
    pub(crate) fn transmit_failed<H: Host>(
        &mut self,
        transmit: &Transmit,
        fault: AccessFault,
        host: &mut H,
    ) -> Outcome {
        let psn = transmit.packet.bth.psn;
        let position = self.position_of(psn);
        let number = position.and_then(|position| self.ring.find(position));
        let (Some(number), Some(code)) = (number, nak_code(fault)) else {
            return Outcome::Continue;
        };
        let repeated = self.ring.get(number).is_some_and(|replay| {
            let last = psn == replay.last_psn();
            replay.sent == Sent::Again || (replay.sent == Sent::Once && !last)
        });
        if repeated {
            self.ring.demand(number, Pending::Refused(psn, code));
            return Outcome::Continue;
        }
        self.ring.cancel();
        self.answer = Answer::Refused(psn, code);
        host.raise(match fault {
            AccessFault::NoQueue => Event::QpAccessErr,
            _ => event(code),
        });
        Outcome::Fatal
    }

    /// Looks for a receive WQE once more, and returns the syndrome of the RNR NAK to send.
    ///
    /// If a WQE was posted meanwhile, the NAK requests the shortest wait. It is an RNR NAK all the
    /// same, so that it costs the peer no transport retry.
    fn not_ready<H: Host>(
        &mut self,
        srqn: Option<Srqn>,
        context: &Context,
        host: &mut H,
    ) -> Syndrome {
        host.count(Count::SendRnrErr);
        let timer = match self.hold(srqn, host) {
            Err(Refusal::NotReady) => context.settings.min_rnr_timer,
            _ => SHORTEST_RNR_TIMER,
        };
        Syndrome::RnrNak { timer }
    }
}

/// Returns the index of the next READ response that is due. Returns 0 if none is due.
fn next_of(pending: Pending) -> u32 {
    match pending {
        Pending::Stream(stream) => stream.next,
        Pending::Nothing | Pending::Whole | Pending::Refused(..) => 0,
    }
}

/// Builds the next response to the request that `replay` records: one packet, or a train of READ
/// responses, `limit` at most. `msn` is the responder's current MSN, for a NAK.
fn next_packet(replay: &mut Replay, msn: u32, limit: u32, context: &Context) -> Option<Transmit> {
    let aeth = Aeth {
        syndrome: UNLIMITED,
        msn: replay.msn,
    };
    let refused = |psn, code| {
        let syndrome = Syndrome::Nak(code);
        Some(response(psn, Body::Ack(Aeth { syndrome, msn }), context))
    };
    // The application may have withdrawn the peer's right to READ since the request arrived.
    let may_read = context.settings.access.read;
    let body = match (replay.pending, replay.request) {
        (Pending::Nothing, _) => return None,
        (Pending::Refused(psn, code), _) => {
            replay.pending = Pending::Nothing;
            return refused(psn, code);
        }
        (Pending::Stream(stream), Recorded::Read(_)) if !may_read => {
            // The NAK replaces all responses that are left. If the NAK is lost, the peer sends the
            // READ request again.
            replay.finish();
            return refused(replay.psn.plus(stream.next), NakCode::RemoteAccess);
        }
        (Pending::Stream(stream), Recorded::Read(reth)) => {
            return Some(next_read_response(
                replay, stream, &reth, aeth, limit, context,
            ));
        }
        (_, Recorded::Atomic(_, original)) => Body::AtomicAck(aeth, original),
        (_, _) => Body::ReadResponse(ReadPart::Only(aeth)),
    };
    replay.finish();
    Some(response(replay.psn, body, context))
}

/// Builds the next READ responses of `stream`, `limit` at most, and advances `replay` past them. If
/// the peer requested the data before, only one response is built.
fn next_read_response(
    replay: &mut Replay,
    stream: Stream,
    reth: &Reth,
    aeth: Aeth,
    limit: u32,
    context: &Context,
) -> Transmit {
    let mtu = context.settings.path_mtu.bytes();
    let offset = stream.next.saturating_mul(mtu);
    let left = stream.end.saturating_sub(offset);
    let limit = if stream.again { 1 } else { limit };
    let count = left.div_ceil(mtu).clamp(1, limit.max(1));
    let full = count.saturating_mul(mtu);
    let part = match (stream.begun, left > full) {
        (false, true) => ReadPart::First(aeth),
        (false, false) => ReadPart::Only(aeth),
        (true, true) => ReadPart::Middle,
        (true, false) => ReadPart::Last(aeth),
    };
    if left > full {
        replay.pending = Pending::Stream(Stream {
            next: stream.next.wrapping_add(count),
            begun: true,
            ..stream
        });
    } else if let Some(rest) = stream.after_lost(reth.length) {
        replay.pending = Pending::Stream(rest);
    } else {
        replay.finish();
    }
    let psn = replay.psn.plus(stream.next);
    let mut transmit = response(psn, Body::ReadResponse(part), context);
    transmit.packet.payload_len = left.min(full);
    transmit.count = count;
    transmit.retransmission = stream.again;
    if left != 0 {
        transmit.source = Source::Remote {
            rkey: reth.rkey,
            va: reth.va.wrapping_add(u64::from(offset)),
            srqn: replay.srqn,
        };
    }
    transmit
}

/// Builds a response without payload.
fn response(psn: Psn, body: Body, context: &Context) -> Transmit {
    let bth = Bth::new(context.settings.dest_qpn, psn);
    let service = match context.config.kind {
        QpKind::XrcTgt => Service::Xrc(None),
        _ => Service::Rc,
    };
    Transmit {
        packet: Packet {
            service,
            bth,
            body,
            payload_len: 0,
        },
        count: 1,
        source: Source::None,
        retransmission: false,
    }
}
