// SPDX-License-Identifier: GPL-2.0

//! The oracle for the packets that a responder sends: ACKs, NAKs, and answers, which are the
//! responses to READs, atomics, ATOMIC WRITEs and FLUSHes. `ext` is a packet's PSN, extended so
//! that it doesn't wrap.

use roce::qp::{QpKind, QpState};
use roce::transmit::{Source, Transmit};
use roce::wire::aeth::UNLIMITED_CREDITS;
use roce::wire::packet::{Aeth, Body, GapReport, NakCode, Packet, ReadPart, Service, Syndrome};
use roce::wr::SendOp;

use crate::message::Message;
use crate::side::{Gap, Side};

type Check = Result<(), String>;

/// Checks a response packet that the engine wants to send.
pub(crate) fn response(side: &mut Side, peer: &Side, transmit: &Transmit) -> Check {
    let packet = &transmit.packet;
    if side.unreliable {
        return Err("response on an unreliable connection".into());
    }
    let service = match side.kind {
        QpKind::XrcTgt => Service::Xrc(None),
        _ => Service::Rc,
    };
    if packet.service != service {
        return Err(format!("response of {:?}", packet.service));
    }
    if packet.bth.dest.get() != side.peer_qpn || packet.bth.solicited {
        return Err("response with a wrong BTH".into());
    }
    let rx = &side.rx;
    let ext = rx
        .numbering
        .ext(packet.bth.psn, rx.epsn)
        .filter(|ext| *ext <= rx.epsn || is_later_gap(packet));
    let Some(ext) = ext else {
        return Err(format!(
            "response for a PSN that did not come, {:?}",
            packet.bth.psn
        ));
    };
    match packet.body {
        Body::Ack(aeth) => {
            if aeth.msn != rx.msn {
                return Err(format!("MSN {}, should be {}", aeth.msn, rx.msn));
            }
            match aeth.syndrome {
                Syndrome::Ack { credits } => positive(side, ext, credits),
                Syndrome::RnrNak { timer } => rnr(side, ext, timer),
                Syndrome::Nak(NakCode::PsnSequence) if is_later_gap(packet) => {
                    later_gap(side, packet)
                }
                Syndrome::Nak(NakCode::PsnSequence) => sequence(side, ext, report(packet).missing),
                Syndrome::Nak(code) => refusal(side, peer, ext, code),
            }
        }
        Body::ReadResponse(part) => read_response(side, peer, transmit, ext, part),
        Body::AtomicAck(aeth, original) => {
            let index = executed(peer, ext, rx.epsn)?;
            let message = &peer.messages[index];
            done(message, ext, aeth)?;
            if !matches!(message.wr.op, SendOp::Atomic(..)) || message.original != original {
                return Err(format!(
                    "atomic answered {original:#x}, not {:#x}",
                    message.original
                ));
            }
            progress(side, ext)
        }
        _ => Err("response with the body of a request".into()),
    }
}

fn executed(peer: &Side, ext: u64, epsn: u64) -> Result<usize, String> {
    match peer.message_at(ext) {
        Some(index) if ext < epsn => Ok(index),
        _ => Err(format!("answer to packet {ext}, which was not carried out")),
    }
}

fn alive(side: &Side) -> Check {
    if side.receives() {
        return Ok(());
    }
    Err(format!("response in {:?}", side.state))
}

/// Checks the AETH of a remembered answer: no flow control, and the MSN of its request.
fn done(message: &Message, ext: u64, aeth: Aeth) -> Check {
    let end = message.answer_end(ext);
    let told = message.msns.iter().find(|(known, _)| *known == end);
    let syndrome = Syndrome::Ack {
        credits: UNLIMITED_CREDITS,
    };
    match told {
        Some(&(_, msn)) if aeth == (Aeth { syndrome, msn }) => Ok(()),
        _ => Err(format!("answer with {aeth:?}, its request had {told:?}")),
    }
}

fn positive(side: &mut Side, ext: u64, credits: u8) -> Check {
    alive(side)?;
    let rx = &mut side.rx;
    if ext >= rx.epsn {
        return Err(format!(
            "acknowledged packet {ext}, {} is expected",
            rx.epsn
        ));
    }
    if rx.reads.front().is_some_and(|read| ext >= read.next) {
        return Err("an acknowledgment overtook a response".into());
    }
    if credits != UNLIMITED_CREDITS {
        return Err(format!("{credits} credits"));
    }
    if !rx.may_ack.contains(&ext) {
        return Err(format!(
            "acknowledged {ext}, due is one of {:?}",
            rx.may_ack
        ));
    }
    rx.may_ack.clear();
    if rx.owes.is_some_and(|owed| owed <= ext) {
        rx.owes = None;
    }
    Ok(())
}

fn rnr(side: &mut Side, ext: u64, timer: u8) -> Check {
    alive(side)?;
    let rx = &mut side.rx;
    // If a receive was posted meanwhile, the NAK requests the shortest wait.
    let expected = match rx.held {
        Some(_) => 1,
        None => side.profile.min_rnr_timer,
    };
    if ext != rx.epsn || rx.gap != Gap::NotReady || timer != expected {
        return Err(format!(
            "RNR NAK for {ext} with {:?}, expecting {}",
            rx.gap, rx.epsn
        ));
    }
    rx.gap = Gap::Said;
    rx.owes = None;
    Ok(())
}

fn sequence(side: &mut Side, ext: u64, missing: u8) -> Check {
    alive(side)?;
    let rx = &mut side.rx;
    if ext != rx.epsn || !matches!(rx.gap, Gap::Seen(_)) {
        return Err(format!(
            "sequence NAK for {ext} with {:?}, expecting {}",
            rx.gap, rx.epsn
        ));
    }
    let first = rx.early.first();
    let expected = first.map_or(0, |first| (first - ext).min(15));
    if u64::from(missing) != expected {
        return Err(format!("{missing} packets are missing, not {expected}"));
    }
    rx.past_reported = ext + expected;
    rx.gap = Gap::Said;
    rx.owes = None;
    Ok(())
}

/// Returns the gap that a sequence NAK reports.
fn report(packet: &Packet) -> GapReport {
    GapReport::decode(packet.bth.reserved.extension())
}

/// Returns whether the packet is a NAK of a gap behind early packets.
pub(crate) fn is_later_gap(packet: &Packet) -> bool {
    let is_sequence_nak = matches!(
        packet.body,
        Body::Ack(aeth) if aeth.syndrome == Syndrome::Nak(NakCode::PsnSequence)
    );
    is_sequence_nak && report(packet).is_later
}

/// Checks a NAK of a gap behind early packets.
fn later_gap(side: &Side, packet: &Packet) -> Check {
    alive(side)?;
    let rx = &side.rx;
    let missing = u64::from(report(packet).missing);
    let start = rx.numbering.ext(packet.bth.psn, rx.epsn);
    let is_gap = start.is_some_and(|start| {
        let next = rx.early.range(start..).next();
        start > rx.epsn && next.is_some_and(|next| missing > 0 && (next - start).min(15) == missing)
    });
    match is_gap {
        true => Ok(()),
        false => Err(format!("reported {missing} packets from {start:?} on")),
    }
}

fn refusal(side: &mut Side, peer: &Side, ext: u64, code: NakCode) -> Check {
    let revoked = side.rx.read_revoked && code == NakCode::RemoteAccess && ext < side.rx.epsn;
    let unreadable = revoked || side.rx.unreadable.contains(&ext);
    match &mut side.rx.refusal {
        Some(due) if !due.sent && due.ext == ext && due.codes.contains(&code) => {
            due.sent = true;
            Ok(())
        }
        // Before the NAK that breaks the QP, a READ that was due may also be refused.
        Some(due) if !due.sent && due.ext > ext && unreadable => end_read(side, peer, ext),
        None if unreadable => {
            // The NAK also acknowledges the packets before it.
            side.rx.owes = None;
            end_read(side, peer, ext)?;
            alive(side)
        }
        due => Err(format!("NAK {code:?} for {ext}, due is {due:?}")),
    }
}

/// Records that the READ response `ext` was refused: no more responses of this READ are due,
/// neither of this request nor of those for the rest of the READ. If `ext` was sent before, only
/// the responses of this request end.
fn end_read(side: &mut Side, peer: &Side, ext: u64) -> Check {
    let message = peer.message_at(ext).map(|index| &peer.messages[index]);
    let reads = &mut side.rx.reads;
    let is_again = reads.front().is_some_and(|read| ext < read.next);
    let end = message.map_or(ext + 1, |message| match is_again {
        true => message.answer_end(ext),
        false => message.end(),
    });
    if let Some(read) = reads.front().filter(|read| ext > read.next) {
        return Err(format!("a NAK overtook response {}", read.next));
    }
    while reads.front().is_some_and(|read| read.next < end) {
        reads.pop_front();
    }
    Ok(())
}

fn read_response(
    side: &mut Side,
    peer: &Side,
    transmit: &Transmit,
    ext: u64,
    part: ReadPart,
) -> Check {
    let index = executed(peer, ext, side.rx.epsn)?;
    let message = &peer.messages[index];
    if !message.wants_response() || matches!(message.wr.op, SendOp::Atomic(..)) {
        return Err(format!(
            "READ response for message {index}, {:?}",
            message.wr.op
        ));
    }
    if message.is_read() && !side.profile.rights.read {
        return Err(format!("READ response {ext} without the right"));
    }
    if let ReadPart::First(aeth) | ReadPart::Last(aeth) | ReadPart::Only(aeth) = part {
        done(message, ext, aeth)?;
    }
    let segment = ext - message.first;
    let mtu = side.profile.mtu;
    let last = ext + 1 == message.answer_end(ext);
    let starts = matches!(part, ReadPart::First(_) | ReadPart::Only(_));
    let ends = matches!(part, ReadPart::Last(_) | ReadPart::Only(_));
    let (len, source) = match message.wr.op {
        SendOp::Read(at) => {
            let len = message.segment_len(segment, mtu);
            let va = at.va + u64::from(segment as u32 * mtu.bytes());
            let source = Source::Remote {
                rkey: at.rkey,
                va,
                srqn: side.is_xrc().then_some(message.wr.srqn),
            };
            (len, source)
        }
        _ => (0, Source::None),
    };
    let sourced = transmit.source == source || len == 0;
    let ends_part = ends && side.rx.parts.contains(&(ext + 1));
    if (ends != last && !ends_part)
        || (message.answer_starts(ext) && !starts)
        || transmit.packet.payload_len != len
        || !sourced
    {
        return Err(format!(
            "response packet {segment} of message {index} must have {len} bytes from {source:?}"
        ));
    }
    let first = side.rx.reads.front().is_some_and(|read| ext >= read.next);
    if !first && !transmit.retransmission && len > 0 {
        return Err(format!("READ response {ext} is no retransmission"));
    }
    progress(side, ext)
}

/// Records that the response packet for `ext` was sent, and checks its order.
fn progress(side: &mut Side, ext: u64) -> Check {
    if side.state != QpState::Err {
        alive(side)?;
    }
    let rx = &mut side.rx;
    if rx.owes.is_some_and(|owed| owed <= ext) {
        rx.owes = None;
    }
    if let Some(read) = rx.reads.front_mut() {
        if ext > read.next {
            return Err(format!("response {ext} overtook {}", read.next));
        }
        if ext == read.next {
            read.next += 1;
            if read.next == read.end {
                rx.reads.pop_front();
            }
        }
    }
    Ok(())
}
