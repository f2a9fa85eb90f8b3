// SPDX-License-Identifier: GPL-2.0

//! Tests of READs, atomics and the other requests whose response is more than an acknowledgment.

use super::*;

const MIDDLE: ReadPart = ReadPart::Middle;
const LAST: ReadPart = ReadPart::Last(DONE);
const ONLY: ReadPart = ReadPart::Only(DONE);
const FIRST_PART: ReadPart = ReadPart::First(DONE);

pub(super) fn reth_of(transmit: &Transmit) -> (u32, u64, u32) {
    match transmit.packet.body {
        Body::ReadRequest(reth) => {
            let offset = reth.va - REMOTE.va;
            (transmit.packet.bth.psn.ahead_of(FIRST), offset, reth.length)
        }
        body => panic!("{body:?}"),
    }
}

#[test]
fn a_read_takes_a_psn_per_response() {
    for (length, next) in [(0, 1), (1, 1), (1024, 1), (1025, 2), (3072, 3)] {
        let mut bench = Bench::new();
        bench.post(READ, length);
        bench.post(SEND, 0);
        let sent = bench.poll();
        assert_eq!(reth_of(&sent[0]), (0, 0, length as u32));
        assert_eq!(sent[1].packet.bth.psn, psn(next));
    }
}

#[test]
fn responses_are_scattered_and_complete_the_read() {
    let mut bench = Bench::new();
    bench.post(READ, 2500);
    bench.poll();
    bench.read_response(0, FIRST_PART, MTU);
    bench.read_response(1, MIDDLE, MTU);
    assert_eq!(bench.sent(), []);
    bench.read_response(2, LAST, 452);
    assert_eq!(bench.sent(), [(0, Success)]);
    assert_eq!(bench.host.send_wcs[0].byte_len, 2500);
    let mut expected = vec![1; 1024];
    expected.extend(vec![2; 1024]);
    expected.extend(vec![3; 452]);
    assert_eq!(bench.host.send_buffers[0], expected);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn a_read_response_whose_memory_is_absent_may_arrive_again() {
    let mut bench = Bench::new();
    bench.post(READ, 1500);
    bench.poll();
    bench.read_response(0, FIRST_PART, MTU);
    bench.host.absent = true;
    for _ in 0..2 {
        bench.read_response(1, LAST, 476);
        assert_eq!(bench.sent(), []);
    }
    bench.host.absent = false;
    bench.read_response(1, LAST, 476);
    assert_eq!(bench.sent(), [(0, Success)]);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn a_read_is_requested_again_from_the_missing_response_on() {
    let mut bench = Bench::new();
    bench.post(READ, 4096);
    bench.post(SEND, 0);
    bench.poll();
    bench.read_response(0, FIRST_PART, MTU);
    bench.read_response(2, MIDDLE, MTU);
    bench.read_response(3, LAST, MTU);
    let again = bench.poll();
    assert_eq!(reth_of(&again[0]), (1, 1024, 3072));
    assert_eq!(again[1].packet.bth.psn, psn(4));
    assert_eq!(again.len(), 2, "the READ is requested again once");
    bench.read_response(1, FIRST_PART, MTU);
    bench.read_response(2, MIDDLE, MTU);
    bench.read_response(3, LAST, MTU);
    bench.ack(4);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
}

#[test]
fn an_acknowledgment_past_a_read_shows_that_the_read_response_was_lost() {
    let mut bench = Bench::new();
    bench.post(SEND, 0);
    bench.post(READ, 2048);
    bench.post(WRITE, 2048);
    bench.post(SEND, 0);
    assert_eq!(bench.psns(), [0, 1, 3, 4, 5]);
    bench.ack(4);
    assert_eq!(bench.sent(), [(0, Success)]);
    // Acknowledged requests aren't sent again.
    let again = bench.poll();
    assert_eq!(reth_of(&again[0]), (1, 0, 2048));
    assert_eq!(again[1].packet.bth.psn, psn(5));
    assert_eq!(again.len(), 2);
    // A repeated acknowledgment leads to no further resend.
    bench.ack(4);
    assert_eq!(bench.psns(), []);
    bench.read_response(1, FIRST_PART, MTU);
    assert_eq!(bench.psns(), []);
    bench.read_response(2, LAST, MTU);
    assert_eq!(bench.sent().len(), 3);
    bench.ack(5);
    assert_eq!(bench.sent().len(), 4);
}

#[test]
fn a_response_acknowledges_all_earlier_requests() {
    let mut bench = Bench::new();
    bench.post_unsignaled(SEND, 0);
    bench.post(WRITE, 2000);
    bench.post(READ, 8);
    bench.poll();
    bench.read_response(3, ONLY, 8);
    assert_eq!(bench.sent(), [(1, Success), (2, Success)]);
}

#[test]
fn a_response_acknowledges_no_later_request() {
    let mut bench = Bench::new();
    bench.post(READ, 8);
    bench.post(SEND, 0);
    bench.poll();
    bench.read_response(0, ONLY, 8);
    assert_eq!(bench.sent(), [(0, Success)]);
    assert_eq!(bench.end_of_timer(), Some(bench.now.after(TIMEOUT)));
    bench.ack(1);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
}

#[test]
fn after_a_timeout_the_same_acknowledgment_causes_another_resend() {
    let mut bench = Bench::new();
    bench.post(READ, 8);
    bench.post(SEND, 0);
    bench.poll();
    bench.ack(1);
    assert_eq!(bench.psns(), [0]);
    bench.ack(1);
    assert_eq!(bench.psns(), []);
    bench.time_out();
    assert_eq!(bench.psns(), [0]);
    bench.ack(1);
    assert_eq!(bench.psns(), [0]);
}

#[test]
fn late_responses_to_the_first_read_request_are_accepted_after_a_resend() {
    let mut bench = Bench::new();
    bench.post(READ, 4096);
    bench.poll();
    bench.time_out();
    bench.read_response(0, FIRST_PART, MTU);
    assert_eq!(reth_of(&bench.poll()[0]), (1, 1024, 3072));
    // The responses to the first READ request go on, although the READ was requested again.
    bench.read_response(1, MIDDLE, MTU);
    bench.read_response(1, FIRST_PART, MTU);
    bench.read_response(2, MIDDLE, MTU);
    bench.read_response(3, LAST, MTU);
    assert_eq!(bench.sent(), [(0, Success)]);
}

#[test]
fn max_rd_atomic_limits_the_reads_and_atomics_in_flight() {
    let mut bench = Bench::new();
    for op in [READ, ADD, READ, FLUSH, ATOMIC_WRITE] {
        bench.post(op, 8);
    }
    bench.post(SEND, 0);
    assert_eq!(bench.psns(), [0, 1, 2, 3]);
    bench.read_response(0, ONLY, 8);
    assert_eq!(bench.psns(), [4, 5]);
    bench.time_out();
    assert_eq!(bench.psns(), [1, 2, 3, 4, 5]);
    bench.respond(1, Body::AtomicAck(DONE, 0), 0);
    bench.read_response(2, ONLY, 8);
    bench.read_response(3, ONLY, 0);
    bench.read_response(4, ONLY, 0);
    bench.ack(5);
    let all: Vec<_> = (0..6).map(|id| (id, Success)).collect();
    assert_eq!(bench.sent(), all);
}

#[test]
fn long_reads_are_sent_as_several_requests() {
    const SPAN: u32 = 128;
    let mut bench = Bench::new();
    let length = (2 * SPAN + 10) * MTU;
    bench.post(READ, length as usize);
    bench.post(SEND, 0);
    let sent = bench.poll();
    let piece = SPAN * MTU;
    let expected = [
        (0, 0, piece),
        (SPAN, u64::from(piece), piece),
        (2 * SPAN, 2 * u64::from(piece), 10 * MTU),
    ];
    assert_eq!(
        sent.iter().take(3).map(reth_of).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(sent[3].packet.bth.psn, psn(2 * SPAN + 10));
    let respond = |bench: &mut Bench, from: u32, to: u32| {
        for n in from..to {
            let ends = (n + 1) % SPAN == 0 || n + 1 == 2 * SPAN + 10;
            let starts = n % SPAN == 0;
            let part = match (starts, ends) {
                (true, _) => FIRST_PART,
                (_, true) => LAST,
                _ => MIDDLE,
            };
            bench.read_response(n, part, MTU);
        }
    };
    respond(&mut bench, 0, 100);
    // Response 100 is lost. Each new READ request ends where an earlier one ended.
    bench.read_response(101, MIDDLE, MTU);
    let again = bench.poll();
    assert_eq!(
        reth_of(&again[0]),
        (100, 100 * u64::from(MTU), piece - 100 * MTU)
    );
    assert_eq!(reth_of(&again[1]), expected[1]);
    assert_eq!(again.len(), 4);
    respond(&mut bench, 100, 2 * SPAN + 10);
    bench.ack(2 * SPAN + 10);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
}

#[test]
fn the_number_of_responses_in_flight_is_bounded() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        max_rd_atomic: Some(100),
        ..Attrs::default()
    });
    bench
        .host
        .post_send_with(READ, vec![], |wr| wr.length = 1 << 30);
    assert_eq!(bench.psns(), [0, 128, 256, 384]);
    // However many packets are lost, at least two READ requests may be in flight.
    let mut sent = vec![];
    for _ in 0..3 {
        bench.time_out();
        sent.push(bench.psns());
    }
    assert_eq!(sent, [[0, 128]; 3]);
}

#[test]
fn losses_shorten_later_read_requests() {
    let mut bench = Bench::new();
    for (losses, span) in [(0, 128), (2, 64), (8, 2)] {
        for _ in 0..losses {
            bench.post(SEND, 0);
            bench.poll();
            bench.time_out();
            bench.poll();
            let newest = bench.qp.requester.sent.ahead_of(FIRST) - 1;
            bench.ack(newest);
        }
        let first = bench.qp.requester.sent.ahead_of(FIRST);
        let length = 200 * MTU;
        bench.post(READ, length as usize);
        let requests = bench.poll();
        let (_, _, asked) = reth_of(&requests[0]);
        assert_eq!(asked, span * MTU, "{losses} more losses");
        assert_eq!(bench.state(), QpState::Rts);
        for n in 0..200 {
            let last = (n + 1) % span == 0 || n == 199;
            let part = if last { LAST } else { MIDDLE };
            let part = if span == 1 { ONLY } else { part };
            bench.read_response(first + n, part, MTU);
            bench.poll();
        }
    }
}

#[test]
fn a_read_beyond_the_limit_of_responses_in_flight_has_not_started() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        max_rd_atomic: Some(100),
        ..Attrs::default()
    });
    bench.post(READ, 500 * 1024);
    bench.post(READ, 20 * 1024);
    assert_eq!(bench.psns().len(), 4);
    assert_eq!(bench.qp.attrs().sq_psn, psn(500));
    bench.change_state(QpState::Sqd);
    for n in 0..500 {
        let part = match (n % 128, n) {
            (127, _) | (_, 499) => LAST,
            (0, _) => FIRST_PART,
            _ => MIDDLE,
        };
        bench.read_response(n, part, MTU);
    }
    assert_eq!(bench.psns(), []);
    assert!(!bench.qp.attrs().sq_draining);
    bench.change_state(QpState::Rts);
    assert_eq!(bench.psns(), [500]);
}

#[test]
fn atomics_return_the_original() {
    let mut bench = Bench::new();
    bench.post(ADD, 8);
    bench.poll();
    bench.respond(0, Body::AtomicAck(DONE, 0x1122), 0);
    assert_eq!(bench.host.send_buffers[0], 0x1122u64.to_ne_bytes());
    assert_eq!(bench.sent(), [(0, Success)]);
}

#[test]
fn responses_must_fit_their_request() {
    let failed = Aeth {
        syndrome: Syndrome::Nak(NakCode::RemoteAccess),
        msn: 0,
    };
    let read = Body::ReadResponse;
    let cases = [
        (READ, 2000, read(FIRST_PART), 1023),
        (READ, 2000, read(ReadPart::First(failed)), 1024),
        (READ, 2000, read(ONLY), 1024),
        (READ, 2000, read(LAST), 1024),
        (READ, 8, read(FIRST_PART), 8),
        (READ, 8, read(ONLY), 9),
        (READ, 8, read(ONLY), 0),
        (READ, 0, read(ONLY), 1),
        (READ, 8, Body::AtomicAck(DONE, 0), 0),
        (ADD, 8, read(ONLY), 8),
        (ADD, 8, Body::AtomicAck(failed, 0), 0),
        (FLUSH, 8, Body::AtomicAck(DONE, 0), 0),
        (FLUSH, 8, read(ONLY), 8),
        (ATOMIC_WRITE, 8, read(LAST), 0),
        (SEND, 8, read(ONLY), 8),
        (WRITE, 8, Body::AtomicAck(DONE, 0), 0),
    ];
    for (op, length, response, payload_len) in cases {
        let mut bench = Bench::new();
        bench.post(op, length);
        bench.post(SEND, 0);
        bench.poll();
        bench.respond(0, response, payload_len);
        bench.check_flushed();
        let expected = [(0, BadRespErr), (1, WrFlushErr)];
        assert_eq!(bench.sent(), expected, "{op:?} {response:?}");
    }
}

#[test]
fn a_misfit_response_without_an_msn_fails_its_request_with_the_last_retry() {
    let mut bench = Bench::new();
    bench.post(READ, 8);
    bench.poll();
    bench.respond(0, Body::ReadResponse(MIDDLE), 8);
    assert_eq!((bench.sent(), bench.state()), (vec![], QpState::Rts));
    while bench.state() == QpState::Rts {
        bench.poll();
        bench.time_out();
    }
    assert_eq!(bench.sent(), [(0, BadRespErr)]);
}

#[test]
fn empty_reads_scatter_nothing() {
    let mut bench = Bench::new();
    bench.post(READ, 0);
    bench.poll();
    bench.host.send_fault = Some(LocProtErr);
    bench.read_response(0, ONLY, 0);
    assert_eq!(bench.sent(), [(0, Success)]);
}

#[test]
fn a_request_whose_response_precedes_the_resend_is_not_sent_again() {
    let mut bench = Bench::new();
    bench.post(ADD, 8);
    bench.post(ADD, 8);
    bench.poll();
    bench.time_out();
    bench.respond(0, Body::AtomicAck(DONE, 0), 0);
    assert_eq!(bench.psns(), [1]);
    bench.respond(1, Body::AtomicAck(DONE, 0), 0);
    assert_eq!(bench.psns(), []);
    assert_eq!(bench.sent().len(), 2);
    // No READ or atomic is in flight any more.
    for _ in 0..4 {
        bench.post(ADD, 8);
    }
    assert_eq!(bench.psns(), [2, 3, 4, 5]);
}
