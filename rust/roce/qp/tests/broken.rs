// SPDX-License-Identifier: GPL-2.0

//! Tests of a QP that a peer's request broke while READ responses were due.

use super::*;

/// Creates a QP in ERR. The responses to a READ of 64 packets are due, and the NAK of the request
/// after it.
pub(super) fn broken() -> (TestQp, MockHost) {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    let read = read_request(64 * 1024);
    qp.handle_packet(NOW, &read, &mut host);
    let middle = Body::Send(SendPart::Middle);
    let wrong = packet(Service::Rc, FIRST.plus(64), middle, 1024);
    qp.handle_packet(NOW, &wrong, &mut host);
    assert_eq!(qp.state(), QpState::Err);
    (qp, host)
}

fn is_nak(packet: &Packet) -> bool {
    let refusal = Syndrome::Nak(NakCode::InvalidRequest);
    matches!(packet.body, Body::Ack(aeth) if aeth.syndrome == refusal)
}

#[test]
fn sends_pending_responses_before_its_nak() {
    let (mut qp, mut host) = broken();
    let sent = drain(&mut qp, NOW, &mut host);
    assert_eq!(sent.len(), 65);
    assert!(is_nak(&sent[64].packet));
}

#[test]
fn sends_nothing_after_modify_to_err() {
    let (mut qp, mut host) = broken();
    assert!(qp.poll_transmit(NOW, &mut host).is_some());
    assert!(qp.modify(NOW, &to(QpState::Err), &mut host).is_ok());
    assert!(drain(&mut qp, NOW, &mut host).is_empty());
}

#[test]
fn sends_only_its_nak_once_the_memory_is_gone() {
    let (mut qp, mut host) = broken();
    let response = qp.poll_transmit(NOW, &mut host).unwrap();
    let fault = TransmitFault::Remote(AccessFault::Denied);
    qp.transmit_failed(NOW, &response, fault, &mut host);
    let sent = drain(&mut qp, NOW, &mut host);
    assert_eq!(sent.len(), 1);
    assert!(is_nak(&sent[0].packet));
}

#[test]
fn sends_only_its_nak_once_the_host_drops_a_response() {
    let (mut qp, mut host) = broken();
    for _ in 0..3 {
        assert!(qp.poll_transmit(NOW, &mut host).is_some());
    }
    let response = qp.poll_transmit(NOW, &mut host).unwrap();
    qp.transmit_dropped(NOW, &response);
    let end = qp.poll_timeout().unwrap();
    let nak = qp.poll_transmit(end, &mut host).unwrap();
    assert!(is_nak(&nak.packet));
    // The NAK is sent again.
    qp.transmit_dropped(end, &nak);
    let end = qp.poll_timeout().unwrap();
    let sent = drain(&mut qp, end, &mut host);
    assert_eq!(sent.len(), 1);
    assert!(is_nak(&sent[0].packet));
}
