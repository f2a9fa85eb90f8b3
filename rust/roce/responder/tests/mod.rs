// SPDX-License-Identifier: GPL-2.0

//! Tests of the responder against [`TestHost`].

mod errors;
mod gaps;
mod host;
mod order;
mod reads;
mod recv;
mod unreliable;

use std::vec;
use std::vec::Vec;

use super::{Replay, Responder};
use crate::host::Event;
use crate::ids::Qpn;
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::qp::{Config, Context, Outcome, QpKind, RemoteRights, Settings};
use crate::time::Instant;
use crate::transmit::{Source, Transmit};
use crate::wc::{RecvExtra, RecvWc, WcOpcode, WcStatus};
use crate::wire::packet::{
    Body, Bth, NakCode, Packet, ReadPart, Reth, SendPart, Service, Syndrome, WritePart,
};
use crate::wr::{RecvSlot, SendExtra};
use host::{Act, TestHost, BASE, RKEY};

const MTU: u32 = 1024;
const PEER: Qpn = Qpn::new(0x77);

/// A responder with its host, and the next PSN of the peer.
struct Bench {
    responder: Responder<Vec<Replay>>,
    host: TestHost,
    context: Context,
    psn: Psn,
    now: Instant,
}

/// The content of a response, without the headers that are always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Ack(u32),
    Rnr(u32, u8),
    Nak(u32, NakCode),
    Atomic(u32, u64),
    /// PSN, place, offset of the payload from [`BASE`] and its length.
    Read(u32, Part, u64, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    First,
    Middle,
    Last,
    Only,
}

impl Bench {
    fn new(kind: QpKind) -> Self {
        Self::starting(kind, 0xff_fffe)
    }

    /// Creates a responder that expects `psn` first.
    fn starting(kind: QpKind, psn: u32) -> Self {
        let settings = Settings {
            access: RemoteRights {
                write: true,
                read: true,
                atomic: true,
                flush_global: true,
                flush_persistent: true,
            },
            path_mtu: Mtu::Bytes1024,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            dest_qpn: PEER,
            ..Settings::default()
        };
        let config = Config {
            kind,
            qpn: Qpn::new(0x11),
            has_srq: false,
            port_mtu: Mtu::Bytes4096,
            fills_gaps: true,
        };
        let mut responder = Responder::new(vec![Replay::default(); 8]);
        responder.start(Psn::new(psn));
        Self {
            responder,
            host: TestHost::new(),
            context: Context { config, settings },
            psn: Psn::new(psn),
            now: Instant(0),
        }
    }

    /// Creates a packet with the peer's next PSN, and an acknowledgment request.
    fn packet(&self, body: Body, payload_len: u32) -> Packet {
        Packet {
            service: match self.context.config.kind {
                QpKind::Uc => Service::Uc,
                _ => Service::Rc,
            },
            bth: Bth {
                ack_req: true,
                ..Bth::new(self.context.config.qpn, self.psn)
            },
            body,
            payload_len,
        }
    }

    /// Passes a packet to the responder as it is.
    fn hand_in(&mut self, packet: &Packet) -> Outcome {
        self.host.payload = vec![0xab; usize::try_from(packet.payload_len).unwrap()];
        self.responder
            .handle_request(packet, self.now, &self.context, &mut self.host)
    }

    /// Passes a packet with the peer's next PSN to the responder, and advances that PSN by one.
    fn request(&mut self, body: Body, payload_len: u32) -> Outcome {
        let packet = self.packet(body, payload_len);
        self.psn = self.psn.next();
        self.hand_in(&packet)
    }

    /// Passes a packet with this PSN to the responder. The peer's next PSN doesn't change.
    fn request_at(&mut self, psn: Psn, body: Body, payload_len: u32) -> Outcome {
        let mut packet = self.packet(body, payload_len);
        packet.bth.psn = psn;
        self.hand_in(&packet)
    }

    /// Passes a READ of `length` bytes to the responder. Advances the peer's next PSN past its
    /// responses.
    fn read(&mut self, offset: u64, length: u32) -> Outcome {
        let outcome = self.request(read(offset, length), 0);
        self.psn = self.psn.plus(length.div_ceil(MTU).max(1) - 1);
        outcome
    }

    /// Calls [`Self::request`] and checks that the QP doesn't break.
    fn pass(&mut self, body: Body, payload_len: u32) {
        let outcome = self.request(body, payload_len);
        assert_ne!(outcome, Outcome::Fatal, "{body:?} of {payload_len}");
    }

    /// Calls [`Self::request_at`] and checks that the QP doesn't break.
    fn pass_at(&mut self, psn: Psn, body: Body, payload_len: u32) {
        let outcome = self.request_at(psn, body, payload_len);
        assert_ne!(outcome, Outcome::Fatal, "{body:?} of {payload_len}");
    }

    /// Calls [`Self::read`] and checks that the QP doesn't break.
    fn pass_read(&mut self, offset: u64, length: u32) {
        let outcome = self.read(offset, length);
        assert_ne!(outcome, Outcome::Fatal, "READ of {length}");
    }

    fn poll(&mut self) -> Option<Transmit> {
        let mut next = None;
        self.responder
            .poll_transmit(&mut next, 1, &self.context, &mut self.host);
        next
    }

    fn poll_said(&mut self) -> Option<Said> {
        self.poll().map(|transmit| said(&transmit))
    }

    /// Returns all responses that are due.
    fn answers(&mut self) -> Vec<Said> {
        core::iter::from_fn(|| self.poll_said()).collect()
    }

    fn fail_transmit(&mut self, transmit: &Transmit, fault: crate::host::AccessFault) -> Outcome {
        self.responder
            .transmit_failed(transmit, fault, &mut self.host)
    }

    /// Returns the receive completions since the last call.
    fn recv_wcs(&mut self) -> Vec<RecvWc> {
        let log = self.host.take_log();
        log.into_iter()
            .filter_map(|act| match act {
                Act::RecvWc(wc) => Some(wc),
                _ => None,
            })
            .collect()
    }

    fn events(&self) -> Vec<Event> {
        let log = self.host.log.iter();
        log.filter_map(|act| match act {
            Act::Raise(event) => Some(*event),
            _ => None,
        })
        .collect()
    }
}

fn said(transmit: &Transmit) -> Said {
    let packet = &transmit.packet;
    assert_eq!(packet.bth.dest, PEER);
    assert_eq!(packet.service, Service::Rc);
    let psn = packet.bth.psn.get();
    match packet.body {
        Body::Ack(aeth) => match aeth.syndrome {
            Syndrome::Ack { credits } => {
                assert_eq!(credits, 31);
                Said::Ack(psn)
            }
            Syndrome::RnrNak { timer } => Said::Rnr(psn, timer),
            Syndrome::Nak(code) => Said::Nak(psn, code),
        },
        Body::AtomicAck(_, original) => Said::Atomic(psn, original),
        Body::ReadResponse(part) => {
            let part = match part {
                ReadPart::First(_) => Part::First,
                ReadPart::Middle => Part::Middle,
                ReadPart::Last(_) => Part::Last,
                ReadPart::Only(_) => Part::Only,
            };
            let offset = match transmit.source {
                Source::Remote { rkey, va, .. } => {
                    assert_eq!(rkey, RKEY);
                    va - BASE
                }
                _ => 0,
            };
            Said::Read(psn, part, offset, packet.payload_len)
        }
        other => panic!("not a response: {other:?}"),
    }
}

fn reth(offset: u64, length: u32) -> Reth {
    Reth {
        va: BASE + offset,
        rkey: RKEY,
        length,
    }
}

fn read(offset: u64, length: u32) -> Body {
    Body::ReadRequest(reth(offset, length))
}

fn write_only(offset: u64, length: u32) -> Body {
    Body::Write(WritePart::Only(reth(offset, length), None))
}

fn send_only() -> Body {
    Body::Send(SendPart::Only(SendExtra::Plain))
}

fn send_last() -> Body {
    Body::Send(SendPart::Last(SendExtra::Plain))
}

const SEND_FIRST: Body = Body::Send(SendPart::First);
const SEND_MIDDLE: Body = Body::Send(SendPart::Middle);

/// Creates a receive completion of a connected QP.
fn recv_wc(wr_id: u64, status: WcStatus, byte_len: u32) -> RecvWc {
    RecvWc {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len,
        extra: RecvExtra::None,
        src_qp: PEER,
        solicited: false,
        grh: false,
    }
}
