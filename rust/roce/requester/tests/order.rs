// SPDX-License-Identifier: GPL-2.0

//! Tests of acknowledgments, of retries and of the order of completions.

use super::*;

#[test]
fn one_acknowledgment_completes_all_before_it() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.post(SEND, 1500);
    }
    bench.poll();
    bench.ack(4);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
    bench.ack(5);
    assert_eq!(bench.sent().len(), 3);
    assert_eq!(bench.qp.poll_timeout(), None);
    assert_eq!(bench.host.retired.len(), 3);
}

#[test]
fn unsignaled_success_is_silent() {
    let mut bench = Bench::new();
    bench.post_unsignaled(SEND, 0);
    bench.post(SEND, 0);
    bench.poll();
    bench.ack(1);
    assert_eq!(bench.sent(), [(1, Success)]);
    assert_eq!(bench.host.retired.len(), 2);
}

#[test]
fn acknowledgments_out_of_flight_are_ignored() {
    for stray in [u32::MAX, 2, 3, 1 << 23, (1 << 24) - 1] {
        let mut bench = Bench::new();
        bench.post(SEND, 2000);
        bench.poll();
        bench.ack(stray);
        bench.nak(stray, NakCode::RemoteAccess);
        bench.rnr(stray, 1);
        bench.read_response(stray, ReadPart::Only(DONE), 0);
        assert_eq!((bench.sent(), bench.state()), (vec![], QpState::Rts));
        assert_eq!(
            bench.host.counts,
            [Count::Dropped(QpDropReason::Unsolicited); 4]
        );
        bench.ack(1);
        assert_eq!(bench.sent(), [(0, Success)]);
    }
}

#[test]
fn a_sequence_nak_for_the_next_packet_acknowledges_all_that_was_sent() {
    let mut bench = Bench::new();
    bench.post(SEND, 2000);
    bench.poll();
    // Nothing is lost: a third party's packet arrived ahead of the expected PSN.
    bench.nak(2, NakCode::PsnSequence);
    assert_eq!(bench.sent(), [(0, Success)]);
    assert_eq!(bench.qp.poll_timeout(), None);
    assert_eq!(bench.psns(), []);
    // Nothing is in flight, so the NAK answers no request.
    bench.nak(2, NakCode::PsnSequence);
    assert_eq!(
        bench.host.counts,
        [
            Count::RcvdSeqErr,
            Count::RdmaSends,
            Count::Dropped(QpDropReason::Unsolicited)
        ]
    );
}

#[test]
fn a_sequence_nak_for_the_next_packet_has_a_lost_read_asked_again() {
    let mut bench = Bench::new();
    bench.post(READ, 8);
    bench.post(SEND, 8);
    assert_eq!(bench.psns(), [0, 1]);
    bench.nak(2, NakCode::PsnSequence);
    assert_eq!(bench.sent(), []);
    assert_eq!(bench.psns(), [0]);
}

#[test]
fn unsent_packets_cannot_be_acknowledged() {
    let mut bench = Bench::new();
    bench.post(SEND, 4000);
    bench.qp.poll_transmit(NOW, &mut bench.host);
    bench.ack(3);
    assert_eq!(bench.sent(), []);
    bench.ack(0);
    assert_eq!(bench.psns(), [1, 2, 3]);
}

#[test]
fn a_sequence_nak_goes_back_to_its_packet() {
    let mut bench = Bench::new();
    bench.post(SEND, 3000);
    bench.post(WRITE, 2000);
    assert_eq!(bench.psns(), [0, 1, 2, 3, 4]);
    bench.nak(4, NakCode::PsnSequence);
    assert_eq!(bench.sent(), [(0, Success)]);
    // A repeated NAK has no effect while nothing was sent since.
    bench.nak(4, NakCode::PsnSequence);
    let again = bench.poll();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].packet.bth.psn, psn(4));
    assert!(again[0].packet.bth.ack_req);
    assert_eq!(again[0].packet.body, Body::Write(WritePart::Last(None)));
    bench.ack(4);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
    assert_eq!(bench.host.count_of(Count::RcvdSeqErr), 2);
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 1);
}

#[test]
fn repeated_naks_cost_no_retry() {
    let mut bench = Bench::new();
    bench.post(READ, 8);
    bench.post(SEND, 9000);
    bench.poll();
    for n in [3, 3, 4, 4, 5, 5, 6, 6] {
        bench.nak(n, NakCode::PsnSequence);
        bench.poll();
    }
    assert_eq!(bench.state(), QpState::Rts);
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 1);
    for _ in 0..2 {
        bench.time_out();
        assert_eq!(bench.psns(), [0, 6, 7, 8, 9]);
    }
    bench.time_out();
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, RetryExcErr), (1, WrFlushErr)]);
}

#[test]
fn late_acknowledgments_move_the_cursor() {
    let mut bench = Bench::new();
    bench.post(SEND, 3000);
    bench.post(SEND, 0);
    bench.poll();
    bench.time_out();
    bench.ack(1);
    assert_eq!(bench.psns(), [2, 3]);
    bench.time_out();
    bench.ack(2);
    assert_eq!(bench.psns(), [3]);
    bench.time_out();
    bench.ack(3);
    assert_eq!(bench.psns(), []);
    assert_eq!(bench.sent().len(), 2);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn three_retries_are_three() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.post(SEND, 0);
    bench.poll();
    for retry in 1..=3 {
        let expected = bench.now.after(TIMEOUT);
        assert_eq!(bench.end_of_timer(), Some(expected));
        bench.time_out();
        assert_eq!(bench.psns(), [0, 1], "retry {retry}");
    }
    bench.time_out();
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, RetryExcErr), (1, WrFlushErr)]);
    assert_eq!(bench.host.count_of(Count::RetryExceeded), 1);
}

#[test]
fn progress_restores_all_retries() {
    let mut bench = Bench::new();
    bench.post(SEND, 10 * 1024);
    bench.poll();
    for acked in 0..9 {
        for _ in 0..3 {
            bench.time_out();
            bench.poll();
        }
        bench.ack(acked);
        assert_eq!(bench.state(), QpState::Rts);
    }
    bench.poll();
    // The same acknowledgment again is no progress.
    for _ in 0..3 {
        bench.time_out();
        bench.ack(8);
        bench.poll();
    }
    bench.time_out();
    assert_eq!(bench.sent(), [(0, RetryExcErr)]);
}

#[test]
fn timeout_zero_is_never() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        timeout: Some(0),
        ..Attrs::default()
    });
    // Without a timer the acknowledgment can't be requested later.
    bench.post_unsignaled(SEND, 0);
    assert!(bench.poll()[0].packet.bth.ack_req);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn rnr_naks_make_it_wait() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.post(SEND, 0);
    }
    bench.poll();
    bench.rnr(1, 14);
    assert_eq!(bench.sent(), [(0, Success)]);
    let until = bench.now.after(Duration(1_280_000));
    assert_eq!(bench.qp.poll_timeout(), Some(until));
    assert_eq!(bench.psns(), []);
    // The second copy of the NAK doesn't count.
    bench.rnr(1, 14);
    assert_eq!(bench.host.count_of(Count::RcvdRnrErr), 1);
    bench.time_out();
    assert_eq!(bench.psns(), [1, 2]);
    assert_eq!(
        bench.end_of_timer(),
        Some(bench.now.after(TIMEOUT)),
        "the acknowledgment timer runs again"
    );
    bench.ack(2);
    assert_eq!(bench.sent().len(), 3);
}

#[test]
fn late_answers_do_not_end_the_wait() {
    let mut bench = Bench::new();
    bench.post(READ, 8);
    bench.post(SEND, 0);
    bench.poll();
    bench.rnr(1, 14);
    let until = bench.qp.poll_timeout();
    bench.read_response(0, ReadPart::Only(DONE), 8);
    assert_eq!(bench.sent(), [(0, Success)]);
    assert_eq!(bench.psns(), []);
    assert_eq!(bench.qp.poll_timeout(), until);
    // The peer found a buffer after all.
    bench.ack(1);
    assert_eq!(bench.sent().len(), 2);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn two_rnr_retries_are_two() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.post(SEND, 0);
    bench.poll();
    for _ in 0..2 {
        bench.rnr(0, 1);
        bench.time_out();
        assert_eq!(bench.psns(), [0, 1]);
    }
    bench.rnr(0, 1);
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, RnrRetryExcErr), (1, WrFlushErr)]);
    assert_eq!(bench.host.count_of(Count::RnrRetryExceeded), 1);
}

#[test]
fn progress_restores_all_rnr_retries() {
    let mut bench = Bench::new();
    bench.post(SEND, 5 * 1024);
    bench.poll();
    for refused in 0..5 {
        for _ in 0..2 {
            bench.rnr(refused, 1);
            bench.time_out();
            bench.poll();
        }
    }
    bench.ack(4);
    assert_eq!(bench.sent(), [(0, Success)]);
}

#[test]
fn later_packets_do_not_postpone_the_timer() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.poll();
    let deadline = bench.end_of_timer();
    bench.now = bench.now.after(Duration(1_000));
    bench.post(SEND, 0);
    bench.poll();
    assert_eq!(bench.end_of_timer(), deadline);
    bench.ack(0);
    assert_eq!(bench.end_of_timer(), Some(bench.now.after(TIMEOUT)));
}

#[test]
fn a_packet_that_cannot_be_sent_excuses_one_timeout() {
    let mut bench = Bench::new();
    bench.post(WRITE, 100 * MTU as usize);
    let send = |bench: &mut Bench| {
        let sent = bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
        (sent.packet.bth.psn.ahead_of(FIRST), sent.packet.bth.ack_req)
    };
    // The peer acknowledges the first packet that asks. The host can send no more after some
    // further packets.
    let mut sent = (0, false);
    while !sent.1 {
        sent = send(&mut bench);
    }
    bench.ack(sent.0);
    assert!((0..8).all(|_| !send(&mut bench).1));
    // Progress restores the excuse.
    bench.time_out();
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 0);
    bench.ack(sent.0 + 4);
    let mut timeouts = 0;
    while bench.sent().is_empty() {
        bench.time_out();
        timeouts += 1;
        assert!(timeouts < 20);
    }
    // One is excused, three are retries, and the last one ends the WQE.
    assert_eq!(timeouts, 5);
    assert_eq!(bench.sent(), [(0, RetryExcErr)]);
}

/// Creates a QP without a limit of RNR retries.
fn patient() -> Bench {
    let mut bench = Bench::new();
    bench.change(Attrs {
        rnr_retry: Some(7),
        ..Attrs::default()
    });
    bench
}

#[test]
fn seven_rnr_retries_are_for_ever() {
    let mut bench = patient();
    bench.post(SEND, 0);
    bench.poll();
    for _ in 0..1000 {
        bench.rnr(0, 1);
        bench.time_out();
        assert_eq!(bench.psns(), [0]);
    }
    bench.ack(0);
    assert_eq!(bench.sent(), [(0, Success)]);
}

#[test]
fn an_rnr_nak_restores_all_transport_retries() {
    let mut bench = patient();
    bench.post(SEND, 0);
    bench.poll();
    for _ in 0..10 {
        for _ in 0..3 {
            bench.time_out();
            assert_eq!(bench.psns(), [0]);
        }
        bench.rnr(0, 1);
        bench.time_out();
        assert_eq!(bench.psns(), [0]);
        // The peer found a buffer just then, and requests the packet at once.
        bench.nak(0, NakCode::PsnSequence);
        assert_eq!(bench.psns(), [0]);
        bench.rnr(0, 1);
        bench.time_out();
        assert_eq!(bench.psns(), [0]);
    }
    for _ in 0..4 {
        bench.time_out();
        bench.poll();
    }
    assert_eq!(bench.sent(), [(0, RetryExcErr)]);
}

#[test]
fn packets_that_a_peer_without_buffers_would_drop_are_not_sent() {
    let mut bench = patient();
    bench.post(SEND, 1000 * MTU as usize);
    let mut sent = vec![bench.poll().len()];
    for _ in 0..8 {
        bench.rnr(0, 1);
        bench.time_out();
        sent.push(bench.poll().len());
    }
    assert_eq!(sent, [512, 256, 128, 64, 32, 16, 8, 4, 4]);
}

#[test]
fn local_invalidation_waits_for_all_before_it() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.post(INVALIDATE, 0);
    bench.post(SEND, 0);
    assert_eq!(bench.psns(), [0]);
    assert_eq!(bench.host.executed, []);
    bench.ack(0);
    assert_eq!(bench.psns(), [1]);
    assert_eq!(bench.host.executed, [LocalOp::Invalidate(Lkey(9))]);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
}

#[test]
fn registration_is_executed_once_and_completes_in_order() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.post(REG_MR, 0);
    bench.post(SEND, 0);
    assert_eq!(bench.psns(), [0, 1]);
    assert_eq!(bench.host.executed, [LocalOp::RegMr]);
    assert_eq!(bench.sent(), []);
    bench.time_out();
    assert_eq!(bench.psns(), [0, 1]);
    assert_eq!(bench.host.executed.len(), 1);
    bench.ack(0);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
    bench.ack(1);
    assert_eq!(bench.sent().len(), 3);
}

#[test]
fn fences_wait_for_reads_and_atomics() {
    for (op, answer) in [
        (READ, Body::ReadResponse(ReadPart::Only(DONE))),
        (ADD, Body::AtomicAck(DONE, 1)),
        (ATOMIC_WRITE, Body::ReadResponse(ReadPart::Only(DONE))),
    ] {
        let mut bench = Bench::new();
        bench.post(op, 8);
        bench.post(SEND, 0);
        bench
            .host
            .post_send_with(SEND, vec![], |wr| wr.fence = true);
        bench.post(SEND, 0);
        assert_eq!(bench.psns(), [0, 1], "{op:?}");
        bench.respond(0, answer, if op == READ { 8 } else { 0 });
        assert_eq!(bench.psns(), [2, 3], "{op:?}");
    }
}

#[test]
fn the_window_limits_the_taken_wqes() {
    let mut bench = Bench::new();
    for _ in 0..10 {
        bench.post(SEND, 0);
    }
    assert_eq!(bench.poll().len(), 8);
    assert_eq!(bench.host.sends.len(), 2);
    bench.ack(0);
    assert_eq!(bench.poll().len(), 1);
}

#[test]
fn a_malformed_request_ends_the_queue_in_its_turn() {
    let mut bench = Bench::new();
    for _ in 0..4 {
        bench.post(SEND, 0);
    }
    if let Fetch::Wr(wr) = bench.host.sends[2] {
        bench.host.sends[2] = Fetch::Malformed(wr, LocQpOpErr);
    }
    let sent = bench.poll();
    assert_eq!(sent.len(), 2);
    assert_eq!(bench.state(), QpState::Rts);
    bench.ack(1);
    bench.check_flushed();
    let statuses = [Success, Success, LocQpOpErr, WrFlushErr];
    let expected: Vec<_> = (0..).zip(statuses).collect();
    assert_eq!(bench.sent(), expected);
}

#[test]
fn an_unreadable_source_fails_its_request_after_those_before_it() {
    let mut bench = Bench::new();
    bench.post_unsignaled(SEND, 0);
    bench.post(SEND, 2000);
    bench.post(SEND, 0);
    bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
    let failed = bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
    assert_eq!(failed.packet.bth.psn, psn(1));
    let fault = TransmitFault::Local(LocProtErr);
    bench
        .qp
        .transmit_failed(NOW, &failed, fault, &mut bench.host);
    // The request before it didn't request an acknowledgment, so it must be sent again.
    let again = bench.poll();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].packet.bth.psn, psn(0));
    assert!(again[0].packet.bth.ack_req);
    // The packet whose payload could not be read was never sent.
    bench.nak(1, NakCode::PsnSequence);
    assert_eq!(bench.sent(), []);
    bench.ack(0);
    bench.check_flushed();
    assert_eq!(bench.sent(), [(1, LocProtErr), (2, WrFlushErr)]);
}

#[test]
fn packets_of_a_failed_request_acknowledge_those_before_it() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.post(SEND, 2000);
    for _ in 0..2 {
        bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
    }
    let failed = bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
    assert_eq!(failed.packet.bth.psn, psn(2));
    let fault = TransmitFault::Local(LocProtErr);
    bench
        .qp
        .transmit_failed(NOW, &failed, fault, &mut bench.host);
    // The responder has carried out packets 0 and 1, so it answers a duplicate of packet 0 with an
    // acknowledgment of packet 1.
    bench.ack(1);
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, Success), (1, LocProtErr)]);
}

#[test]
fn a_partly_acknowledged_request_may_have_an_unreadable_source() {
    let mut bench = Bench::new();
    bench.post(SEND, 4000);
    for _ in 0..2 {
        bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
    }
    bench.ack(0);
    let third = bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
    let fault = TransmitFault::Local(LocProtErr);
    bench
        .qp
        .transmit_failed(NOW, &third, fault, &mut bench.host);
    bench.ack(1);
    assert_eq!(bench.qp.poll_timeout(), None);
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, LocProtErr)]);
}

#[test]
fn requests_continue_across_the_psn_wrap() {
    let mut bench = Bench::new();
    for round in 0..40 {
        bench.post(SEND, 1 << 19);
        let sent = bench.psns();
        assert_eq!(sent.len(), 512);
        bench.ack(round * 512 + 511);
    }
    assert_eq!(bench.sent().len(), 40);
}

/// IBTA 1.x §9.7.6.1.3: no less than T, no more than 4 T.
#[test]
fn short_timeouts_use_the_latitude_that_they_have() {
    for (exponent, expected) in [
        (1, 4 << 1),
        (7, 4 << 7),
        (8, 1 << 10),
        (9, 1 << 10),
        (10, 1 << 10),
        (11, 1 << 11),
        (14, 1 << 14),
        (31, 1 << 31),
    ] {
        let mut bench = Bench::new();
        bench.change(Attrs {
            timeout: Some(exponent),
            ..Attrs::default()
        });
        bench.post(SEND, 0);
        bench.poll();
        let due = NOW.after(Duration(4_096 * expected));
        assert_eq!(bench.end_of_timer(), Some(due), "exponent {exponent}");
    }
}
