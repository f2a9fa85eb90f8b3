// SPDX-License-Identifier: GPL-2.0

//! Tests of [`Qp::needs_order`]: whether no packet may overtake another. One test is of
//! [`Qp::may_send`].

use super::*;

#[test]
fn a_reliable_qp_minds_order_until_its_requests_are_acknowledged() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    assert!(!qp.needs_order());
    host.post_send(SEND, vec![0; 8]);
    assert_eq!(drain(&mut qp, NOW, &mut host).len(), 1);
    assert!(qp.needs_order());
    qp.handle_packet(NOW, &ack(FIRST), &mut host);
    assert!(!qp.needs_order());
}

#[test]
fn an_acknowledgment_may_be_overtaken() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    host.post_recv(8);
    qp.handle_packet(NOW, &send_only(FIRST), &mut host);
    assert_eq!(drain(&mut qp, NOW, &mut host).len(), 1);
    assert!(!qp.needs_order());
}

#[test]
fn the_answer_to_a_read_may_not_be_overtaken() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    let request = read_request(16);
    qp.handle_packet(NOW, &request, &mut host);
    assert_eq!(drain(&mut qp, NOW, &mut host).len(), 1);
    assert!(qp.needs_order());
}

#[test]
fn an_unreliable_qp_always_minds_order() {
    for kind in [QpKind::Uc, QpKind::Ud, QpKind::Gsi] {
        let (qp, _) = in_rts(kind);
        assert!(qp.needs_order(), "{kind:?}");
    }
}

#[test]
fn a_kept_read_response_needs_the_right_to_read() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    qp.handle_packet(NOW, &read_request(16), &mut host);
    let kept = qp.poll_transmit(NOW, &mut host).unwrap();
    assert!(qp.may_send(&kept));
    let none = Attrs {
        access: Some(RemoteRights::default()),
        ..Attrs::default()
    };
    qp.modify(NOW, &none, &mut host).unwrap();
    assert!(!qp.may_send(&kept));
}
