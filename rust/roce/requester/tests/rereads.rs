// SPDX-License-Identifier: GPL-2.0

//! Tests of lost READ responses with a host that keeps the early ones.

use super::reads::reth_of;
use super::*;

const COOKIE: u16 = 0x2bc;

/// A QP whose host keeps early responses, and the responses that it has received.
struct Reads {
    bench: Bench,
    responses: Vec<(u32, ReadPart, u32)>,
}

impl Reads {
    /// Creates a QP that knows the responder's cookie, and has measured a round-trip time of 100
    /// µs. The next PSN is 1.
    fn new() -> Self {
        let mut bench = Bench::measuring(|bench| bench.ack_with_cookie(0, COOKIE));
        bench.host.keeps_early = true;
        Self {
            bench,
            responses: Vec::new(),
        }
    }

    /// Creates a QP that has asked again for the lost packets 2 and 3 of a READ of ten packets.
    fn with_gap() -> Self {
        let mut reads = Self::new();
        reads.bench.post(READ, 10 * 1024);
        reads.bench.poll();
        reads.respond(1, ReadPart::First(DONE), MTU);
        reads.middle(4);
        assert_eq!(reads.requests(), [(2, 1, 2)]);
        reads
    }

    /// Passes a response, and then the early ones that are expected.
    fn respond(&mut self, n: u32, part: ReadPart, length: u32) {
        self.responses.push((n, part, length));
        self.pass(n, part, length);
        loop {
            let expected = self.bench.qp.oldest_unfinished();
            let kept = &mut self.bench.host.kept;
            let Some(index) = kept.iter().position(|kept| *kept == expected) else {
                return;
            };
            kept.remove(index);
            let n = expected.ahead_of(FIRST);
            let known = self.responses.iter().find(|response| response.0 == n);
            let (n, part, length) = *known.unwrap();
            self.pass(n, part, length);
        }
    }

    fn pass(&mut self, n: u32, part: ReadPart, length: u32) {
        let bench = &mut self.bench;
        let mut packet = bench.response(n, Body::ReadResponse(part), length);
        packet.bth.reserved = with_cookie(COOKIE);
        bench.host.payload = vec![n as u8; length as usize];
        bench.qp.handle_packet(bench.now, &packet, &mut bench.host);
    }

    fn middle(&mut self, n: u32) {
        self.respond(n, ReadPart::Middle, MTU);
    }

    /// Polls READ requests. Returns the PSN of each, and the offset and length of its range in
    /// packets.
    fn requests(&mut self) -> Vec<(u32, u64, u32)> {
        let in_packets = |transmit: &Transmit| {
            let (n, offset, length) = reth_of(transmit);
            (n, offset / u64::from(MTU), length.div_ceil(MTU))
        };
        self.bench.poll().iter().map(in_packets).collect()
    }
}

#[test]
fn only_lost_responses_are_asked_for_again() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 10 * 1024);
    assert_eq!(reads.requests(), [(1, 0, 10)]);
    reads.respond(1, ReadPart::First(DONE), MTU);
    // Packets 2, 3 and 6 are lost.
    reads.middle(4);
    assert_eq!(reads.requests(), [(2, 1, 2)]);
    reads.middle(5);
    reads.middle(7);
    assert_eq!(reads.requests(), [(6, 5, 1)]);
    for n in 8..10 {
        reads.middle(n);
    }
    reads.respond(10, ReadPart::Last(DONE), MTU);
    assert_eq!(reads.requests(), []);
    reads.respond(2, ReadPart::First(DONE), MTU);
    reads.respond(3, ReadPart::Last(DONE), MTU);
    assert_eq!(reads.bench.sent().len(), 1);
    reads.respond(6, ReadPart::Only(DONE), MTU);
    assert_eq!(reads.bench.sent(), [(0, Success), (1, Success)]);
    let expected: Vec<u8> = (1..=10).flat_map(|n| [n; MTU as usize]).collect();
    assert_eq!(reads.bench.host.send_buffers[1], expected);
    assert_eq!(reads.bench.qp.poll_timeout(), None);
    assert_eq!(reads.bench.host.count_of(Count::CompleterRetry), 0);
    assert_eq!(reads.bench.host.count_of(Count::EarlyResponse), 6);
}

#[test]
fn a_response_without_the_cookie_is_not_kept() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 5 * 1024);
    reads.bench.poll();
    reads.bench.read_response(3, ReadPart::Middle, MTU);
    assert!(reads.bench.host.kept.is_empty());
    // Responses 1 and 2 are lost all the same.
    assert_eq!(reads.requests(), [(1, 0, 2)]);
    reads.bench.read_response(4, ReadPart::Middle, MTU);
    // Responses 3 and 4 are asked for, too, once they are the oldest ones.
    reads.respond(1, ReadPart::First(DONE), MTU);
    assert_eq!(reads.requests(), []);
    reads.respond(2, ReadPart::Last(DONE), MTU);
    assert_eq!(reads.requests(), [(3, 2, 2)]);
}

#[test]
fn without_a_cookie_the_requester_goes_back() {
    let mut bench = Bench::new();
    bench.host.keeps_early = true;
    bench.post(READ, 4 * 1024);
    bench.poll();
    bench.read_response(2, ReadPart::Middle, MTU);
    assert!(bench.host.kept.is_empty());
    assert_eq!(reth_of(&bench.poll()[0]), (0, 0, 4 * MTU));
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 1);
}

#[test]
fn the_cookie_is_learned_from_responses() {
    let mut bench = Bench::new();
    bench.host.keeps_early = true;
    bench.post(READ, 4 * 1024);
    bench.poll();
    for (n, part) in [(0, ReadPart::First(DONE)), (3, ReadPart::Last(DONE))] {
        let mut packet = bench.response(n, Body::ReadResponse(part), MTU);
        packet.bth.reserved = with_cookie(COOKIE);
        bench.host.payload = vec![0; MTU as usize];
        bench.qp.handle_packet(bench.now, &packet, &mut bench.host);
    }
    assert_eq!(bench.host.kept, [psn(3)]);
    let again = bench.poll();
    assert_eq!(reth_of(&again[0]), (1, 1024, 2 * MTU));
    assert!(again[0].retransmission);
    assert_eq!(again[0].packet.bth.reserved.extension(), COOKIE);
}

#[test]
fn responses_that_are_lost_again_are_asked_for_after_a_round_trip() {
    let mut reads = Reads::with_gap();
    reads.middle(5);
    assert_eq!(reads.requests(), []);
    reads.respond(2, ReadPart::First(DONE), MTU);
    reads.bench.now = reads.bench.now.after(Duration(400_000));
    reads.middle(6);
    assert_eq!(reads.requests(), [(3, 2, 1)]);
    reads.middle(7);
    assert_eq!(reads.requests(), []);
    assert_eq!(reads.bench.host.count_of(Count::CompleterRetry), 0);
}

#[test]
fn an_acknowledgment_reveals_lost_responses() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 2 * 1024);
    reads.bench.post(READ, 1024);
    reads.bench.post(WRITE, 8);
    reads.bench.post(ADD, 8);
    reads.bench.post(SEND, 8);
    reads.bench.poll();
    reads.respond(1, ReadPart::First(DONE), MTU);
    reads.bench.ack(6);
    let again = reads.bench.poll();
    assert_eq!(reth_of(&again[0]), (2, 1024, MTU));
    assert_eq!(reth_of(&again[1]), (3, 0, MTU));
    assert!(matches!(again[2].packet.body, Body::Atomic(_)));
    assert_eq!(again[2].packet.bth.psn, psn(5));
    assert_eq!(again.len(), 3);
}

#[test]
fn gaps_that_were_too_many_are_found_later() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 60 * 1024);
    assert_eq!(reads.requests(), [(1, 0, 60)]);
    // Each other response is lost.
    for n in (2..60).step_by(2) {
        reads.middle(n);
    }
    reads.respond(60, ReadPart::Last(DONE), MTU);
    let mut asked = Vec::new();
    while reads.bench.sent().len() < 2 {
        let requests = reads.requests();
        assert!(!requests.is_empty(), "{asked:?}");
        for (n, offset, count) in requests {
            assert_eq!((offset, count), (u64::from(n) - 1, 1));
            asked.push(n);
            reads.respond(n, ReadPart::Only(DONE), MTU);
        }
    }
    assert!(asked.into_iter().eq((1..60).step_by(2)));
}

#[test]
fn a_dropped_request_for_lost_responses_is_polled_again() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 4 * 1024);
    reads.bench.poll();
    reads.middle(3);
    assert_eq!(reads.bench.drop_next(), 1);
    reads.bench.now = reads.bench.now.after(Duration(200_000_000));
    let asked = reads.requests();
    assert_eq!(asked.first(), Some(&(1, 0, 2)));
}

#[test]
fn early_responses_are_dropped_after_a_second() {
    let mut reads = Reads::new();
    let rarely = Attrs {
        state: Some(QpState::Sqd),
        timeout: Some(20),
        ..Attrs::default()
    };
    reads.bench.change(rarely);
    reads.bench.post(READ, 4 * 1024);
    reads.bench.poll();
    reads.middle(3);
    assert_eq!(reads.bench.host.kept, [psn(3)]);
    reads.bench.now = reads.bench.now.after(Duration(1_000_000_000));
    let now = reads.bench.now;
    reads.bench.qp.handle_timeout(now, &mut reads.bench.host);
    assert!(reads.bench.host.kept.is_empty());
}

#[test]
fn many_losses_of_a_flight_lower_the_limit_more() {
    for (most, limit) in [(2, 512 - 8), (250, 512 - 8), (270, 384)] {
        let mut reads = Reads::new();
        reads.bench.post(READ, 400 * 1024);
        reads.bench.poll();
        for n in (3..=most).step_by(2) {
            reads.middle(n);
        }
        if most == 2 {
            reads.middle(2);
        }
        let requester = &reads.bench.qp.requester;
        assert_eq!(requester.limit_after_recovery(), limit, "{most}");
    }
}

#[test]
fn error_states_drop_early_responses() {
    for state in [QpState::Err, QpState::Reset] {
        let mut reads = Reads::new();
        reads.bench.post(READ, 4 * 1024);
        reads.bench.poll();
        reads.middle(3);
        assert_eq!(reads.bench.host.kept, [psn(3)]);
        reads.bench.change_state(state);
        assert!(reads.bench.host.kept.is_empty());
    }
}

#[test]
fn the_cookie_of_an_implausible_response_is_not_learned() {
    for known in [false, true] {
        let mut reads = Reads::new();
        if !known {
            reads.bench.qp.requester.reserved = Reserved::default().with_fills_gaps(true);
        }
        reads.bench.post(READ, 10 * 1024);
        reads.bench.poll();
        let aeth = Aeth {
            msn: 0x12_3456,
            ..DONE
        };
        let bodies = [Body::Ack(aeth), Body::ReadResponse(ReadPart::Middle)];
        for (n, body) in (4..).zip(bodies) {
            let mut packet = reads.bench.response(n, body, MTU);
            packet.bth.reserved = with_cookie(0x111);
            let Bench { qp, host, now } = &mut reads.bench;
            qp.handle_packet(*now, &packet, host);
        }
        assert!(reads.bench.host.kept.is_empty());
        assert_ne!(reads.bench.qp.requester.reserved.extension(), 0x111);
    }
}

#[test]
fn an_answer_to_a_part_of_a_read_needs_no_cookie() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 10 * 1024);
    reads.bench.poll();
    reads.respond(1, ReadPart::First(DONE), MTU);
    reads.middle(3);
    assert_eq!(reads.requests(), [(2, 1, 1)]);
    reads.bench.read_response(2, ReadPart::Only(DONE), MTU);
    assert_eq!(reads.bench.state(), QpState::Rts);
    assert_eq!(reads.bench.qp.oldest_unfinished(), psn(3));
}

#[test]
fn acknowledged_writes_are_no_lost_responses() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 10 * 1024);
    reads.bench.post(WRITE, 400 * 1024);
    reads.bench.poll();
    reads.bench.now = reads.bench.now.after(Duration(100_000));
    reads.respond(1, ReadPart::First(DONE), MTU);
    reads.middle(3);
    reads.respond(10, ReadPart::Last(DONE), MTU);
    reads.bench.ack(400);
    assert_eq!(reads.bench.qp.requester.limit_after_recovery(), 512 - 8);
    let asked: Vec<_> = reads.bench.poll().iter().map(reth_of).collect();
    assert_eq!(asked, [(2, 1024, MTU), (4, 3072, 6 * MTU)]);
}

#[test]
fn refused_responses_are_asked_for_when_they_are_the_oldest() {
    let mut reads = Reads::new();
    reads.bench.host.keeps_early = false;
    reads.bench.post(READ, 20 * 1024);
    reads.bench.poll();
    let mut asked = Vec::new();
    for n in 5..20 {
        reads.middle(n);
        asked.extend(reads.requests());
    }
    assert_eq!(asked, [(1, 0, 4)]);
    assert_eq!(reads.bench.qp.requester.limit_after_recovery(), 512 - 8);
    reads.bench.host.keeps_early = true;
    for n in 1..4 {
        reads.middle(n);
    }
    assert_eq!(reads.requests(), []);
    reads.middle(4);
    assert_eq!(reads.requests(), [(5, 4, 15)]);
}

#[test]
fn refused_responses_are_asked_for_before_a_round_trip_is_measured() {
    let mut bench = Bench::new();
    bench.post(READ, 4 * 1024);
    bench.poll();
    // The response to a request that was sent again is not timed.
    bench.end_rto();
    bench.poll();
    let mut asked = Vec::new();
    for (n, part) in [
        (0, ReadPart::First(DONE)),
        (2, ReadPart::Middle),
        (3, ReadPart::Last(DONE)),
        (1, ReadPart::Only(DONE)),
    ] {
        let mut packet = bench.response(n, Body::ReadResponse(part), MTU);
        packet.bth.reserved = with_cookie(COOKIE);
        bench.host.payload = vec![0; MTU as usize];
        bench.qp.handle_packet(bench.now, &packet, &mut bench.host);
        asked.extend(bench.poll().iter().map(reth_of));
    }
    assert_eq!(asked, [(1, 1024, MTU), (2, 2048, 2 * MTU)]);
}

#[test]
fn an_rto_asks_for_lost_responses_only() {
    let mut reads = Reads::with_gap();
    let limit = reads.bench.qp.requester.limit_after_recovery();
    for _ in 0..2 {
        reads.bench.end_rto();
        assert_eq!(reads.requests(), [(2, 1, 2)]);
    }
    assert_eq!(reads.bench.qp.requester.limit_after_recovery(), limit);
    // The acknowledgment timer goes on, and spends retries.
    let first_end = reads.bench.end_of_timer();
    reads.bench.time_out();
    assert!(reads.bench.end_of_timer() > first_end);
    assert_eq!(reads.requests(), [(2, 1, 9)]);
    assert_eq!(reads.bench.host.count_of(Count::CompleterRetry), 1);
}

#[test]
fn early_responses_ask_ever_less_often() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 512 * 1024);
    assert_eq!(
        reads
            .requests()
            .iter()
            .map(|request| request.2)
            .sum::<u32>(),
        512
    );
    reads.respond(1, ReadPart::First(DONE), MTU);
    // Response 2 is lost. The round-trip time has grown, and early responses arrive every 50 µs.
    let mut asked = 0;
    for n in 3..100 {
        reads.bench.now = reads.bench.now.after(Duration(50_000));
        reads.middle(n);
        asked += reads.requests().len();
    }
    // 97 responses in 5 ms, which is less than 100 µs times 2⁶.
    assert!((2..=7).contains(&asked), "{asked}");
}

#[test]
fn progress_after_an_rto_for_responses_ends_the_doubling() {
    let mut reads = Reads::with_gap();
    let mut rtos = Vec::new();
    for _ in 0..3 {
        let begin = reads.bench.now;
        reads.bench.end_rto();
        assert_eq!(reads.requests(), [(2, 1, 2)]);
        rtos.push(reads.bench.now.since(begin));
    }
    assert!(rtos[0] < rtos[1] && rtos[1] < rtos[2]);
    reads.respond(2, ReadPart::First(DONE), MTU);
    let begin = reads.bench.now;
    reads.bench.end_rto();
    assert_eq!(reads.bench.now.since(begin), rtos[0]);
}

#[test]
fn the_cookie_does_not_change() {
    let mut reads = Reads::new();
    reads.bench.post(READ, 1024);
    reads.bench.poll();
    let body = Body::ReadResponse(ReadPart::Only(DONE));
    let mut packet = reads.bench.response(1, body, MTU);
    packet.bth.reserved = with_cookie(0x111);
    reads.bench.host.payload = vec![0; MTU as usize];
    let Bench { qp, host, now } = &mut reads.bench;
    qp.handle_packet(*now, &packet, host);
    assert_eq!(reads.bench.sent().len(), 2);
    assert_eq!(reads.bench.qp.requester.reserved.extension(), COOKIE);
}
