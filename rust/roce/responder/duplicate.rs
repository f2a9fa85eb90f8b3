// SPDX-License-Identifier: GPL-2.0

//! Requests that were carried out already and come again (IBTA 1.x §9.7.5.1.5).
//!
//! Nothing is executed twice. SENDs and RDMA WRITEs are acknowledged again; the others are
//! answered from their record, if it is still there and names the same operation, operands,
//! address and key. READs read again, so their memory is checked again.

use super::replay::{Number, Pending, Recorded, Sent, Stream};
use super::{nak_code, Answer, Replay, Responder};
use crate::host::{Count, Host, RemoteAccess};
use crate::psn::Psn;
use crate::qp::{Context, Slots};
use crate::wire::packet::{Body, Packet, Reth};

impl<R: Slots<Replay>> Responder<R> {
    /// A packet behind the expected one.
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

    /// Acknowledges all there is, unless that would skip an answer which the peer may still want:
    /// then only the duplicate. One with the PSN of a READ or an atomic is not the peer's, and an acknowledgement with that PSN
    /// would end the request at a peer that lacks the answer.
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
            // A NAK acknowledges what is before it, too.
            Answer::Ack(_) | Answer::NotReady(_) | Answer::Refused(..) => {}
        }
    }

    /// Answers a request of one packet, if its record is still there.
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

    /// Reads again what the peer misses: the end of the original range, or a part of it.
    fn read_again<H: Host>(&mut self, psn: Psn, reth: Reth, context: &Context, host: &mut H) {
        let mtu = context.settings.path_mtu.bytes();
        let Some((number, stream)) = self.find_read(psn, &reth, mtu) else {
            return;
        };
        let checked = match reth.length {
            0 => Ok(()),
            length => host.check_remote(reth.rkey, reth.va, length, RemoteAccess::Read),
        };
        match checked.map_err(nak_code) {
            Ok(()) => self.ring.demand(number, Pending::Stream(stream)),
            // The first answer is still due, and finds out for itself.
            Err(_) if self.is_unanswered(number) => return,
            // The peer may have all it wants already, and this be an echo: the QP lives on.
            Err(Some(code)) => self.ring.demand(number, Pending::Refused(psn, code)),
            Err(None) => return,
        }
        self.drop_covered_ack(psn);
    }

    fn is_unanswered(&self, number: Number) -> bool {
        let replay = self.ring.get(number);
        replay.is_some_and(|replay| replay.sent == Sent::Never)
    }

    /// The record of the READ that this one repeats in whole or in part, and what to send of it.
    fn find_read(&self, psn: Psn, reth: &Reth, mtu: u32) -> Option<(Number, Stream)> {
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
        // What was due anyway stays due.
        let end = match replay.pending {
            Pending::Stream(stream) => end.max(stream.end),
            _ => end,
        };
        Some((
            number,
            Stream {
                next,
                end,
                begun: false,
                again: true,
            },
        ))
    }

    /// An acknowledgement that an answer with this PSN makes needless isn't sent.
    fn drop_covered_ack(&mut self, psn: Psn) {
        if matches!(self.answer, Answer::Ack(due) if due.before(psn)) {
            self.answer = Answer::Nothing;
        }
    }
}
