// SPDX-License-Identifier: GPL-2.0

//! A test of a QP without [`Config::fills_gaps`](crate::qp::Config::fills_gaps).

use super::*;
use crate::transmit::Transmit;
use crate::wire::packet::{GapReport, Reserved};

#[test]
fn a_qp_that_fills_no_gaps_uses_no_reserved_bits() {
    let (mut qp, mut host) = in_rtr(QpKind::Rc);
    qp.context.config.fills_gaps = false;
    qp.modify(NOW, &to_rts(QpKind::Rc, FIRST), &mut host)
        .unwrap();
    let psns = |sent: &[Transmit]| -> Vec<u32> {
        let psn = |transmit: &Transmit| transmit.packet.bth.psn.ahead_of(FIRST);
        sent.iter().map(psn).collect()
    };
    for _ in 0..4 {
        host.post_send(SEND, vec![0; 8]);
    }
    let mut first = ack(FIRST);
    first.bth.reserved = Reserved::default().with_fills_gaps(true).with_extension(5);
    let sent = drain(&mut qp, NOW, &mut host);
    qp.handle_packet(NOW, &first, &mut host);
    // A peer may report a gap nevertheless. All packets are sent again.
    let syndrome = Syndrome::Nak(NakCode::PsnSequence);
    let nak = Body::Ack(Aeth { syndrome, msn: 0 });
    let mut nak = packet(Service::Rc, FIRST.plus(1), nak, 0);
    let report = GapReport {
        missing: 1,
        is_later: false,
    };
    nak.bth.reserved = Reserved::default().with_extension(report.encode());
    qp.handle_packet(NOW, &nak, &mut host);
    let again = drain(&mut qp, NOW, &mut host);
    assert_eq!(
        (psns(&sent), psns(&again)),
        (vec![0, 1, 2, 3], vec![1, 2, 3])
    );
    let bth = |transmit: &Transmit| {
        (
            transmit.packet.bth.reserved.fills_gaps(),
            transmit.packet.bth.reserved.extension(),
        )
    };
    assert!(sent.iter().chain(&again).all(|it| bth(it) == (false, 0)));
}
