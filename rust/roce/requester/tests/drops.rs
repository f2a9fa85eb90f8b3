// SPDX-License-Identifier: GPL-2.0

//! Tests of packets that the QP's own host drops or can't build.

use super::*;

#[test]
fn local_drops_are_sent_again_without_a_retry() {
    let mut bench = Bench::new();
    bench.post(SEND, 3 * MTU as usize);
    bench.post(READ, 2000);
    bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
    let timeout = bench.qp.poll_timeout();
    for drops in 0..4 {
        assert_eq!(bench.drop_next(), 1);
        let end = bench.now.after(Duration(100_000 << drops));
        assert_eq!(bench.qp.poll_timeout(), Some(end));
        assert_eq!(bench.psns(), [], "during the pause");
        bench.now = end;
    }
    let again = bench.poll();
    let psns = again
        .iter()
        .map(|again| again.packet.bth.psn.ahead_of(FIRST));
    assert!(psns.eq([1, 2, 3]));
    assert!(again[0].packet.bth.ack_req && again[0].retransmission);
    assert_eq!(bench.end_of_timer(), timeout);
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 0);
    bench.ack(2);
    bench.read_response(3, ReadPart::First(DONE), MTU);
    bench.read_response(4, ReadPart::Last(DONE), 976);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn a_dropped_atomic_is_not_in_flight() {
    let mut bench = Bench::new();
    for _ in 0..5 {
        bench.post(ADD, 8);
    }
    for dropped in 0..4 {
        bench.now = bench.now.after(Duration(1_000_000));
        assert_eq!(bench.drop_next(), dropped);
        bench.now = bench.now.after(Duration(1_000_000));
        let next = bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
        assert_eq!(next.packet.bth.psn, psn(dropped));
    }
    assert_eq!(bench.psns(), [], "max_rd_atomic is 4");
    bench.respond(0, Body::AtomicAck(DONE, 1), 0);
    assert_eq!(bench.psns(), [4]);
}

#[test]
fn a_host_that_drops_everything_spends_all_retries() {
    let mut bench = Bench::new();
    bench.post_unsignaled(SEND, 0);
    bench.post(SEND, 0);
    let begun = bench.now;
    let mut tries = 0;
    while bench.state() == QpState::Rts {
        while bench
            .qp
            .poll_transmit(bench.now, &mut bench.host)
            .is_some_and(|dropped| {
                bench.qp.transmit_dropped(bench.now, &dropped);
                true
            })
        {
            tries += 1;
        }
        if let Some(due) = bench.qp.poll_timeout() {
            bench.now = bench.now.max(due);
            bench.qp.handle_timeout(bench.now, &mut bench.host);
        }
    }
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, RetryExcErr), (1, WrFlushErr)]);
    assert_eq!(bench.now.0 - begun.0, 4 * TIMEOUT.0);
    assert!(tries < 20, "{tries} tries");
}

#[test]
fn packets_that_the_host_of_an_unreliable_qp_drops_are_lost() {
    let mut bench = Bench::of(QpKind::Uc);
    bench.post(SEND, 2 * MTU as usize);
    assert_eq!(bench.drop_next(), 0);
    assert_eq!(bench.psns(), [1]);
    assert_eq!(bench.sent(), [(0, Success)]);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn a_held_back_packet_is_not_sent_once_its_wqe_has_completed() {
    let mut bench = Bench::new();
    bench.post(SEND, 2 * MTU as usize);
    bench.post(SEND, 8);
    bench.poll();
    bench.nak(1, NakCode::PsnSequence);
    // The host holds the second copy back for a while, and the first one is acknowledged.
    let kept = bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
    assert!(kept.retransmission && kept.packet.bth.psn == psn(1));
    assert!(bench.qp.may_send(&kept));
    bench.ack(1);
    assert_eq!(bench.sent(), [(0, Success)]);
    assert!(!bench.qp.may_send(&kept));
    assert_eq!(bench.psns(), [2]);
}

#[test]
fn a_dropped_packet_waits_its_turn_after_a_rewind() {
    for last in 1..=6 {
        let mut bench = Bench::new();
        bench.post(SEND, 3 * MTU as usize);
        bench.post(ADD, 8);
        bench.post(SEND, 3 * MTU as usize);
        for _ in 0..last {
            bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
        }
        let dropped = bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
        // The host holds the packet back for a while, and responses arrive.
        bench.nak(1, NakCode::PsnSequence);
        bench.qp.transmit_dropped(bench.now, &dropped);
        bench.now = bench.now.after(Duration(100_000));
        assert_eq!(bench.psns(), [1, 2, 3, 4, 5, 6], "{last} was dropped");
        bench.ack(2);
        bench.respond(3, Body::AtomicAck(DONE, 1), 0);
        bench.ack(6);
        assert_eq!(bench.sent(), [(0, Success), (1, Success), (2, Success)]);
        assert_eq!(bench.qp.poll_timeout(), None);
    }
}

#[test]
fn an_acknowledged_packet_is_not_taken_back() {
    let mut bench = Bench::new();
    bench.post(SEND, 4 * MTU as usize);
    bench.poll();
    bench.time_out();
    for _ in 0..2 {
        bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
    }
    let dropped = bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
    assert_eq!(dropped.packet.bth.psn, psn(2));
    // The acknowledgment of the copies that were sent first.
    bench.ack(2);
    bench.qp.transmit_dropped(bench.now, &dropped);
    bench.now = bench.now.after(Duration(100_000));
    assert_eq!(bench.psns(), [3]);
}

#[test]
fn a_packet_that_went_out_before_stays_in_flight() {
    let mut bench = Bench::new();
    bench.post(SEND, 8);
    bench.post(SEND, 8);
    bench.poll();
    bench.time_out();
    bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
    let failed = bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
    assert_eq!(failed.packet.bth.psn, psn(1));
    let fault = TransmitFault::Local(LocProtErr);
    bench
        .qp
        .transmit_failed(bench.now, &failed, fault, &mut bench.host);
    // The peer has received both, and acknowledges them.
    bench.ack(1);
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, Success), (1, LocProtErr)]);
}
