// SPDX-License-Identifier: GPL-2.0

//! Tests of the requester, through its QP.

use std::vec;
use std::vec::Vec;

use crate::host::{Count, Fetch, QpDropReason};
use crate::ids::{Imm, Lkey, Qkey, Qpn, Rkey};
use crate::psn::Psn;
use crate::qp::{Attrs, QpKind, QpState, TransmitFault};
use crate::testing::{connected, drain, MockHost, TestQp};
use crate::time::{Duration, Instant};
use crate::transmit::{Source, Transmit};
use crate::wc::WcStatus::{self, *};
use crate::wire::packet::{
    Aeth, Body, Bth, NakCode, Packet, ReadPart, Reserved, Reth, SendPart, Service, Syndrome,
    WritePart,
};
use crate::wr::{AtomicOp, FlushKind, LocalOp, RemoteAddr, SendExtra, SendOp, UdDest};

mod drops;
mod errors;
mod gaps;
mod order;
mod reads;
mod rereads;
mod rto;
mod segments;

/// First PSN: shortly before the wrap, so that most tests cross it.
const FIRST: Psn = Psn::new(0xff_fffe);
const NOW: Instant = Instant(1_000_000);
/// The acknowledgment timeout of `connected`: 4.096 µs · 2¹⁴.
const TIMEOUT: Duration = Duration(4_096 << 14);
const MTU: u32 = 1024;

const REMOTE: RemoteAddr = RemoteAddr {
    va: 0x7000,
    rkey: Rkey(7),
};
const SEND: SendOp = SendOp::Send(SendExtra::Plain);
const WRITE: SendOp = SendOp::Write(REMOTE, None);
const READ: SendOp = SendOp::Read(REMOTE);
const ADD: SendOp = SendOp::Atomic(REMOTE, AtomicOp::FetchAdd { add: 1 });
const ATOMIC_WRITE: SendOp = SendOp::AtomicWrite(REMOTE);
const FLUSH: SendOp = SendOp::Flush(
    REMOTE,
    FlushKind {
        placement: 1,
        selectivity: 0,
    },
);
const INVALIDATE: SendOp = SendOp::Local(LocalOp::Invalidate(Lkey(9)));
const REG_MR: SendOp = SendOp::Local(LocalOp::RegMr);

const DONE: Aeth = Aeth {
    syndrome: Syndrome::Ack { credits: 31 },
    msn: 1,
};

/// Returns the PSN `n` after the first.
fn psn(n: u32) -> Psn {
    FIRST.plus(n)
}

/// Returns the reserved bits of a peer that fills gaps.
fn with_cookie(cookie: u16) -> Reserved {
    Reserved::default()
        .with_fills_gaps(true)
        .with_extension(cookie)
}

/// A QP in RTS, and its host.
struct Bench {
    qp: TestQp,
    host: MockHost,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self::of(QpKind::Rc)
    }

    fn of(kind: QpKind) -> Self {
        let mut host = MockHost::new();
        let mut qp = connected(kind, FIRST, FIRST, &mut host);
        qp.requester.end_slow_start();
        let now = NOW;
        Self { qp, host, now }
    }

    /// Has the QP measure a round-trip time of 100 µs by a message of one packet. `ack` passes its
    /// acknowledgment.
    fn measuring(ack: impl FnOnce(&mut Self)) -> Self {
        let mut bench = Self::new();
        bench.post(SEND, 8);
        bench.poll();
        bench.now = bench.now.after(Duration(100_000));
        ack(&mut bench);
        bench
    }

    fn post(&mut self, op: SendOp, length: usize) {
        self.host.post_send(op, vec![0; length]);
    }

    fn post_unsignaled(&mut self, op: SendOp, length: usize) {
        let payload = vec![0; length];
        self.host
            .post_send_with(op, payload, |wr| wr.signaled = false);
    }

    fn poll(&mut self) -> Vec<Transmit> {
        drain(&mut self.qp, self.now, &mut self.host)
    }

    /// Sends all packets that are due. Returns their distances from the first PSN.
    fn psns(&mut self) -> Vec<u32> {
        let psn = |transmit: &Transmit| transmit.packet.bth.psn.ahead_of(FIRST);
        self.poll().iter().map(psn).collect()
    }

    /// Creates a response of the peer.
    fn response(&self, n: u32, body: Body, payload_len: u32) -> Packet {
        let bth = Bth::new(Qpn::new(0x11), psn(n));
        Packet {
            service: Service::Rc,
            bth,
            body,
            payload_len,
        }
    }

    fn respond(&mut self, n: u32, body: Body, payload_len: u32) {
        let packet = self.response(n, body, payload_len);
        self.host.payload = vec![(n as u8).wrapping_add(1); payload_len as usize];
        self.qp.handle_packet(self.now, &packet, &mut self.host);
    }

    fn ack(&mut self, n: u32) {
        self.respond(n, Body::Ack(DONE), 0);
    }

    /// Passes an acknowledgment with this cookie.
    fn ack_with_cookie(&mut self, n: u32, cookie: u16) {
        let mut ack = self.response(n, Body::Ack(DONE), 0);
        ack.bth.reserved = with_cookie(cookie);
        self.qp.handle_packet(self.now, &ack, &mut self.host);
    }

    fn nak(&mut self, n: u32, code: NakCode) {
        self.nak_with(n, code, DONE.msn);
    }

    /// Passes a NAK with this message sequence number to the QP.
    fn nak_with(&mut self, n: u32, code: NakCode, msn: u32) {
        let syndrome = Syndrome::Nak(code);
        self.respond(n, Body::Ack(Aeth { syndrome, msn }), 0);
    }

    /// Polls the next packet, which the host drops. Returns its distance from the first PSN.
    fn drop_next(&mut self) -> u32 {
        let dropped = self.qp.poll_transmit(self.now, &mut self.host).unwrap();
        self.qp.transmit_dropped(self.now, &dropped);
        dropped.packet.bth.psn.ahead_of(FIRST)
    }

    fn rnr(&mut self, n: u32, timer: u8) {
        self.rnr_with(n, timer, DONE.msn);
    }

    /// Passes an RNR NAK with this message sequence number to the QP.
    fn rnr_with(&mut self, n: u32, timer: u8, msn: u32) {
        let syndrome = Syndrome::RnrNak { timer };
        self.respond(n, Body::Ack(Aeth { syndrome, msn }), 0);
    }

    fn read_response(&mut self, n: u32, part: ReadPart, length: u32) {
        self.respond(n, Body::ReadResponse(part), length);
    }

    fn change_state(&mut self, state: QpState) {
        let attrs = Attrs {
            state: Some(state),
            ..Attrs::default()
        };
        self.qp.modify(self.now, &attrs, &mut self.host).unwrap();
    }

    /// Changes attributes that can be changed only in SQD.
    fn change(&mut self, attrs: Attrs) {
        self.change_state(QpState::Sqd);
        self.qp.modify(self.now, &attrs, &mut self.host).unwrap();
        self.change_state(QpState::Rts);
    }

    /// Returns the end of the acknowledgment timer, or of the wait after an RNR NAK.
    fn end_of_timer(&self) -> Option<Instant> {
        self.qp.requester.end_of_timer()
    }

    /// Advances the clock to the end of the acknowledgment timer or of the wait after an RNR NAK,
    /// and lets the QP process the timeout.
    fn time_out(&mut self) {
        self.now = self.end_of_timer().expect("a timer");
        self.qp.handle_timeout(self.now, &mut self.host);
    }

    /// Advances the clock to the end of the retransmission timeout, which comes first, and lets the
    /// QP process the timeout.
    fn end_rto(&mut self) {
        self.now = self.qp.poll_timeout().expect("an RTO");
        assert!(Some(self.now) < self.end_of_timer());
        self.qp.handle_timeout(self.now, &mut self.host);
    }

    fn state(&self) -> QpState {
        self.qp.state()
    }

    fn sent(&self) -> Vec<(u64, WcStatus)> {
        self.host.sent()
    }

    /// Lets the QP flush all work requests, and checks that each posted WQE ended once, in order.
    fn check_flushed(&mut self) {
        assert!(self.poll().is_empty());
        assert_eq!(self.state(), QpState::Err);
        assert_eq!(self.qp.poll_timeout(), None);
        let slots = 0..self.host.send_buffers.len() as u32;
        assert!(self.host.retired.iter().map(|slot| slot.0).eq(slots));
    }
}
