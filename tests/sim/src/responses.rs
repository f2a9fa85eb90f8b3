// SPDX-License-Identifier: GPL-2.0

//! The oracle of the requester: the effects of each response.

use roce::wire::packet::{Body, GapReport, NakCode, Packet, ReadPart, Syndrome};
use roce::wr::SendOp;

use crate::answers::is_later_gap;
use crate::memory::Memory;
use crate::message::LocalFault;
use crate::requester::rnr_delay;
use crate::side::{ExpectedStore, Side};

/// Applies a response packet to the oracle's state, before the engine processes it.
pub(crate) fn response(
    side: &mut Side,
    memory: &mut Memory,
    now: u64,
    packet: &Packet,
    payload: &[u8],
) {
    side.tx.refusal = None;
    side.tx.malformed = None;
    side.tx.expected = None;
    if !side.sends() {
        return;
    }
    let tx = &side.tx;
    let ext = tx.numbering.ext(packet.bth.psn, tx.una);
    // A sequence NAK for the packet that is to be sent next acknowledges all packets.
    let newest = tx.sent + u64::from(is_sequence_nak(packet) && tx.una < tx.sent);
    let Some(ext) = ext.filter(|ext| (tx.una..newest).contains(ext)) else {
        return;
    };
    match packet.body {
        Body::Ack(aeth) => match aeth.syndrome {
            Syndrome::Ack { .. } => acknowledge(side, ext + 1),
            Syndrome::RnrNak { timer } => {
                acknowledge(side, ext);
                not_ready(side, now, ext, timer, aeth.msn >= side.tx.heard);
            }
            Syndrome::Nak(NakCode::PsnSequence) if is_later_gap(packet) => {
                later_gap(
                    side,
                    ext,
                    u64::from(GapReport::decode(packet.bth.reserved.extension()).missing),
                );
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                acknowledge(side, ext);
                side.tx.nudged = true;
                gap(
                    side,
                    u64::from(GapReport::decode(packet.bth.reserved.extension()).missing),
                );
            }
            // A NAK that a later response has overtaken may be forged.
            Syndrome::Nak(_) if aeth.msn < side.tx.heard => {
                doubt(side, ext);
                return;
            }
            Syndrome::Nak(code) => {
                acknowledge(side, ext);
                side.tx.refusal = Some((code, ext));
            }
        },
        Body::ReadResponse(part) => {
            let last = matches!(part, ReadPart::Last(_) | ReadPart::Only(_));
            // A READ may be cut into several requests. The end of one isn't the end of the READ.
            let whole = side
                .message_at(ext)
                .is_none_or(|index| side.messages[index].end() == ext + 1);
            let proven = msn(packet).is_some_and(|msn| msn >= side.tx.heard);
            if !proven && !side.has_length(ext, payload) {
                doubt(side, ext);
                return;
            }
            answer(side, memory, ext, payload, last && whole);
        }
        Body::AtomicAck(_, original) => answer(side, memory, ext, &original.to_le_bytes(), true),
        _ => {}
    }
    side.tx.heard = side.tx.heard.max(msn(packet).unwrap_or(0));
}

fn is_sequence_nak(packet: &Packet) -> bool {
    matches!(packet.body, Body::Ack(aeth) if aeth.syndrome == Syndrome::Nak(NakCode::PsnSequence))
}

/// Returns the MSN of a response: the number of messages that the responder has completed.
fn msn(packet: &Packet) -> Option<u32> {
    match packet.body {
        Body::Ack(aeth) | Body::AtomicAck(aeth, _) => Some(aeth.msn),
        Body::ReadResponse(ReadPart::Middle) => None,
        Body::ReadResponse(ReadPart::First(aeth) | ReadPart::Last(aeth) | ReadPart::Only(aeth)) => {
            Some(aeth.msn)
        }
        _ => None,
    }
}

/// Records an implausible response, which may be forged. The request continues. It fails only when
/// all retries are spent.
fn doubt(side: &mut Side, ext: u64) {
    let tx = &mut side.tx;
    tx.doubted = tx.doubted.or(Some(ext));
    tx.muddled = true;
    tx.nudged = true;
}

/// Records that all packets before `ext` have arrived. A READ or atomic still needs its response.
fn acknowledge(side: &mut Side, ext: u64) {
    side.tx.executed_by_peer = side.tx.executed_by_peer.max(ext);
    side.tx.doubted = side.tx.doubted.filter(|doubted| *doubted >= ext);
    let limit = limit(side);
    side.tx.nudged |= ext > limit;
    advance(side, ext.min(limit));
}

/// Returns the first packet that an acknowledgment doesn't finish, since it needs its own
/// response.
fn limit(side: &Side) -> u64 {
    let waiting = side.messages[side.completed..]
        .iter()
        .find(|message| message.wants_response() && !message.answered);
    let mtu = u64::from(side.profile.mtu.bytes());
    waiting.map_or(u64::MAX, |message| {
        message.first + u64::from(message.filled) / mtu
    })
}

/// Records that a NAK has reported a later gap of `missing` packets from `ext` on.
fn later_gap(side: &mut Side, ext: u64, missing: u64) {
    if !awaits_responses(side) && side.tx.una < ext {
        let past = (ext + missing).min(side.tx.sent);
        side.tx.later_gaps.push((ext, past));
    }
}

/// Returns whether READs or similar requests were sent whose responses are awaited.
fn awaits_responses(side: &Side) -> bool {
    side.messages[side.completed..].iter().any(|message| {
        message.wants_response() && !message.answered && message.first < side.tx.sent
    })
}

/// Records that a NAK has reported `missing` packets, or an unknown number if that is 0.
fn gap(side: &mut Side, missing: u64) {
    let waits = awaits_responses(side);
    let tx = &mut side.tx;
    let sent_all = tx.cursor == tx.sent || tx.past_gap.is_some() || tx.may_skip;
    if missing > 0 && !waits && sent_all {
        let past = (tx.una + missing).min(tx.sent);
        tx.past_gap = tx.past_gap.max(Some(past));
        tx.muddled = true;
    }
}

fn advance(side: &mut Side, una: u64) {
    let tx = &mut side.tx;
    if una > tx.una {
        tx.may_skip |= tx.may_be_rto && una > tx.una + 1;
        tx.una = una;
        // A packet before the cursor was sent since the engine last went back. That is its first
        // try.
        let had_gap = tx.past_gap.is_some();
        tx.past_gap = tx.past_gap.filter(|past| *past > una);
        // The requester has gone on behind the gap, unless an RTO has ended meanwhile.
        tx.may_skip |= had_gap && tx.past_gap.is_none();
        let had_later = !tx.later_gaps.is_empty();
        let may_jump = tx.may_skip || had_later;
        tx.tries = u32::from(una < tx.cursor || (may_jump && una < tx.sent));
        tx.tries_without_faults = 0;
        tx.maybe_tries = 0;
        tx.rnr_naks = 0;
        tx.rnr_echoes = 0;
        tx.starved &= side.paused.1 > 0;
        tx.may_be_rto = false;
        tx.rnr_until = tx.rnr_until.filter(|(_, ext)| *ext >= una);
        tx.muddled = tx.rnr_until.is_some() || tx.nudged || may_jump || had_gap;
        if tx.cursor < una {
            tx.cursor = una;
        }
    }
}

/// Records an RNR NAK. One with an MSN that is not `proven` counts as forged: a response to a later
/// copy of the packet has arrived before it.
fn not_ready(side: &mut Side, now: u64, ext: u64, timer: u8, proven: bool) {
    let tx = &mut side.tx;
    if let Some((until, _)) = tx.rnr_until {
        tx.rnr_echoes += u32::from(now >= until);
        return;
    }
    tx.rnr_naks += u32::from(proven);
    tx.muddled = true;
    tx.nudged = true;
    tx.rnr_until = Some((now + rnr_delay(timer), ext));
}

/// Processes a READ response packet or an atomic acknowledgment, which is accepted only if it is
/// the next one.
fn answer(side: &mut Side, memory: &mut Memory, ext: u64, bytes: &[u8], last: bool) {
    acknowledge(side, ext);
    let Some(index) = side.message_at(ext) else {
        return;
    };
    let message = &side.messages[index];
    if side.tx.una != ext || !message.wants_response() {
        side.tx.nudged = true;
        return;
    }
    if !side.has_length(ext, bytes) {
        side.tx.malformed = Some(ext);
        return;
    }
    let stores = matches!(message.wr.op, SendOp::Read(_) | SendOp::Atomic(..));
    let offset = if message.is_read() { message.filled } else { 0 };
    if stores && !bytes.is_empty() {
        side.tx.expected = Some(ExpectedStore {
            message: index,
            offset,
            len: bytes.len() as u32,
        });
        if message.fault == LocalFault::None {
            Memory::store(&mut memory.shadow, message.local + offset as usize, bytes);
        }
    }
    let message = &mut side.messages[index];
    message.filled += bytes.len() as u32;
    message.answered |= last;
    // This response may finish more packets that were acknowledged before.
    let next = side.tx.executed_by_peer.min(limit(side)).max(ext + 1);
    advance(side, next);
}
