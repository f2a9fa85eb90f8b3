// SPDX-License-Identifier: GPL-2.0

//! Tests of extended reliable connections: an initiator that only sends, a target that only
//! receives.

use super::*;
use crate::ids::Srqn;
use crate::testing::{BROKEN_SRQN, SRQN};
use crate::transmit::Source;
use crate::wire::packet::{ReadPart, WritePart};

const OTHER_SRQN: Srqn = Srqn::new(0x6);

fn request(psn: Psn, srqn: Srqn, body: Body, payload_len: u32) -> Packet {
    packet(Service::Xrc(Some(srqn)), psn, body, payload_len)
}

fn send(psn: Psn, srqn: Srqn) -> Packet {
    request(psn, srqn, Body::Send(SendPart::Only(SendExtra::Plain)), 0)
}

fn syndrome(transmit: &crate::transmit::Transmit) -> Syndrome {
    assert_eq!(transmit.packet.service, Service::Xrc(None));
    match transmit.packet.body {
        Body::Ack(aeth) => aeth.syndrome,
        body => panic!("{body:?}"),
    }
}

#[test]
fn each_request_names_its_queue() {
    let (mut qp, mut host) = in_rts(QpKind::XrcIni);
    host.post_send(SEND, vec![0; 2000]);
    host.post_send_with(SEND, vec![], |wr| wr.srqn = OTHER_SRQN);
    let services: Vec<Service> = drain(&mut qp, NOW, &mut host)
        .iter()
        .map(|transmit| transmit.packet.service)
        .collect();
    let named = [SRQN, SRQN, OTHER_SRQN].map(|srqn| Service::Xrc(Some(srqn)));
    assert_eq!(services, named);
    let Packet { bth, body, .. } = ack(FIRST.plus(2));
    let answer = Packet {
        bth,
        body,
        ..packet(Service::Xrc(None), FIRST, body, 0)
    };
    qp.handle_packet(NOW, &answer, &mut host);
    assert_eq!(host.sent(), [(0, Success), (1, Success)]);
}

/// Returns the state of an initiator and its completions, after a target refused its request with
/// `code`.
fn after_nak(code: NakCode) -> (QpState, Vec<(u64, WcStatus)>) {
    let (mut qp, mut host) = in_rts(QpKind::XrcIni);
    host.post_send(SEND, vec![]);
    drain(&mut qp, NOW, &mut host);
    let syndrome = Syndrome::Nak(code);
    let nak = packet(
        Service::Xrc(None),
        FIRST,
        Body::Ack(Aeth { syndrome, msn: 0 }),
        0,
    );
    qp.handle_packet(NOW, &nak, &mut host);
    (qp.state(), host.sent())
}

#[test]
fn an_initiator_accepts_the_responses_of_targets() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr),
        (NakCode::RemoteOperational, WcStatus::RemOpErr),
        (NakCode::InvalidRdRequest, WcStatus::RemInvRdReqErr),
    ] {
        assert_eq!(
            after_nak(code),
            (QpState::Err, vec![(0, status)]),
            "{code:?}"
        );
    }
}

#[test]
fn an_initiator_carries_out_no_requests() {
    let (mut qp, mut host) = in_rts(QpKind::XrcIni);
    host.post_recv(8);
    qp.handle_packet(NOW, &send(FIRST, SRQN), &mut host);
    qp.handle_packet(NOW, &ack(FIRST), &mut host);
    assert!(drain(&mut qp, NOW, &mut host).is_empty());
    qp.modify(NOW, &to(QpState::Err), &mut host).unwrap();
    drain(&mut qp, NOW, &mut host);
    assert_eq!((host.recvs.len(), host.recv_wcs.len()), (1, 0));
}

#[test]
fn operations_that_xrc_does_not_define_fail() {
    let place = RemoteAddr {
        va: BASE,
        rkey: RKEY,
    };
    let (mut qp, mut host) = in_rts(QpKind::XrcIni);
    host.post_send(SendOp::AtomicWrite(place), vec![0; 8]);
    drain(&mut qp, NOW, &mut host);
    assert_eq!(host.sent(), [(0, LocQpOpErr)]);
    assert_eq!(qp.state(), QpState::Err);
}

#[test]
fn a_target_receives_from_the_queue_that_is_named() {
    let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
    host.post_recv(8);
    // An XRC target has no send queue.
    host.post_send(SEND, vec![]);
    qp.handle_packet(NOW, &send(FIRST, SRQN), &mut host);
    let sent = drain(&mut qp, NOW, &mut host);
    assert_eq!(sent.len(), 1);
    assert_eq!(syndrome(&sent[0]), Syndrome::Ack { credits: 31 });
    assert_eq!(host.recv_wcs.len(), 1);
    assert_eq!(host.recv_wcs[0].status, Success);
    // In ERR, an XRC target doesn't flush the shared receive queues, because other QPs use them.
    host.post_recv(8);
    qp.modify(NOW, &to(QpState::Err), &mut host).unwrap();
    drain(&mut qp, NOW, &mut host);
    assert_eq!((host.recvs.len(), host.sends.len()), (1, 1));
    assert!(host.events.is_empty());
}

#[test]
fn the_srqn_selects_the_memory() {
    let reth = reth(4);
    let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
    host.payload = vec![7; 4];
    let write = Body::Write(WritePart::Only(reth, None));
    qp.handle_packet(NOW, &request(FIRST, SRQN, write, 4), &mut host);
    let read = request(FIRST.next(), OTHER_SRQN, Body::ReadRequest(reth), 0);
    qp.handle_packet(NOW, &read, &mut host);
    assert_eq!(host.memory[..4], [7; 4]);
    let sent = drain(&mut qp, NOW, &mut host);
    let last = sent.last().unwrap();
    assert_eq!(last.packet.service, Service::Xrc(None));
    assert!(matches!(
        last.packet.body,
        Body::ReadResponse(ReadPart::Only(_))
    ));
    let source = Source::Remote {
        rkey: RKEY,
        va: BASE,
        srqn: Some(OTHER_SRQN),
    };
    assert_eq!(last.source, source);
}

#[test]
fn a_queue_of_no_or_another_domain_is_an_invalid_request() {
    let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
    host.post_recv(8);
    qp.handle_packet(NOW, &send(FIRST, OTHER_SRQN), &mut host);
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(host.events, [Event::QpAccessErr]);
    assert_eq!((host.recvs.len(), host.recv_wcs.len()), (1, 0));
    let sent = drain(&mut qp, NOW, &mut host);
    assert_eq!(syndrome(&sent[0]), Syndrome::Nak(NakCode::InvalidRequest));
}

#[test]
fn a_broken_queue_is_an_operational_error() {
    let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
    host.post_recv(8);
    qp.handle_packet(NOW, &send(FIRST, BROKEN_SRQN), &mut host);
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(host.events, [Event::QpFatal]);
    assert_eq!((host.recvs.len(), host.recv_wcs.len()), (1, 0));
    let sent = drain(&mut qp, NOW, &mut host);
    assert_eq!(
        syndrome(&sent[0]),
        Syndrome::Nak(NakCode::RemoteOperational)
    );
}

#[test]
fn a_message_longer_than_its_receive_is_an_invalid_request() {
    let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
    host.post_recv(8);
    host.payload = vec![0; 16];
    let body = Body::Send(SendPart::Only(SendExtra::Plain));
    qp.handle_packet(NOW, &request(FIRST, SRQN, body, 16), &mut host);
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(host.recv_wcs[0].status, WcStatus::LocLenErr);
    assert!(host.events.is_empty());
    let sent = drain(&mut qp, NOW, &mut host);
    assert_eq!(syndrome(&sent[0]), Syndrome::Nak(NakCode::InvalidRequest));
}

#[test]
fn memory_is_not_reached_through_no_queue() {
    let reth = reth(4);
    for (body, len) in [
        (Body::Write(WritePart::Only(reth, None)), 4),
        (Body::ReadRequest(reth), 0),
    ] {
        let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
        host.access_fault = Some(AccessFault::NoQueue);
        qp.handle_packet(NOW, &request(FIRST, OTHER_SRQN, body, len), &mut host);
        assert_eq!(qp.state(), QpState::Err, "{body:?}");
        assert_eq!(host.events, [Event::QpAccessErr], "{body:?}");
        let sent = drain(&mut qp, NOW, &mut host);
        let refused = Syndrome::Nak(NakCode::InvalidRequest);
        assert_eq!(syndrome(&sent[0]), refused, "{body:?}");
    }
}

#[test]
fn packets_of_another_service_are_dropped() {
    let named = Service::Xrc(Some(SRQN));
    let (request, answer) = (send_only(FIRST), ack(FIRST));
    for (kind, service, like) in [
        (QpKind::Rc, named, &request),
        (QpKind::Rc, Service::Xrc(None), &answer),
        (QpKind::XrcTgt, Service::Rc, &request),
        (QpKind::XrcTgt, Service::Rc, &answer),
        (QpKind::XrcTgt, Service::Xrc(None), &answer),
        (QpKind::XrcIni, Service::Rc, &answer),
        (QpKind::XrcIni, named, &request),
    ] {
        let (mut qp, mut host) = in_rts(kind);
        host.post_recv(8);
        let stray = Packet { service, ..*like };
        qp.handle_packet(NOW, &stray, &mut host);
        let dropped = Count::Dropped(QpDropReason::Service);
        assert_eq!(host.counts, [dropped], "{kind:?} {service:?}");
        assert_eq!(qp.state(), QpState::Rts);
        assert_eq!(qp.attrs().rq_psn, FIRST);
        assert!(drain(&mut qp, NOW, &mut host).is_empty());
        assert!(host.recv_wcs.is_empty() && host.events.is_empty());
    }
}

#[test]
fn a_message_stays_in_its_queue() {
    let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
    host.post_recv(3000);
    host.payload = vec![0; 1024];
    let first = request(FIRST, SRQN, Body::Send(SendPart::First), 1024);
    qp.handle_packet(NOW, &first, &mut host);
    let last = Body::Send(SendPart::Last(SendExtra::Plain));
    qp.handle_packet(
        NOW,
        &request(FIRST.next(), OTHER_SRQN, last, 1024),
        &mut host,
    );
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(host.recv_wcs[0].status, WcStatus::RemInvReqErr);
}

/// The QP breaks even if the message has no bytes and so accesses no memory.
#[test]
fn a_shared_queue_in_error_breaks_the_qp() {
    let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
    qp.handle_packet(NOW, &send(FIRST, SRQN), &mut host);
    host.post_recv(0);
    drain(&mut qp, NOW, &mut host);
    host.srq_broken = true;
    qp.handle_packet(NOW, &send(FIRST, SRQN), &mut host);
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(host.events, [Event::QpFatal]);
    let sent = drain(&mut qp, NOW, &mut host);
    let refused = Syndrome::Nak(NakCode::RemoteOperational);
    assert_eq!(syndrome(&sent[0]), refused);
}

#[test]
fn an_empty_queue_is_looked_at_again() {
    for posted in [false, true] {
        let (mut qp, mut host) = in_rts(QpKind::XrcTgt);
        qp.handle_packet(NOW, &send(FIRST, SRQN), &mut host);
        if posted {
            host.post_recv(0);
        }
        let sent = drain(&mut qp, NOW, &mut host);
        let timer = if posted { 1 } else { 12 };
        assert_eq!(syndrome(&sent[0]), Syndrome::RnrNak { timer });
    }
}
