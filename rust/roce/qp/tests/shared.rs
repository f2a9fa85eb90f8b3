// SPDX-License-Identifier: GPL-2.0

//! Tests of a shared receive queue in error, whose ring its process has corrupted.

use super::*;
use crate::wire::packet::Deth;

/// Creates a QP of `kind` in RTS whose shared receive queue is in error.
fn with_broken_queue(kind: QpKind) -> (TestQp, MockHost) {
    let (mut qp, mut host) = in_rts(kind);
    qp.context.config.has_srq = true;
    host.post_recv(8);
    host.srq_broken = true;
    (qp, host)
}

fn ends_in_error(qp: &TestQp, host: &MockHost) {
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(host.events, [Event::QpFatal, Event::LastWqeReached]);
    assert_eq!((host.recvs.len(), host.recv_wcs.len()), (1, 0));
}

#[test]
fn a_broken_shared_queue_is_told_to_the_peer() {
    let (mut qp, mut host) = with_broken_queue(QpKind::Rc);
    qp.handle_packet(NOW, &send_only(FIRST), &mut host);
    ends_in_error(&qp, &host);
    let sent = drain(&mut qp, NOW, &mut host);
    let Body::Ack(aeth) = sent[0].packet.body else {
        panic!("{:?}", sent[0]);
    };
    let code = NakCode::RemoteOperational;
    assert_eq!(aeth.syndrome, Syndrome::Nak(code));
    assert_eq!((sent.len(), sent[0].packet.bth.psn), (1, FIRST));
}

#[test]
fn requests_without_a_receive_need_no_shared_queue() {
    let (mut qp, mut host) = with_broken_queue(QpKind::Rc);
    let reth = reth(0);
    let body = Body::Write(WritePart::Only(reth, None));
    qp.handle_packet(NOW, &packet(Service::Rc, FIRST, body, 0), &mut host);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn a_broken_shared_queue_breaks_an_unreliable_qp() {
    let deth = Deth {
        qkey: Qkey(0x1111),
        src: Qpn::new(0x33),
    };
    for (kind, service) in [(QpKind::Uc, Service::Uc), (QpKind::Ud, Service::Ud(deth))] {
        let (mut qp, mut host) = with_broken_queue(kind);
        let request = Packet {
            service,
            ..send_only(FIRST)
        };
        qp.handle_packet(NOW, &request, &mut host);
        ends_in_error(&qp, &host);
        assert!(drain(&mut qp, NOW, &mut host).is_empty());
    }
}
