// SPDX-License-Identifier: GPL-2.0

//! Turning what is due into packets, one at a time.

use super::replay::{Pending, Recorded, Sent, Stream};
use super::{event, nak_code, Answer, Refusal, Replay, Responder, Undo};
use crate::host::{AccessFault, Count, Event, Host};
use crate::ids::{Pkey, Srqn};
use crate::psn::Psn;
use crate::qp::{Context, Outcome, QpKind, Slots};
use crate::transmit::{Source, Transmit};
use crate::wire::aeth::UNLIMITED_CREDITS;
use crate::wire::packet::{Aeth, Body, Bth, NakCode, Packet, ReadPart, Reth, Service, Syndrome};

/// The timer of an RNR NAK that asks to wait 10 µs (IBTA 1.x table 45).
const SHORTEST_RNR_TIMER: u8 = 1;

/// READ responses that are sent without a packet from the peer meanwhile: as many as a requester may
/// have outstanding, half of all PSNs (IBTA 1.x §9.7.4.1).
///
/// Nobody acknowledges READ responses (§9.7.5.1.4). A requester sends one request for a whole READ, and
/// C rxe sends nothing until it has all responses; a smaller bound would leave it to its timer. Beyond this
/// one a peer that is gone gets no more.
pub(super) const MOST_UNHEARD: u32 = 1 << 23;

/// READ responses that are sent before the NAK of the request that broke the QP. The owner takes ERR for the end of the
/// peer's access soon, so this is far less than a READ may have.
pub(super) const MOST_AFTER_ERROR: u32 = 1024;

const UNLIMITED: Syndrome = Syndrome::Ack {
    credits: UNLIMITED_CREDITS,
};

impl<R: Slots<Replay>> Responder<R> {
    /// The next response, if one is due.
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        context: &Context,
        host: &mut H,
    ) -> Option<Transmit> {
        self.undo = Undo::Nothing;
        if self.unheard >= MOST_UNHEARD && !self.ring.rests() {
            if !matches!(self.answer, Answer::Refused(..)) {
                return None;
            }
            self.cancel_responses();
        }
        let msn = self.msn;
        let answer = self.ring.send_next(|replay| {
            let before = (replay.pending, replay.sent);
            let transmit = next_packet(replay, msn, context);
            (before, (replay.pending, replay.sent), transmit)
        });
        if let Some((number, (before, after, transmit))) = answer {
            self.undo = Undo::Replay {
                number,
                before,
                after,
            };
            if matches!(before.0, Pending::Stream(_)) {
                self.unheard = self.unheard.saturating_add(1);
            }
            return transmit;
        }
        self.undo = Undo::Answer(self.answer);
        let mut left = Answer::Nothing;
        let (psn, syndrome) = match self.answer {
            Answer::Nothing => return None,
            Answer::Ack(psn) => (psn, UNLIMITED),
            Answer::Missing {
                newest,
                due: Some(psn),
            } => {
                left = Answer::Missing { newest, due: None };
                (psn, UNLIMITED)
            }
            Answer::Missing { .. } => (self.expected, Syndrome::Nak(NakCode::PsnSequence)),
            Answer::NotReady(srqn) => (self.expected, self.not_ready(srqn, context, host)),
            Answer::Refused(psn, code) => (psn, Syndrome::Nak(code)),
        };
        self.answer = left;
        let aeth = Aeth {
            syndrome,
            msn: self.msn,
        };
        Some(response(psn, Body::Ack(aeth), context))
    }

    /// The host dropped the last response that was polled: it is due again.
    ///
    /// Requests may have come since. If one led to a newer acknowledgement, or asked for the answer again,
    /// this covers what was dropped.
    pub(crate) fn take_back(&mut self) {
        match core::mem::replace(&mut self.undo, Undo::Nothing) {
            // Nothing is missing any more, and the answer to a READ or an atomic acknowledges what was due.
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
                let replay = self.ring.get_mut(number);
                let left = replay.filter(|replay| (replay.pending, replay.sent) == after);
                if let Some(replay) = left {
                    replay.sent = sent;
                    self.ring.demand(number, pending);
                }
            }
        }
    }

    /// If a NAK is due for a packet that is missing, the acknowledgement of `psn` goes before it, or of a later one that is due.
    pub(super) fn acknowledge_first(&mut self, psn: Psn) {
        if let Answer::Missing { due, .. } = &mut self.answer {
            *due = due.filter(|due| psn.before(*due)).or(Some(psn));
        }
    }

    /// No response is due.
    #[inline]
    pub(crate) fn rests(&self) -> bool {
        self.answer == Answer::Nothing && self.ring.rests()
    }

    /// It has answered a READ or an atomic.
    pub(crate) fn remembers_answers(&self) -> bool {
        self.ring.newest().is_some()
    }

    /// The host could not read the memory under a READ response.
    ///
    /// The peer is told; the QP breaks if it was told what it asked for the first time only.
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

    /// Looks once more for a receive WQE: where one was posted meanwhile the peer is asked to wait the
    /// shortest time. That is an RNR NAK all the same, so that it spends no transport retry.
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

/// The next packet of a remembered answer. `msn` is the current one, which a NAK carries.
fn next_packet(replay: &mut Replay, msn: u32, context: &Context) -> Option<Transmit> {
    let aeth = Aeth {
        syndrome: UNLIMITED,
        msn: replay.msn,
    };
    let refused = |psn, code| {
        let syndrome = Syndrome::Nak(code);
        Some(response(psn, Body::Ack(Aeth { syndrome, msn }), context))
    };
    // The owner may have taken the right away since the request came.
    let may_read = context.settings.access.read;
    let body = match (replay.pending, replay.request) {
        (Pending::Nothing, _) => return None,
        (Pending::Refused(psn, code), _) => {
            replay.pending = Pending::Nothing;
            return refused(psn, code);
        }
        (Pending::Stream(stream), Recorded::Read(_)) if !may_read => {
            replay.pending = Pending::Nothing;
            return refused(replay.psn.plus(stream.next), NakCode::RemoteAccess);
        }
        (Pending::Stream(stream), Recorded::Read(reth)) => {
            return Some(next_read_response(replay, stream, &reth, aeth, context));
        }
        (_, Recorded::Atomic(_, original)) => Body::AtomicAck(aeth, original),
        (_, _) => Body::ReadResponse(ReadPart::Only(aeth)),
    };
    replay.finish();
    Some(response(replay.psn, body, context))
}

fn next_read_response(
    replay: &mut Replay,
    stream: Stream,
    reth: &Reth,
    aeth: Aeth,
    context: &Context,
) -> Transmit {
    let mtu = context.settings.path_mtu.bytes();
    let offset = stream.next.saturating_mul(mtu);
    let left = stream.end.saturating_sub(offset);
    let part = match (stream.begun, left > mtu) {
        (false, true) => ReadPart::First(aeth),
        (false, false) => ReadPart::Only(aeth),
        (true, true) => ReadPart::Middle,
        (true, false) => ReadPart::Last(aeth),
    };
    if left > mtu {
        replay.pending = Pending::Stream(Stream {
            next: stream.next.wrapping_add(1),
            begun: true,
            ..stream
        });
    } else {
        replay.finish();
    }
    let psn = replay.psn.plus(stream.next);
    let mut transmit = response(psn, Body::ReadResponse(part), context);
    transmit.packet.payload_len = left.min(mtu);
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

/// A response without payload.
fn response(psn: Psn, body: Body, context: &Context) -> Transmit {
    let bth = Bth {
        dest: context.settings.dest_qpn,
        psn,
        pkey: Pkey::DEFAULT,
        solicited: false,
        ack_req: false,
        mig_req: true,
        fecn: false,
        becn: false,
    };
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
        source: Source::None,
        retransmission: false,
    }
}
