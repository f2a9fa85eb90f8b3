// SPDX-License-Identifier: GPL-2.0

//! Tests of errors: the status of the failed request, and the fate of the others.

use super::*;
use crate::requester::{Requester, SendWqe};

#[test]
fn fatal_naks_fail_their_request_and_flush_the_rest() {
    for (code, status) in [
        (NakCode::InvalidRequest, RemInvReqErr),
        (NakCode::RemoteAccess, RemAccessErr),
        (NakCode::RemoteOperational, RemOpErr),
        (NakCode::InvalidRdRequest, BadRespErr),
    ] {
        let mut bench = Bench::new();
        bench.post(SEND, 0);
        bench.post_unsignaled(WRITE, 3000);
        bench.post_unsignaled(SEND, 0);
        for _ in 0..20 {
            bench.post(SEND, 0);
        }
        bench.poll();
        bench.nak(2, code);
        bench.check_flushed();
        let mut expected = vec![(0, Success), (1, status)];
        expected.extend((2..23).map(|id| (id, WrFlushErr)));
        assert_eq!(bench.sent(), expected);
    }
}

#[test]
fn a_read_without_response_before_a_fatal_nak_is_flushed() {
    let mut bench = Bench::new();
    bench.post(READ, 2000);
    bench.post(SEND, 0);
    bench.post(WRITE, 0);
    bench.poll();
    bench.nak(3, NakCode::RemoteAccess);
    bench.check_flushed();
    let expected = [(0, WrFlushErr), (1, WrFlushErr), (2, RemAccessErr)];
    assert_eq!(bench.sent(), expected);
}

#[test]
fn a_read_may_be_refused_half_way() {
    let mut bench = Bench::new();
    bench.post(READ, 3000);
    bench.poll();
    bench.read_response(0, ReadPart::First(DONE), MTU);
    bench.nak(1, NakCode::RemoteAccess);
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, RemAccessErr)]);
}

#[test]
fn local_memory_faults_end_the_queue() {
    // The error is found before anything is sent, …
    for (op, length) in [(READ, 3000), (ADD, 8)] {
        let mut bench = Bench::new();
        bench.host.send_fault = Some(LocProtErr);
        bench.post(op, length);
        bench.post(SEND, 0);
        bench.check_flushed();
        assert_eq!(bench.sent(), [(0, LocProtErr), (1, WrFlushErr)]);
    }
    // … or when the response arrives.
    let answers = [
        (READ, Body::ReadResponse(ReadPart::Only(DONE)), 8),
        (ADD, Body::AtomicAck(DONE, 0), 0),
    ];
    for (op, answer, length) in answers {
        let mut bench = Bench::new();
        bench.post(op, 8);
        bench.poll();
        bench.host.send_fault = Some(LocLenErr);
        bench.respond(0, answer, length);
        bench.check_flushed();
        assert_eq!(bench.sent(), [(0, LocLenErr)]);
    }
}

#[test]
fn a_request_that_fails_when_it_is_sent_again_ends_with_its_fault() {
    for others in 0..2 {
        let mut bench = Bench::new();
        bench.post(READ, 8);
        bench.post(ATOMIC_WRITE, 8);
        (0..others).for_each(|_| bench.post(SEND, 8));
        bench.poll();
        bench.time_out();
        let again = bench.qp.poll_transmit(bench.now, &mut bench.host);
        assert_eq!(again.unwrap().packet.bth.psn, psn(0));
        let again = bench.qp.poll_transmit(bench.now, &mut bench.host).unwrap();
        let fault = TransmitFault::Local(LocProtErr);
        bench
            .qp
            .transmit_failed(bench.now, &again, fault, &mut bench.host);
        // The responses to the first copies.
        bench.read_response(0, ReadPart::Only(DONE), 8);
        bench.read_response(1, ReadPart::Only(DONE), 0);
        bench.poll();
        let mut expected = vec![(0, Success), (1, LocProtErr)];
        expected.extend((0..others).map(|other| (2 + other, WrFlushErr)));
        assert_eq!(bench.sent(), expected);
    }
}

#[test]
fn a_forged_wait_acknowledges_nothing() {
    let mut bench = Bench::new();
    (0..3).for_each(|_| bench.post(SEND, 0));
    bench.poll();
    bench.rnr_with(2, 1, 0x70_0000);
    assert_eq!(bench.sent(), []);
    bench.time_out();
    assert_eq!(bench.psns(), [0, 1, 2]);
    // An RNR NAK of the peer acknowledges the requests before its PSN.
    bench.rnr_with(2, 1, 2);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
}

#[test]
fn a_failed_local_operation_waits_for_those_before_it() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.host.send_fault = Some(MwBindErr);
    bench.post(SendOp::Local(LocalOp::BindMw), 0);
    bench.post(SEND, 0);
    assert_eq!(bench.psns(), [0]);
    assert_eq!((bench.sent(), bench.state()), (vec![], QpState::Rts));
    bench.ack(0);
    bench.check_flushed();
    assert_eq!(
        bench.sent(),
        [(0, Success), (1, MwBindErr), (2, WrFlushErr)]
    );
}

#[test]
fn operations_that_the_service_lacks_fail_at_once() {
    let bind = SendOp::Local(LocalOp::BindMw);
    let invalidating = SendOp::Send(SendExtra::Invalidate(Rkey(1)));
    let dest = UdDest {
        qpn: Qpn::new(1),
        qkey: Qkey(1),
    };
    let datagram = SendOp::Datagram(dest, None);
    let all = [
        SEND,
        invalidating,
        WRITE,
        bind,
        READ,
        ADD,
        ATOMIC_WRITE,
        FLUSH,
        INVALIDATE,
        REG_MR,
        datagram,
    ];
    for (kind, works) in [
        (
            QpKind::Rc,
            &[
                SEND,
                invalidating,
                WRITE,
                bind,
                READ,
                ADD,
                ATOMIC_WRITE,
                FLUSH,
                INVALIDATE,
                REG_MR,
            ][..],
        ),
        (QpKind::Uc, &[SEND, WRITE, bind]),
        (QpKind::Ud, &[datagram]),
        (QpKind::Gsi, &[datagram]),
        (QpKind::RawPacket, &[datagram]),
    ] {
        for op in all {
            let mut bench = Bench::of(kind);
            bench.post(op, 8);
            bench.poll();
            let failed = bench.sent() == [(0, LocQpOpErr)];
            assert_eq!(failed, !works.contains(&op), "{kind:?} {op:?}");
        }
    }
}

#[test]
fn lengths_are_checked_at_once() {
    for (op, length, fails) in [
        (SEND, 1 << 31, false),
        (SEND, (1 << 31) + 1, true),
        (READ, u32::MAX, true),
        (ADD, 7, true),
        (ADD, 8, false),
        (ADD, 16, false),
        (ATOMIC_WRITE, 7, true),
        (ATOMIC_WRITE, 8, false),
        (ATOMIC_WRITE, 9, true),
    ] {
        let mut bench = Bench::new();
        bench
            .host
            .post_send_with(op, vec![], |wr| wr.length = length);
        bench.poll();
        let failed = bench.sent() == [(0, LocLenErr)];
        assert_eq!(failed, fails, "{op:?} {length}");
    }
}

#[test]
fn reads_fail_at_once_if_max_rd_atomic_is_zero() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        max_rd_atomic: Some(0),
        ..Attrs::default()
    });
    bench.post(READ, 8);
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, LocQpOpErr)]);
}

#[test]
fn a_taken_request_fails_if_max_rd_atomic_becomes_zero() {
    let mut bench = Bench::new();
    for _ in 0..5 {
        bench.post(ADD, 8);
    }
    assert_eq!(bench.poll().len(), 4);
    assert!(bench.host.sends.is_empty(), "the fifth was looked at");
    bench.change_state(QpState::Sqd);
    for n in 0..4 {
        bench.respond(n, Body::AtomicAck(DONE, 0), 0);
    }
    let no_reads = Attrs {
        max_rd_atomic: Some(0),
        ..Attrs::default()
    };
    bench.qp.modify(NOW, &no_reads, &mut bench.host).unwrap();
    bench.change_state(QpState::Rts);
    bench.check_flushed();
    assert_eq!(bench.sent()[4], (4, LocQpOpErr));
}

#[test]
fn responses_after_the_end_are_dropped() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.poll();
    bench.nak(0, NakCode::RemoteAccess);
    bench.ack(0);
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, RemAccessErr)]);
    let reason = Count::Dropped(QpDropReason::State);
    assert_eq!(bench.host.count_of(reason), 1);
}

/// A message sequence number that the peer can't have reached.
const FORGED: u32 = 0x55_5555;

#[test]
fn a_forged_nak_is_challenged_and_refuted() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.post_unsignaled(SEND, 0);
    }
    bench.poll();
    for _ in 0..5 {
        bench.nak_with(1, NakCode::RemoteAccess, FORGED);
    }
    assert_eq!((bench.sent(), bench.state()), (vec![], QpState::Rts));
    assert!(bench.host.retired.is_empty(), "nothing is acknowledged");
    // The challenge is sent once.
    let question = bench.poll();
    assert_eq!(question.len(), 1);
    assert_eq!(question[0].packet.bth.psn, psn(2));
    assert!(question[0].packet.bth.ack_req);
    bench.ack(2);
    assert_eq!(bench.host.retired.len(), 3);
    assert_eq!(bench.qp.poll_timeout(), None);
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 0);
    // The challenge doesn't affect later requests.
    bench.post(SEND, 0);
    bench.poll();
    for _ in 0..4 {
        bench.time_out();
        bench.poll();
    }
    assert_eq!(bench.sent(), [(3, RetryExcErr)]);
}

#[test]
fn an_unexpected_forged_response_is_challenged_and_refuted() {
    let forged = Aeth {
        msn: FORGED,
        ..DONE
    };
    for answer in [
        Body::ReadResponse(ReadPart::Only(forged)),
        Body::ReadResponse(ReadPart::Middle),
        Body::AtomicAck(forged, 0),
    ] {
        let mut bench = Bench::new();
        for _ in 0..3 {
            bench.post(SEND, 0);
        }
        bench.poll();
        bench.respond(1, answer, 0);
        assert_eq!((bench.sent(), bench.state()), (vec![], QpState::Rts));
        bench.poll();
        bench.ack(2);
        assert_eq!(bench.sent(), [(0, Success), (1, Success), (2, Success)]);
        assert_eq!(bench.qp.poll_timeout(), None);
    }
}

#[test]
fn an_unrefuted_nak_is_believed_with_the_last_retry() {
    for retries in [0, 3, 7] {
        let mut bench = Bench::new();
        bench.change(Attrs {
            retry_cnt: Some(retries),
            ..Attrs::default()
        });
        for _ in 0..4 {
            bench.post_unsignaled(SEND, 0);
        }
        bench.poll();
        bench.nak_with(2, NakCode::RemoteOperational, FORGED);
        assert_eq!(bench.psns(), [3], "the challenge");
        // A response to earlier requests doesn't refute the NAK.
        bench.ack(0);
        for _ in 0..retries {
            bench.time_out();
            assert_eq!(bench.psns(), [1, 2, 3]);
        }
        bench.time_out();
        bench.check_flushed();
        // The NAK acknowledges nothing: the request before it may have been lost.
        let expected = [(1, WrFlushErr), (2, RemOpErr), (3, WrFlushErr)];
        assert_eq!(bench.sent(), expected);
    }
}

#[test]
fn a_lost_challenge_is_sent_again() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.post_unsignaled(SEND, 0);
    }
    bench.poll();
    bench.now = bench.now.after(Duration(TIMEOUT.0 - 1));
    bench.nak_with(1, NakCode::RemoteAccess, FORGED);
    assert_eq!(bench.psns(), [2], "the challenge");
    // The challenge has the whole timeout, however late it was sent.
    assert_eq!(bench.end_of_timer(), Some(bench.now.after(TIMEOUT)));
    for _ in 0..3 {
        bench.time_out();
        let again = bench.poll();
        assert_eq!(again.len(), 3);
        assert!(again[2].packet.bth.ack_req);
        bench.nak_with(1, NakCode::RemoteAccess, FORGED);
        assert_eq!(bench.psns(), [], "one challenge at a time");
    }
    bench.ack(2);
    assert_eq!((bench.sent(), bench.state()), (vec![], QpState::Rts));
    assert_eq!(bench.host.retired.len(), 3);
}

#[test]
fn a_challenge_outlasts_a_wait_for_a_receive() {
    // The NAK arrives before or during the wait. The longest wait, 655 ms, is nearly ten timeouts.
    for waits_before in [false, true] {
        let mut bench = Bench::new();
        for _ in 0..3 {
            bench.post(SEND, 0);
        }
        bench.poll();
        if waits_before {
            bench.rnr(0, 0);
        }
        bench.nak_with(1, NakCode::InvalidRequest, FORGED);
        if !waits_before {
            bench.rnr(0, 0);
        }
        assert_eq!(bench.psns(), []);
        let resumes = bench.now.after(Duration(655_360_000));
        assert_eq!(bench.qp.poll_timeout(), Some(resumes));
        bench.time_out();
        assert_eq!(bench.psns(), [0, 1, 2]);
        bench.ack(2);
        assert_eq!(bench.sent(), [(0, Success), (1, Success), (2, Success)]);
        assert_eq!(bench.state(), QpState::Rts);
    }
}

#[test]
fn forged_waits_spend_no_rnr_retry() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.poll();
    for _ in 0..10 {
        bench.rnr_with(0, 1, FORGED);
        assert_eq!(bench.psns(), []);
        bench.time_out();
        assert_eq!(bench.psns(), [0]);
    }
    assert_eq!(bench.host.count_of(Count::RnrRetryExceeded), 0);
    // The peer's own RNR NAKs still count: two retries are available.
    for _ in 0..2 {
        bench.rnr(0, 1);
        bench.time_out();
        bench.poll();
    }
    bench.rnr(0, 1);
    assert_eq!(bench.sent(), [(0, RnrRetryExcErr)]);
}

#[test]
fn impossible_msns_do_not_delay_the_error_for_ever() {
    for (rnr_retry, ends) in [(2, true), (7, false)] {
        let mut bench = Bench::new();
        bench.change(Attrs {
            rnr_retry: Some(rnr_retry),
            ..Attrs::default()
        });
        bench.post(SEND, 0);
        bench.poll();
        for _ in 0..64 {
            bench.rnr_with(0, 1, FORGED);
            bench.time_out();
            assert_eq!(bench.psns(), [0]);
        }
        bench.rnr_with(0, 1, FORGED);
        let sent = bench.sent();
        assert_eq!(sent == [(0, RnrRetryExcErr)], ends, "{sent:?}");
    }
}

#[test]
fn forged_waits_before_progress_do_not_count() {
    let mut bench = Bench::new();
    for message in 0..2 {
        bench.post(SEND, 0);
        bench.poll();
        for _ in 0..40 {
            bench.rnr_with(message, 1, FORGED);
            bench.time_out();
            bench.poll();
        }
        bench.ack(message);
    }
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
}

#[test]
fn a_challenge_sets_no_timer_where_there_is_none() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        timeout: Some(0),
        ..Attrs::default()
    });
    bench.post(SEND, 0);
    bench.poll();
    bench.nak_with(0, NakCode::InvalidRequest, FORGED);
    assert_eq!(bench.psns(), [], "the SEND has requested a response");
    assert_eq!(bench.qp.poll_timeout(), None);
    bench.ack(0);
    assert_eq!(bench.sent(), [(0, Success)]);
}

#[test]
fn a_nak_with_a_plausible_msn_takes_effect_at_once() {
    for (msn, believed) in [(1, true), (3, true), (4, true), (5, false), (0, false)] {
        let mut bench = Bench::new();
        for _ in 0..4 {
            bench.post(SEND, 0);
        }
        bench.poll();
        bench.ack(0);
        bench.nak_with(2, NakCode::InvalidRequest, msn);
        let fails = bench.sent().contains(&(2, RemInvReqErr));
        assert_eq!(fails, believed, "{msn}");
    }
}

#[test]
fn a_forged_number_is_not_learnt() {
    let forged = Aeth {
        msn: FORGED,
        ..DONE
    };
    let answers = [
        Body::Ack(forged),
        Body::Ack(Aeth {
            syndrome: Syndrome::Nak(NakCode::PsnSequence),
            ..forged
        }),
        Body::Ack(Aeth {
            syndrome: Syndrome::RnrNak { timer: 1 },
            ..forged
        }),
        Body::ReadResponse(ReadPart::Only(forged)),
        Body::AtomicAck(forged, 0),
    ];
    for answer in answers {
        let mut bench = Bench::new();
        bench.post_unsignaled(SEND, 0);
        bench.post_unsignaled(READ, 8);
        bench.post_unsignaled(ADD, 8);
        bench.post_unsignaled(SEND, 0);
        bench.poll();
        let (n, length) = match answer {
            Body::ReadResponse(_) => (1, 8),
            Body::AtomicAck(..) => (2, 0),
            _ => (0, 0),
        };
        bench.respond(n, answer, length);
        bench.nak_with(3, NakCode::RemoteAccess, FORGED);
        bench.nak_with(3, NakCode::RemoteAccess, FORGED + 1);
        assert_eq!((bench.sent(), bench.state()), (vec![], QpState::Rts));
        // A NAK with the peer's own number still takes effect.
        bench.nak_with(3, NakCode::RemoteAccess, 3);
        assert_eq!(bench.sent().last(), Some(&(3, RemAccessErr)));
    }
}

#[test]
fn numbers_are_heard_behind_packets_that_carry_none() {
    let mut bench = Bench::new();
    for _ in 0..6 {
        bench.post_unsignaled(SEND, 0);
    }
    bench.post_unsignaled(READ, 3 * MTU as usize);
    bench.poll();
    // The response acknowledges the SENDs, and carries no MSN.
    bench.read_response(7, ReadPart::Middle, MTU);
    assert_eq!(bench.host.retired.len(), 6);
    assert_eq!(bench.psns(), [6], "the READ again");
    let seven = Aeth { msn: 7, ..DONE };
    bench.read_response(6, ReadPart::First(seven), MTU);
    bench.read_response(7, ReadPart::Middle, MTU);
    bench.read_response(8, ReadPart::Last(seven), MTU);
    assert_eq!(bench.host.retired.len(), 7);
    bench.post(SEND, 0);
    bench.poll();
    bench.nak_with(9, NakCode::RemoteAccess, 7);
    assert_eq!(bench.sent(), [(7, RemAccessErr)]);
}

#[test]
fn message_numbers_wrap() {
    let mut requester = Requester::new(vec![SendWqe::default(); 8]);
    requester.start(FIRST);
    requester.msn = 0xff_fffe;
    requester.sent = psn(4);
    for (msn, heard) in [
        (3, false),
        (2, true),
        (0xff_ffff, false),
        (1, false),
        (4, true),
        (5, false),
    ] {
        assert_eq!(requester.is_plausible(msn), heard, "{msn}");
        let counted = requester.counted.plus(2);
        requester.record_msn(counted, msn);
        assert_eq!(requester.msn == msn, heard, "{msn}");
        assert_eq!(requester.counted == counted, heard, "{msn}");
    }
}

#[test]
fn a_receive_posted_meanwhile_costs_no_transport_retry() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        retry_cnt: Some(0),
        ..Attrs::default()
    });
    let mut host = MockHost::new();
    let mut peer = connected(QpKind::Rc, FIRST, FIRST, &mut host);
    bench.post(SEND, 0);
    for posted in [false, true] {
        for request in bench.poll() {
            peer.handle_packet(bench.now, &request.packet, &mut host);
        }
        // Between the packet and its response.
        if !posted {
            host.post_recv(8);
        }
        for answer in drain(&mut peer, bench.now, &mut host) {
            bench
                .qp
                .handle_packet(bench.now, &answer.packet, &mut bench.host);
        }
        if !posted {
            assert_eq!(
                bench.qp.poll_timeout(),
                Some(bench.now.after(Duration(10_000)))
            );
            bench.time_out();
        }
    }
    assert_eq!(bench.sent(), [(0, Success)]);
}

#[test]
fn a_read_before_a_request_with_an_unreadable_source_is_still_awaited() {
    let mut bench = Bench::new();
    bench.post(READ, 8);
    bench.post(SEND, 8);
    bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
    let failed = bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
    let fault = TransmitFault::Local(LocProtErr);
    bench
        .qp
        .transmit_failed(NOW, &failed, fault, &mut bench.host);
    for _ in 0..3 {
        bench.time_out();
        assert_eq!(bench.psns(), [0]);
    }
    bench.time_out();
    bench.check_flushed();
    assert_eq!(bench.sent(), [(0, RetryExcErr), (1, WrFlushErr)]);
}
