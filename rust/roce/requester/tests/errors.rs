// SPDX-License-Identifier: GPL-2.0

//! Errors: which request fails how, and what becomes of the others.

use super::*;

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
fn a_read_whose_answer_was_lost_before_a_fatal_nak_is_flushed() {
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
    // Found before anything is sent, …
    for (op, length) in [(READ, 3000), (ADD, 8)] {
        let mut bench = Bench::new();
        bench.host.send_fault = Some(LocProtErr);
        bench.post(op, length);
        bench.post(SEND, 0);
        bench.check_flushed();
        assert_eq!(bench.sent(), [(0, LocProtErr), (1, WrFlushErr)]);
    }
    // … or when the answer comes.
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
    let invalidating = SendOp::Send(SendTail::Invalidate(Rkey(1)));
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
fn reads_without_a_credit_fail_at_once() {
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
fn a_read_that_was_taken_may_lose_its_credits() {
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
    let creditless = Attrs {
        max_rd_atomic: Some(0),
        ..Attrs::default()
    };
    bench.qp.modify(NOW, &creditless, &mut bench.host).unwrap();
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
