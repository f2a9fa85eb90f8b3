// SPDX-License-Identifier: GPL-2.0

//! Duplicates: requests that were carried out before and arrive again (IBTA 1.x §9.7.5.1.5).
//!
//! No request is executed twice. SENDs and RDMA WRITEs are acknowledged again. The other requests
//! are answered from their record, if that still exists and has the same operation, operands,
//! address and key. A repeated READ reads the memory again, so its memory is checked again.

use super::replay::{Number, Pending, Recorded, Sent, Stream};
use super::{nak_code, Answer, Replay, Responder};
use crate::host::{Count, Host, RemoteAccess};
use crate::psn::Psn;
use crate::qp::{Context, Slots};
use crate::wire::packet::{Body, Packet, Reth};

impl<R: Slots<Replay>> Responder<R> {
    /// Answers a packet with a PSN before the expected one.
    pub(super) fn answer_duplicate<H: Host>(
        &mut self,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) {
        host.count(Count::DuplicateRequest);
        let psn = packet.bth.psn;
        match packet.body {
            Body::Send(_) | Body::Write(_) => self.acknowledge_again(psn),
            Body::ReadRequest(reth) => self.read_again(psn, reth, context, host),
            Body::Atomic(eth) => {
                self.answer_again(
                    psn,
                    |known| matches!(known, Recorded::Atomic(old, _) if old == eth),
                );
            }
            Body::AtomicWrite(reth) => {
                self.answer_again(psn, |known| known == Recorded::AtomicWrite(reth));
            }
            Body::Flush(kind, reth) => {
                self.answer_again(psn, |known| known == Recorded::Flush(kind, reth));
            }
            Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_) | Body::Cnp => {}
        }
    }

    /// Acknowledges a duplicate SEND or WRITE.
    ///
    /// The acknowledgment covers all executed requests, unless it would skip an answer that the
    /// peer may still need. Then it covers only the packets up to the duplicate. A SEND or WRITE
    /// with the PSN of a recorded request isn't the peer's, and an acknowledgment with that PSN
    /// would end the request at a peer that lacks the answer. So such a packet is dropped.
    fn acknowledge_again(&mut self, psn: Psn) {
        let latest = self.expected.minus(1);
        let position = self.position_of(psn);
        let is_recorded = |position| self.ring.find(position).is_some();
        if position.is_some_and(is_recorded) {
            return;
        }
        let past = position.map_or(0, |position| position.saturating_add(1));
        let skips = self.ring.newest().is_some_and(|replay| past < replay.end());
        let psn = if skips { psn } else { latest };
        match self.answer {
            Answer::Nothing => self.answer = Answer::Ack(psn),
            Answer::Ack(due) if due.before(psn) => self.answer = Answer::Ack(psn),
            Answer::Missing { .. } => self.acknowledge_first(psn),
            // A NAK also acknowledges the packets before it.
            Answer::Ack(_) | Answer::NotReady(_) | Answer::Refused(..) => {}
        }
    }

    /// Answers a request of one packet again, if its record still exists.
    fn answer_again(&mut self, psn: Psn, same: impl Fn(Recorded) -> bool) {
        let position = self.position_of(psn);
        let Some(number) = position.and_then(|position| self.ring.find(position)) else {
            return;
        };
        let found = self
            .ring
            .get(number)
            .is_some_and(|replay| replay.psn == psn && same(replay.request));
        if found {
            self.ring.demand(number, Pending::Whole);
            self.drop_covered_ack(psn);
        }
    }

    /// Answers a READ again. The peer requests the original range or a part of that range.
    fn read_again<H: Host>(&mut self, psn: Psn, reth: Reth, context: &Context, host: &mut H) {
        let mtu = context.settings.path_mtu.bytes();
        let Some((number, pending)) = self.find_read(psn, &reth, mtu) else {
            return;
        };
        let checked = match reth.length {
            0 => Ok(()),
            length => host.check_remote(reth.rkey, reth.va, length, RemoteAccess::Read),
        };
        match checked.map_err(nak_code) {
            Ok(()) => self.ring.demand(number, pending),
            // The first answer is still due, and will meet the same fault.
            Err(_) if self.is_unanswered(number) => return,
            // The peer may have received all data, and this READ may be a late copy. So the QP
            // doesn't break.
            Err(Some(code)) => self.ring.demand(number, Pending::Refused(psn, code)),
            Err(None) => return,
        }
        self.drop_covered_ack(psn);
    }

    /// Returns whether the first answer to the request hasn't been sent in full.
    fn is_unanswered(&self, number: Number) -> bool {
        let replay = self.ring.get(number);
        replay.is_some_and(|replay| replay.sent == Sent::Never)
    }

    /// Returns the record of the READ that this one repeats in whole or in part, and the part to
    /// send.
    fn find_read(&self, psn: Psn, reth: &Reth, mtu: u32) -> Option<(Number, Pending)> {
        let position = self.position_of(psn)?;
        let number = self.ring.find(position)?;
        let replay = self.ring.get(number)?;
        let Recorded::Read(original) = replay.request else {
            return None;
        };
        let next = replay.packet_at(position)?;
        let offset = next.checked_mul(mtu)?;
        let end = offset.checked_add(reth.length)?;
        let same_place = reth.va == original.va.wrapping_add(u64::from(offset));
        if reth.rkey != original.rkey || !same_place || end > original.length {
            return None;
        }
        let part = Stream {
            next,
            end,
            begun: false,
            again: true,
            rest: 0,
            rest_again: false,
        };
        let merged = match replay.pending {
            Pending::Stream(due) => merge(due, part, original.length, mtu),
            Pending::Nothing | Pending::Whole | Pending::Refused(..) => part,
        };
        Some((number, Pending::Stream(merged)))
    }

    /// Cancels the acknowledgment that is due, if an answer with `psn` covers it.
    fn drop_covered_ack(&mut self, psn: Psn) {
        if matches!(self.answer, Answer::Ack(due) if due.before(psn)) {
            self.answer = Answer::Nothing;
        }
    }
}

/// Returns the responses of a READ of `length` bytes to send after the peer has requested `part`
/// again, while those of `due` are due. None of these is forgotten, unless the peer asks for all
/// responses from `part` on while all responses from `due` on are due.
fn merge(due: Stream, part: Stream, length: u32, mtu: u32) -> Stream {
    let is_before = |next: u32| part.next < next && part.end <= next.saturating_mul(mtu);
    // The peer asks only for responses that were sent.
    if due.end == length && is_before(due.next) {
        return Stream {
            rest: due.next,
            rest_again: due.again,
            ..part
        };
    }
    let end = due.end.max(part.end);
    match due.rest {
        _ if part.end == length => append(due, part, length, mtu),
        0 if due.next <= part.next => Stream { end, ..due },
        0 => Stream { end, ..part },
        rest if is_before(rest) => Stream {
            next: due.next.min(part.next),
            end,
            rest,
            rest_again: due.rest_again,
            ..part
        },
        _ => Stream {
            next: due.next.min(part.next),
            end: length,
            ..part
        },
    }
}

/// Returns the responses of [`merge`] if the peer has requested all responses from `part` on. The
/// lost responses of `due` before `part` are sent first.
fn append(due: Stream, part: Stream, length: u32, mtu: u32) -> Stream {
    let has_lost = due.rest != 0 || due.end < length;
    if !has_lost || part.next <= due.next {
        return part;
    }
    if due.end > part.next.saturating_mul(mtu) {
        return Stream {
            end: length,
            rest: 0,
            ..due
        };
    }
    match due.rest {
        rest if rest != 0 && rest < part.next => due,
        _ => Stream {
            rest: part.next,
            rest_again: true,
            ..due
        },
    }
}
