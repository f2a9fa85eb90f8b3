// SPDX-License-Identifier: GPL-2.0

//! The peer: builds packets, and knows the requests that it has got from the QP.
//!
//! The peer's own requests form a stream of messages, in which the PSN decides the place of a
//! packet. So a packet that comes early fits once it is expected.

use std::collections::VecDeque;

use super::event::{Answer, Ask, Cookie, Msn, Part, Place, Request, Response};
use super::host::QP_COOKIE;
use super::{TestQp, BASE, RKEY};
use crate::ids::{Qpn, Rkey};
use crate::psn::Psn;
use crate::transmit::Transmit;
use crate::wire::packet::{
    Aeth, AtomicEth, Body, Bth, NakCode, Packet, ReadPart, Reserved, Reth, SendPart, Service,
    Syndrome, WritePart,
};
use crate::wr::{AtomicOp, FlushKind, SendExtra};

/// First PSN of the peer's requests.
pub(super) const FIRST_REQUEST: Psn = Psn::new(0xff_ffc0);
/// First PSN of the QP's requests, and of the peer's responses.
pub(super) const FIRST_RESPONSE: Psn = Psn::new(0xff_ff00);

/// The cookie of the peer's responder.
const PEER_COOKIE: u16 = 0x5a1;
const MTU: u32 = 1024;
/// Number of packets after which the stream repeats itself.
const CYCLE: u32 = 8;
/// Length of the WRITE of two packets in the stream.
const WRITE_LENGTH: u32 = 2000;
/// Number of READs that the peer may repeat.
const MOST_READS: usize = 4;
/// A key that grants no access.
const FOREIGN: Rkey = Rkey(1);

/// The response that a request waits for.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    Ack,
    Atomic,
    /// A READ response without payload.
    Empty,
    /// READ responses with this many bytes.
    Read(u32),
}

/// A train of requests that the peer has got.
#[derive(Clone, Copy, Debug)]
struct Asked {
    first: Psn,
    /// Number of PSNs.
    packets: u32,
    awaited: Awaited,
}

/// The peer of one connection.
pub(super) struct Peer {
    /// The requests, oldest first.
    asked: VecDeque<Asked>,
    /// One past the newest PSN that the peer has got.
    sent: Psn,
    /// The last READs that the peer has sent, with their PSNs.
    reads: VecDeque<(Psn, Reth)>,
}

impl Peer {
    pub(super) fn new() -> Self {
        Self {
            asked: VecDeque::new(),
            sent: FIRST_RESPONSE,
            reads: VecDeque::new(),
        }
    }

    /// Receives a train of the QP. Ignores responses.
    pub(super) fn receive(&mut self, transmit: &Transmit) {
        let (packets, awaited) = match transmit.packet.body {
            Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_) => return,
            Body::ReadRequest(reth) => (packets(reth.length), Awaited::Read(reth.length)),
            Body::Atomic(_) => (1, Awaited::Atomic),
            Body::Flush(..) => (1, Awaited::Empty),
            _ => (transmit.count, Awaited::Ack),
        };
        let first = transmit.packet.bth.psn;
        self.sent = self.sent.latest(first.plus(packets));
        self.asked.push_back(Asked {
            first,
            packets,
            awaited,
        });
    }

    /// Returns the number of PSNs in flight, and forgets the requests before them.
    pub(super) fn in_flight(&mut self, qp: &TestQp) -> u32 {
        let oldest = qp.oldest_unfinished();
        self.asked
            .retain(|asked| oldest.before(asked.first.plus(asked.packets)));
        match oldest.before(self.sent) {
            true => self.sent.ahead_of(oldest),
            false => 0,
        }
    }

    /// Builds a response.
    pub(super) fn response(&mut self, qp: &TestQp, response: &Response) -> Packet {
        let oldest = qp.oldest_unfinished();
        let psn = match response.place {
            Place::Ahead(ahead) => oldest.plus(ahead % self.in_flight(qp).max(1)),
            place => place.psn(oldest),
        };
        let msn = match response.msn {
            // As if each packet were a message.
            Msn::Plausible => psn.ahead_of(FIRST_RESPONSE),
            Msn::Any(msn) => msn,
        };
        let aeth = |syndrome| Aeth { syndrome, msn };
        let positive = aeth(Syndrome::Ack { credits: 31 });
        let (body, length) = match response.answer {
            Answer::Correct => self.awaited(psn, positive),
            Answer::Ack => (Body::Ack(positive), 0),
            Answer::Missing(_) => (Body::Ack(aeth(Syndrome::Nak(NakCode::PsnSequence))), 0),
            Answer::NotReady(timer) => (Body::Ack(aeth(Syndrome::RnrNak { timer })), 0),
            Answer::Refusal(code) => (Body::Ack(aeth(Syndrome::Nak(code))), 0),
            Answer::Atomic => (Body::AtomicAck(positive, 1), 0),
            Answer::Read(part, length) => (Body::ReadResponse(read_part(part, positive)), length),
        };
        let extension = match response.answer {
            Answer::Missing(report) => report,
            _ => extension(response.cookie, PEER_COOKIE),
        };
        let mut packet = packet(psn, body, length);
        packet.bth.reserved = Reserved::default()
            .with_fills_gaps(true)
            .with_extension(extension);
        packet
    }

    /// Returns the response that the newest request with this PSN waits for, and its length.
    fn awaited(&self, psn: Psn, positive: Aeth) -> (Body, u32) {
        let has_it = |asked: &&Asked| psn.ahead_of(asked.first) < asked.packets;
        let asked = self.asked.iter().rev().find(has_it);
        match asked.map(|asked| (asked.awaited, psn.ahead_of(asked.first))) {
            None | Some((Awaited::Ack, _)) => (Body::Ack(positive), 0),
            Some((Awaited::Atomic, _)) => (Body::AtomicAck(positive, 1), 0),
            Some((Awaited::Empty, _)) => (Body::ReadResponse(ReadPart::Only(positive)), 0),
            Some((Awaited::Read(length), index)) => {
                let left = length - index * MTU;
                let part = match (index == 0, left <= MTU) {
                    (true, true) => Part::Only,
                    (true, false) => Part::First,
                    (false, true) => Part::Last,
                    (false, false) => Part::Middle,
                };
                let body = Body::ReadResponse(read_part(part, positive));
                (body, left.min(MTU))
            }
        }
    }

    /// Builds a request packet.
    pub(super) fn request(&mut self, qp: &TestQp, request: &Request) -> Packet {
        let psn = request.place.psn(qp.expected_psn());
        let is_whole = is_whole(psn);
        let mut packet = match request.ask {
            Ask::Read(cycles) if is_whole => {
                let reth = reth((cycles * CYCLE + 1) * MTU);
                if self.reads.len() == MOST_READS {
                    self.reads.pop_front();
                }
                self.reads.push_back((psn, reth));
                packet(psn, Body::ReadRequest(reth), 0)
            }
            Ask::Atomic if is_whole => packet(psn, Body::Atomic(fetch_add()), 0),
            Ask::Flush if is_whole => packet(psn, Body::Flush(flush_kind(), reth(8)), 0),
            Ask::ReadAgain { which, skipped } if !self.reads.is_empty() => {
                self.read_again(which, skipped)
            }
            Ask::Send(part, length) => packet(psn, Body::Send(send_part(part)), length),
            Ask::Write(part, length) => packet(psn, Body::Write(write_part(part, length)), length),
            Ask::ForeignRead => {
                let rkey = FOREIGN;
                packet(psn, Body::ReadRequest(Reth { rkey, ..reth(MTU) }), 0)
            }
            _ => in_stream(psn),
        };
        packet.bth.ack_req = request.ack_req;
        packet.bth.reserved = Reserved::default()
            .with_repeats_reads(true)
            .with_fills_gaps(request.fills_gaps)
            .with_extension(extension(request.cookie, QP_COOKIE));
        packet
    }

    /// Builds a READ request for the responses to an earlier one without the first ones.
    fn read_again(&self, which: usize, skipped: u32) -> Packet {
        let (psn, reth) = self.reads[which % self.reads.len()];
        let skipped = skipped % packets(reth.length);
        let rest = Reth {
            va: reth.va + u64::from(skipped * MTU),
            length: reth.length - skipped * MTU,
            ..reth
        };
        packet(psn.plus(skipped), Body::ReadRequest(rest), 0)
    }
}

/// Returns the number of PSNs of a READ.
fn packets(length: u32) -> u32 {
    length.div_ceil(MTU).max(1)
}

/// Returns the extension that stands for `cookie`.
fn extension(cookie: Cookie, right: u16) -> u16 {
    match cookie {
        Cookie::Right => right,
        Cookie::None => 0,
        Cookie::Other(other) => other,
    }
}

fn packet(psn: Psn, body: Body, payload_len: u32) -> Packet {
    Packet {
        service: Service::Rc,
        bth: Bth::new(Qpn::new(0x11), psn),
        body,
        payload_len,
    }
}

fn reth(length: u32) -> Reth {
    Reth {
        va: BASE,
        rkey: RKEY,
        length,
    }
}

fn fetch_add() -> AtomicEth {
    AtomicEth {
        va: BASE,
        rkey: RKEY,
        op: AtomicOp::FetchAdd { add: 1 },
    }
}

fn flush_kind() -> FlushKind {
    FlushKind::new(FlushKind::GLOBAL, 0)
}

/// Returns whether the packet of the stream is a whole message.
fn is_whole(psn: Psn) -> bool {
    matches!(in_stream(psn).body, Body::Send(SendPart::Only(_)))
}

/// Returns the packet of the stream: in each cycle a SEND of three packets, a WRITE of two, and
/// SENDs of one.
fn in_stream(psn: Psn) -> Packet {
    let (body, length) = match psn.ahead_of(FIRST_REQUEST) % CYCLE {
        1 => (Body::Send(SendPart::First), MTU),
        2 => (Body::Send(SendPart::Middle), MTU),
        3 => (Body::Send(SendPart::Last(SendExtra::Plain)), 5),
        4 => (Body::Write(WritePart::First(reth(WRITE_LENGTH))), MTU),
        5 => (Body::Write(WritePart::Last(None)), WRITE_LENGTH - MTU),
        _ => (Body::Send(SendPart::Only(SendExtra::Plain)), 100),
    };
    packet(psn, body, length)
}

fn send_part(part: Part) -> SendPart {
    match part {
        Part::First => SendPart::First,
        Part::Middle => SendPart::Middle,
        Part::Last => SendPart::Last(SendExtra::Plain),
        Part::Only => SendPart::Only(SendExtra::Plain),
    }
}

fn write_part(part: Part, length: u32) -> WritePart {
    match part {
        Part::First => WritePart::First(reth(WRITE_LENGTH)),
        Part::Middle => WritePart::Middle,
        Part::Last => WritePart::Last(None),
        Part::Only => WritePart::Only(reth(length), None),
    }
}

fn read_part(part: Part, aeth: Aeth) -> ReadPart {
    match part {
        Part::First => ReadPart::First(aeth),
        Part::Middle => ReadPart::Middle,
        Part::Last => ReadPart::Last(aeth),
        Part::Only => ReadPart::Only(aeth),
    }
}
