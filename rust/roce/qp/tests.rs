// SPDX-License-Identifier: GPL-2.0

//! Tests of the state machine of a QP.

use std::vec;
use std::vec::Vec;

use super::attr::{Attrs, ModifyError, QpKind, QpState, RemoteRights};
use crate::host::{AccessFault, Count, Event, Fetch, QpDropReason};
use crate::ids::{Pkey, Qkey, Qpn};
use crate::psn::Psn;
use crate::qp::TransmitFault;
use crate::testing::{connected, drain, qp, to_init, to_rtr, to_rts, MockHost, TestQp, BASE, RKEY};
use crate::time::Instant;
use crate::wc::WcStatus::{self, LocProtErr, LocQpOpErr, Success, WrFlushErr};
use crate::wire::packet::{
    Aeth, AtomicEth, Body, Bth, NakCode, Packet, Reth, SendPart, Service, Syndrome, WritePart,
};
use crate::wr::{AtomicOp, FlushKind, RemoteAddr, SendExtra, SendOp, UdDest};

mod bounds;
mod broken;
mod gaps;
mod hostile;
mod order;
mod raw;
mod shared;
mod trains;
mod xrc;

const NOW: Instant = Instant(1_000);
const FIRST: Psn = Psn::new(0xff_fffe);

const SEND: SendOp = SendOp::Send(SendExtra::Plain);
const DATAGRAM: SendOp = SendOp::Datagram(
    UdDest {
        qpn: Qpn::new(0x33),
        qkey: Qkey(0x1111),
    },
    None,
);

fn to(state: QpState) -> Attrs {
    Attrs {
        state: Some(state),
        ..Attrs::default()
    }
}

fn packet(service: Service, psn: Psn, body: Body, payload_len: u32) -> Packet {
    Packet {
        service,
        bth: Bth {
            ack_req: true,
            ..Bth::new(Qpn::new(0x11), psn)
        },
        body,
        payload_len,
    }
}

fn ack(psn: Psn) -> Packet {
    let syndrome = Syndrome::Ack { credits: 31 };
    let body = Body::Ack(Aeth { syndrome, msn: 0 });
    packet(Service::Rc, psn, body, 0)
}

fn send_only(psn: Psn) -> Packet {
    let body = Body::Send(SendPart::Only(SendExtra::Plain));
    packet(Service::Rc, psn, body, 0)
}

/// Creates the RETH of a range at the start of the memory that peers can access.
fn reth(length: u32) -> Reth {
    Reth {
        va: BASE,
        rkey: RKEY,
        length,
    }
}

fn read_request(length: u32) -> Packet {
    packet(Service::Rc, FIRST, Body::ReadRequest(reth(length)), 0)
}

/// Creates a QP of `kind` in RTR, and its host.
fn in_rtr(kind: QpKind) -> (TestQp, MockHost) {
    let (mut qp, mut host) = (qp(kind, 4), MockHost::new());
    for attrs in [to_init(kind), to_rtr(kind, FIRST)] {
        qp.modify(NOW, &attrs, &mut host).unwrap();
    }
    (qp, host)
}

/// Creates a QP of `kind` in RTS, and its host.
fn in_rts(kind: QpKind) -> (TestQp, MockHost) {
    let mut host = MockHost::new();
    let qp = connected(kind, FIRST, FIRST, &mut host);
    (qp, host)
}

#[test]
fn attributes_are_checked_before_anything_changes() {
    let init = to_init(QpKind::Rc);
    let cases = [
        (
            Attrs {
                alt_path: true,
                ..init
            },
            ModifyError::Unsupported,
        ),
        (
            Attrs {
                rate_limit: true,
                ..init
            },
            ModifyError::Unsupported,
        ),
        (Attrs { cap: true, ..init }, ModifyError::Unsupported),
        (
            Attrs {
                cur_state: Some(QpState::Rts),
                ..init
            },
            ModifyError::CurState,
        ),
        (to(QpState::Rtr), ModifyError::Transition),
        (to(QpState::Err), ModifyError::Transition),
        (Attrs { port: None, ..init }, ModifyError::Missing),
        (
            Attrs {
                qkey: Some(Qkey(1)),
                ..init
            },
            ModifyError::Forbidden,
        ),
        (
            Attrs {
                pkey_index: Some(1),
                ..init
            },
            ModifyError::Range,
        ),
        (
            Attrs {
                port: Some(2),
                ..init
            },
            ModifyError::Range,
        ),
    ];
    for (attrs, error) in cases {
        let mut qp = qp(QpKind::Rc, 4);
        let before = qp.attrs();
        let result = qp.modify(NOW, &attrs, &mut MockHost::new());
        assert_eq!(result, Err(error), "{attrs:?}");
        assert_eq!(qp.attrs(), before);
    }
}

#[test]
fn values_are_bounded() {
    let rtr = to_rtr(QpKind::Rc, FIRST);
    let rts = to_rts(QpKind::Rc, FIRST);
    let check_limit = |change: fn(&mut Attrs, u8), limit: u8, base: Attrs| {
        for (value, ok) in [(limit, true), (limit + 1, false)] {
            let mut host = MockHost::new();
            let mut qp = qp(QpKind::Rc, 4);
            qp.modify(NOW, &to_init(QpKind::Rc), &mut host).unwrap();
            if base == rts {
                qp.modify(NOW, &rtr, &mut host).unwrap();
            }
            let mut attrs = base;
            change(&mut attrs, value);
            let expected = if ok { Ok(()) } else { Err(ModifyError::Range) };
            assert_eq!(qp.modify(NOW, &attrs, &mut host), expected);
        }
    };
    check_limit(|attrs, value| attrs.min_rnr_timer = Some(value), 31, rtr);
    check_limit(
        |attrs, value| attrs.max_dest_rd_atomic = Some(value),
        16,
        rtr,
    );
    check_limit(|attrs, value| attrs.timeout = Some(value), 31, rts);
    check_limit(|attrs, value| attrs.retry_cnt = Some(value), 7, rts);
    check_limit(|attrs, value| attrs.rnr_retry = Some(value), 7, rts);
}

#[test]
fn query_reports_the_attributes_of_modify() {
    for kind in [QpKind::Rc, QpKind::Uc, QpKind::Ud, QpKind::Gsi] {
        let (qp, _) = in_rts(kind);
        let attrs = qp.attrs();
        assert_eq!(attrs.state, QpState::Rts);
        assert_eq!(attrs.sq_psn, FIRST);
        if kind == QpKind::Rc {
            assert_eq!(attrs.rq_psn, FIRST);
            assert_eq!(attrs.settings.timeout, 14);
            assert_eq!(attrs.settings.dest_qpn, Qpn::new(0x22));
        }
    }
}

#[test]
fn reset_leaves_nothing() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    for _ in 0..3 {
        host.post_send(SEND, vec![0; 10]);
    }
    drain(&mut qp, NOW, &mut host);
    host.post_recv(3000);
    host.payload = vec![0; 1024];
    let first = packet(Service::Rc, FIRST, Body::Send(SendPart::First), 1024);
    qp.handle_packet(NOW, &first, &mut host);
    qp.modify(NOW, &to(QpState::Reset), &mut host).unwrap();
    assert_eq!(host.retired.len(), 3);
    assert_eq!(host.released.len(), 1);
    assert!(host.send_wcs.is_empty() && host.recv_wcs.is_empty());
    assert_eq!(qp.poll_timeout(), None);
    assert!(drain(&mut qp, NOW, &mut host).is_empty());
    let fresh = self::qp(QpKind::Rc, 4).attrs();
    assert_eq!(qp.attrs(), fresh);
}

#[test]
fn err_flushes_although_the_host_cannot_send() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    for _ in 0..100 {
        host.post_send(SEND, vec![]);
        host.post_recv(1);
    }
    qp.modify(NOW, &to(QpState::Err), &mut host).unwrap();
    assert!(qp.flushes());
    for _ in 0..2 {
        assert_eq!(qp.poll_timeout(), Some(Instant(0)));
        qp.begin_run();
        qp.flush_posted(&mut host);
    }
    assert_eq!(qp.poll_timeout(), None);
    assert_eq!((host.sent().len(), host.recv_wcs.len()), (100, 100));
}

#[test]
fn err_flushes_both_queues_in_order_and_later_posts() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    for number in 0..70 {
        host.post_send_with(SEND, vec![], |wr| wr.signaled = number % 2 == 0);
        host.post_recv(1);
    }
    drain(&mut qp, NOW, &mut host);
    qp.modify(NOW, &to(QpState::Err), &mut host).unwrap();
    assert_eq!(qp.poll_timeout(), Some(Instant(0)));
    while qp.poll_timeout().is_some() {
        assert!(qp.poll_transmit(NOW, &mut host).is_none());
    }
    let flushed = |count: u64| (0..count).map(|id| (id, WrFlushErr)).collect::<Vec<_>>();
    assert_eq!(host.sent(), flushed(70));
    assert_eq!(host.recv_wcs.len(), 70);
    host.post_send(SEND, vec![]);
    host.post_recv(1);
    assert!(drain(&mut qp, NOW, &mut host).is_empty());
    assert_eq!(host.sent(), flushed(71));
    assert!(host.recv_wcs.iter().map(|wc| wc.wr_id).eq(0..71));
    assert!(host.recv_wcs.iter().all(|wc| wc.status == WrFlushErr));
    // Malformed requests are flushed as others are.
    let slot = host.post_send(SEND, vec![]);
    let Some(Fetch::Wr(wr)) = host.sends.pop_back() else {
        panic!("{slot:?} was posted");
    };
    host.sends.push_back(Fetch::Malformed(wr, LocQpOpErr));
    drain(&mut qp, NOW, &mut host);
    assert_eq!(host.sent(), flushed(72));
}

#[test]
fn err_does_not_flush_a_shared_receive_queue() {
    let mut host = MockHost::new();
    let mut config = qp(QpKind::Rc, 4).context.config;
    config.has_srq = true;
    let mut qp = TestQp::new(config, vec![Default::default(); 4], vec![]);
    for attrs in [to_init(QpKind::Rc), to(QpState::Err)] {
        qp.modify(NOW, &attrs, &mut host).unwrap();
    }
    host.post_recv(1);
    drain(&mut qp, NOW, &mut host);
    assert_eq!(host.recvs.len(), 1);
    assert_eq!(host.events, [Event::LastWqeReached]);
}

#[test]
fn the_first_request_carried_out_in_rtr_establishes() {
    let (mut qp, mut host) = in_rtr(QpKind::Rc);
    for psn in [FIRST.plus(9), FIRST.minus(9)] {
        qp.handle_packet(NOW, &send_only(psn), &mut host);
    }
    assert_eq!(host.events, []);
    for psn in [FIRST, FIRST.next()] {
        host.post_recv(0);
        qp.handle_packet(NOW, &send_only(psn), &mut host);
    }
    assert_eq!(host.events, [Event::CommEst]);
    assert_eq!(host.recv_wcs.len(), 2);
}

#[test]
fn a_dropped_uc_packet_does_not_raise_comm_est() {
    let (mut qp, mut host) = in_rtr(QpKind::Uc);
    let mut packet = send_only(FIRST.plus(9));
    packet.service = Service::Uc;
    qp.handle_packet(NOW, &packet, &mut host);
    assert_eq!(host.events, []);
    host.post_recv(0);
    packet.bth.psn = FIRST.plus(10);
    qp.handle_packet(NOW, &packet, &mut host);
    assert_eq!(host.events, [Event::CommEst]);
}

#[test]
fn packets_for_another_state_or_service_are_dropped() {
    let mut host = MockHost::new();
    let mut early = qp(QpKind::Rc, 4);
    early.modify(NOW, &to_init(QpKind::Rc), &mut host).unwrap();
    early.handle_packet(NOW, &send_only(FIRST), &mut host);
    assert_eq!(host.counts, [Count::Dropped(QpDropReason::State)]);

    let (mut qp, mut host) = in_rts(QpKind::Rc);
    let mut foreign = send_only(FIRST);
    foreign.service = Service::Uc;
    qp.handle_packet(NOW, &foreign, &mut host);
    let mut partition = send_only(FIRST);
    partition.bth.pkey = Pkey(0x8001);
    qp.handle_packet(NOW, &partition, &mut host);
    assert_eq!(
        host.counts,
        [QpDropReason::Service, QpDropReason::Pkey].map(Count::Dropped)
    );
    assert_eq!(qp.attrs().rq_psn, FIRST);
}

#[test]
fn sqd_completes_started_requests() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    host.post_send(SEND, vec![0; 2000]);
    host.post_send(SEND, vec![]);
    assert!(qp.poll_transmit(NOW, &mut host).is_some());
    let mut attrs = to(QpState::Sqd);
    attrs.sqd_async_notify = Some(true);
    qp.modify(NOW, &attrs, &mut host).unwrap();
    let rest = drain(&mut qp, NOW, &mut host);
    assert_eq!(rest.last().unwrap().packet.bth.psn, FIRST.next());
    assert!(rest.last().unwrap().packet.bth.ack_req);
    assert!(qp.attrs().sq_draining && host.events.is_empty());
    for state in [QpState::Rts, QpState::Sqd] {
        let refused = qp.modify(NOW, &to(state), &mut host);
        assert_eq!(refused, Err(ModifyError::Draining));
    }
    qp.handle_packet(NOW, &ack(FIRST.next()), &mut host);
    assert_eq!(host.events, [Event::SqDrained]);
    assert_eq!(host.sent(), [(0, Success)]);
    assert!(!qp.attrs().sq_draining);
    assert!(drain(&mut qp, NOW, &mut host).is_empty());
    qp.modify(NOW, &to(QpState::Rts), &mut host).unwrap();
    assert_eq!(drain(&mut qp, NOW, &mut host).len(), 1);
}

#[test]
fn the_last_packet_in_sqd_requests_an_acknowledgment() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    host.post_send_with(SEND, vec![0; 2000], |wr| wr.signaled = false);
    host.post_send(SEND, vec![]);
    qp.poll_transmit(NOW, &mut host).unwrap();
    // Acknowledges the first packet, so that entering SQD resends nothing.
    qp.handle_packet(NOW, &ack(FIRST), &mut host);
    qp.modify(NOW, &to(QpState::Sqd), &mut host).unwrap();
    let rest = drain(&mut qp, NOW, &mut host);
    assert_eq!(rest.len(), 1);
    assert!(rest[0].packet.bth.ack_req);
}

#[test]
fn sqd_says_drained_only_when_asked() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    qp.modify(NOW, &to(QpState::Sqd), &mut host).unwrap();
    assert!(host.events.is_empty() && !qp.attrs().sq_draining);
    qp.modify(NOW, &to(QpState::Rts), &mut host).unwrap();
    let mut attrs = to(QpState::Sqd);
    attrs.sqd_async_notify = Some(true);
    qp.modify(NOW, &attrs, &mut host).unwrap();
    assert_eq!(host.events, [Event::SqDrained]);
}

#[test]
fn sqd_requests_the_acknowledgment_of_the_last_packet() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    for _ in 0..2 {
        host.post_send_with(SEND, vec![], |wr| wr.signaled = false);
    }
    let first = qp.poll_transmit(NOW, &mut host).unwrap();
    assert!(!first.packet.bth.ack_req);
    qp.modify(NOW, &to(QpState::Sqd), &mut host).unwrap();
    let again = drain(&mut qp, NOW, &mut host);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].packet.bth.psn, FIRST);
    assert!(again[0].packet.bth.ack_req);
}

#[test]
fn send_errors_of_unreliable_qps_lead_to_sqe() {
    for (kind, op) in [(QpKind::Uc, SEND), (QpKind::Ud, DATAGRAM)] {
        let (mut qp, mut host) = in_rts(kind);
        for _ in 0..3 {
            host.post_send(op, vec![0; 8]);
        }
        qp.poll_transmit(NOW, &mut host).unwrap();
        let second = qp.poll_transmit(NOW, &mut host).unwrap();
        let fault = TransmitFault::Local(LocProtErr);
        qp.transmit_failed(NOW, &second, fault, &mut host);
        assert!(drain(&mut qp, NOW, &mut host).is_empty());
        assert_eq!(qp.state(), QpState::Sqe);
        drain(&mut qp, NOW, &mut host);
        let expected = [(0, Success), (1, LocProtErr), (2, WrFlushErr)];
        assert_eq!(host.sent(), expected);
        assert_eq!(host.retired.len(), 3);
        qp.modify(NOW, &to(QpState::Rts), &mut host).unwrap();
        host.post_send(op, vec![0; 8]);
        assert_eq!(drain(&mut qp, NOW, &mut host).len(), 1);
        assert_eq!(host.sent().last(), Some(&(3, Success)));
    }
}

/// Returns the code of the NAK for a request with `body` and `payload_len` payload bytes, the first
/// packet of a connection. Returns `None` if the QP sends no NAK.
fn nak_for(body: Body, payload_len: u32) -> Option<NakCode> {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    host.post_recv(1 << 12);
    host.payload = vec![0; payload_len as usize];
    let request = packet(Service::Rc, FIRST, body, payload_len);
    qp.handle_packet(NOW, &request, &mut host);
    let answers = drain(&mut qp, NOW, &mut host);
    answers
        .iter()
        .find_map(|transmit| match transmit.packet.body {
            Body::Ack(Aeth {
                syndrome: Syndrome::Nak(code),
                ..
            }) => Some(code),
            _ => None,
        })
}

#[test]
fn lengths_that_no_packet_of_the_kind_has_are_invalid() {
    let eth = AtomicEth {
        va: BASE,
        rkey: RKEY,
        op: AtomicOp::FetchAdd { add: 1 },
    };
    let everywhere = FlushKind {
        placement: FlushKind::GLOBAL,
        selectivity: 0,
    };
    let too_long = crate::wire::MAX_MESSAGE + 1;
    let invalid = [
        (Body::Send(SendPart::First), 0),
        (Body::Send(SendPart::First), 1023),
        (Body::Send(SendPart::Only(SendExtra::Plain)), 1025),
        (Body::Write(WritePart::First(reth(2048))), 0),
        (Body::Write(WritePart::First(reth(too_long))), 1024),
        (Body::Write(WritePart::Only(reth(8), None)), 4),
        (Body::ReadRequest(reth(too_long)), 0),
        (Body::ReadRequest(reth(8)), 8),
        (Body::Atomic(eth), 8),
        (Body::AtomicWrite(reth(8)), 4),
        (Body::Flush(everywhere, reth(8)), 8),
    ];
    for (body, payload_len) in invalid {
        let nak = nak_for(body, payload_len);
        assert_eq!(nak, Some(NakCode::InvalidRequest), "{body:?} {payload_len}");
    }
    assert_eq!(nak_for(Body::ReadRequest(reth(8)), 0), None);
    assert_eq!(nak_for(Body::Flush(everywhere, reth(8)), 0), None);
}

#[test]
fn each_placement_has_a_right_of_its_own() {
    let kind = |placement| FlushKind {
        placement,
        selectivity: 0,
    };
    for (global, persistent, allowed) in [
        (true, true, [true, true, true]),
        (true, false, [true, false, false]),
        (false, true, [false, true, false]),
        (false, false, [false, false, false]),
    ] {
        let rights = RemoteRights {
            flush_global: global,
            flush_persistent: persistent,
            ..RemoteRights::default()
        };
        let both = FlushKind::GLOBAL | FlushKind::PERSISTENT;
        let kinds = [FlushKind::GLOBAL, FlushKind::PERSISTENT, both].map(kind);
        assert_eq!(kinds.map(|kind| rights.allow_flush(kind)), allowed);
    }
}

#[test]
fn notifications_of_congestion_change_nothing() {
    for kind in [QpKind::Rc, QpKind::Uc, QpKind::Ud, QpKind::XrcTgt] {
        let (mut qp, mut host) = in_rts(kind);
        let before = qp.attrs();
        let cnp = packet(Service::Rc, FIRST, Body::Cnp, 0);
        qp.handle_packet(NOW, &cnp, &mut host);
        assert!(drain(&mut qp, NOW, &mut host).is_empty());
        assert!(host.counts.is_empty() && qp.attrs() == before);
    }
}

#[test]
fn resent_packets_are_marked_as_retransmissions() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    host.post_send(SEND, vec![0; 2000]);
    assert!(drain(&mut qp, NOW, &mut host)
        .iter()
        .all(|transmit| !transmit.retransmission));
    let due = qp.requester.end_of_timer().unwrap();
    qp.handle_timeout(due, &mut host);
    let again = drain(&mut qp, due, &mut host);
    assert!(again.len() == 2 && again.iter().all(|transmit| transmit.retransmission));

    let read = read_request(2000);
    for again in [false, true] {
        qp.handle_packet(NOW, &read, &mut host);
        let answer = drain(&mut qp, NOW, &mut host);
        assert_eq!(answer.len(), 2);
        assert!(answer.iter().all(|part| part.retransmission == again));
    }
}

#[test]
fn packets_after_a_send_error_do_not_continue_the_failed_message() {
    let (mut qp, mut host) = in_rts(QpKind::Uc);
    host.post_send(SEND, vec![0; 3000]);
    qp.poll_transmit(NOW, &mut host).unwrap();
    let second = qp.poll_transmit(NOW, &mut host).unwrap();
    let fault = TransmitFault::Local(LocProtErr);
    qp.transmit_failed(NOW, &second, fault, &mut host);
    drain(&mut qp, NOW, &mut host);
    qp.modify(NOW, &to(QpState::Rts), &mut host).unwrap();
    host.post_send(SEND, vec![0; 8]);
    let next = qp.poll_transmit(NOW, &mut host).unwrap();
    assert_eq!(next.packet.bth.psn, FIRST.plus(3));
}

#[test]
fn an_unreadable_source_of_a_read_response_is_refused() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    let request = read_request(16);
    qp.handle_packet(NOW, &request, &mut host);
    let response = qp.poll_transmit(NOW, &mut host).unwrap();
    let fault = TransmitFault::Remote(AccessFault::Denied);
    qp.transmit_failed(NOW, &response, fault, &mut host);
    assert_eq!(qp.state(), QpState::Err);
    let nak = qp.poll_transmit(NOW, &mut host).unwrap();
    let Body::Ack(aeth) = nak.packet.body else {
        panic!("{nak:?}");
    };
    assert_eq!(aeth.syndrome, Syndrome::Nak(NakCode::RemoteAccess));
}

#[test]
fn responses_and_requests_alternate() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    let request = read_request(4096);
    qp.handle_packet(NOW, &request, &mut host);
    let write = SendOp::Write(
        RemoteAddr {
            va: BASE,
            rkey: RKEY,
        },
        None,
    );
    host.post_send(write, vec![0; 4096]);
    let sent = drain(&mut qp, NOW, &mut host);
    let responses: Vec<bool> = sent
        .iter()
        .map(|transmit| matches!(transmit.packet.body, Body::ReadResponse(_)))
        .collect();
    assert_eq!(
        responses,
        [true, false, true, false, true, false, true, false]
    );
}

#[test]
fn one_poll_is_bounded() {
    let (mut qp, mut host) = in_rts(QpKind::Ud);
    // Datagrams that are too long complete without a packet.
    for _ in 0..1000 {
        host.post_send(DATAGRAM, vec![0; 1025]);
    }
    let mut polls = 0;
    loop {
        assert!(qp.poll_transmit(NOW, &mut host).is_none());
        polls += 1;
        if qp.poll_timeout().is_none() {
            break;
        }
        assert_eq!(qp.poll_timeout(), Some(Instant(0)));
    }
    assert!(polls > 10);
    let all: Vec<(u64, WcStatus)> = (0..1000).map(|id| (id, Success)).collect();
    assert_eq!(host.sent(), all);
}
