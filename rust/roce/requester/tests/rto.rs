// SPDX-License-Identifier: GPL-2.0

//! Retransmission timeouts (RTO).

use super::*;

/// The RTO before the first measurement of the round-trip time.
const INITIAL: Duration = Duration(64_000_000);
/// The minimum RTO.
const LEAST: Duration = Duration(1_000_000);

/// Posts a WRITE of `packets` packets, and sends what may be sent.
fn write(bench: &mut Bench, packets: u32) -> Vec<u32> {
    bench.post(WRITE, (packets * MTU) as usize);
    bench.psns()
}

/// Creates a QP that has measured a round-trip time of zero with its first packet.
fn measured() -> Bench {
    let mut bench = Bench::new();
    write(&mut bench, 1);
    bench.ack(0);
    bench
}

#[test]
fn a_lost_tail_is_sent_again_without_a_retry() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        retry_cnt: Some(0),
        ..Attrs::default()
    });
    assert_eq!(write(&mut bench, 3), [0, 1, 2]);
    bench.end_rto();
    assert_eq!(bench.now, NOW.after(INITIAL));
    let again = bench.poll();
    assert_eq!(again.len(), 1, "only the oldest packet");
    assert!(again[0].packet.bth.psn == FIRST && again[0].packet.bth.ack_req);
    bench.ack(0);
    assert_eq!(bench.psns(), [1, 2], "the rest was lost, too");
    bench.ack(2);
    assert_eq!(bench.sent(), [(0, Success)]);
    let counts = [Count::Rto, Count::CompleterRetry].map(|count| bench.host.count_of(count));
    assert_eq!(counts, [1, 1]);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn a_slow_peer_costs_one_packet() {
    let mut bench = Bench::new();
    assert_eq!(write(&mut bench, 200).len(), 200);
    bench.end_rto();
    assert_eq!(bench.psns(), [0]);
    for n in [59, 119, 199] {
        bench.ack(n);
        assert_eq!(bench.psns(), []);
    }
    assert_eq!(bench.sent(), [(0, Success)]);
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 0);
    // The limit of packets in flight is the former one. Few packets are sent at once.
    assert_eq!(write(&mut bench, 600).len(), 188);
    assert_eq!(bench.qp.requester.limit_after_recovery(), 512);
}

#[test]
fn only_the_oldest_packet_is_sent_after_an_rto() {
    let mut bench = Bench::new();
    bench.post(WRITE, MTU as usize);
    bench.post(ADD, 8);
    bench.post(READ, 8);
    assert_eq!(bench.psns(), [0, 1, 2]);
    bench.end_rto();
    assert_eq!(bench.psns(), [0]);
    bench.ack(0);
    assert_eq!(bench.psns(), [1, 2]);
}

#[test]
fn the_limit_in_flight_grows_after_a_loss() {
    let mut bench = Bench::new();
    assert_eq!(write(&mut bench, 600).len(), 512);
    bench.end_rto();
    assert_eq!(bench.psns(), [0]);
    bench.ack(0);
    assert_eq!(bench.psns(), [1, 2], "slow start");
    bench.ack(2);
    assert_eq!(bench.psns(), [3, 4, 5, 6]);
    bench.ack(6);
    assert_eq!(bench.psns(), (7..15).collect::<Vec<_>>());
}

#[test]
fn each_rto_doubles_the_next_until_a_measurement() {
    let mut bench = measured();
    write(&mut bench, 1);
    let mut rto = LEAST;
    while bench.qp.poll_timeout() < bench.end_of_timer() {
        let end = bench.now.after(rto);
        bench.end_rto();
        assert_eq!(bench.now, end);
        assert_eq!(bench.psns(), [1]);
        rto.0 *= 2;
    }
    bench.ack(1);
    write(&mut bench, 1);
    assert_eq!(bench.qp.poll_timeout(), Some(bench.now.after(rto)));
    bench.ack(2);
    write(&mut bench, 1);
    assert_eq!(bench.qp.poll_timeout(), Some(bench.now.after(LEAST)));
}

#[test]
fn an_rto_learns_a_longer_round_trip_time() {
    let mut bench = measured();
    let round_trip = Duration(5_000_000);
    let mut resent = 0;
    for n in 1..40 {
        write(&mut bench, 1);
        let answered = bench.now.after(round_trip);
        while bench.qp.poll_timeout() < Some(answered) {
            bench.end_rto();
            assert_eq!(bench.psns(), [n]);
            resent += 1;
        }
        bench.now = answered;
        bench.ack(n);
    }
    assert!(resent <= 5, "{resent}");
}

/// Returns how many requests are sent again while 40 messages of `op` with `packets` packets are
/// answered one packet after another, 5 ms after the first copy of the request was sent.
fn learn(op: SendOp, packets: u32, answer: impl Fn(&mut Bench, u32, u32, Aeth)) -> usize {
    let mut bench = measured();
    let round_trip = Duration(5_000_000);
    let mut resent = 0;
    let mut first = 1;
    for message in 0..40 {
        let aeth = Aeth {
            msn: 2 + message,
            ..DONE
        };
        bench.post(op, (packets * MTU) as usize);
        assert!(!bench.poll().is_empty());
        let answered = bench.now.after(round_trip);
        while bench.qp.poll_timeout() < Some(answered) {
            bench.end_rto();
            resent += bench.poll().len();
        }
        bench.now = answered;
        for index in 0..packets {
            answer(&mut bench, first + index, index, aeth);
            resent += bench.poll().len();
        }
        first += packets;
    }
    assert_eq!(bench.sent().len(), 41);
    resent
}

#[test]
fn an_rto_learns_a_longer_round_trip_time_from_each_operation() {
    let resent = learn(WRITE, 4, |bench, n, _, _| bench.ack(n));
    assert!(resent <= 20, "{resent}");
    let resent = learn(READ, 2, |bench, n, index, aeth| {
        let part = match index {
            0 => ReadPart::First(aeth),
            _ => ReadPart::Last(aeth),
        };
        bench.read_response(n, part, MTU);
    });
    assert!(resent <= 20, "{resent}");
}

#[test]
fn the_rto_follows_the_round_trip_time() {
    let mut bench = Bench::new();
    let round_trip = Duration(2_000_000);
    for n in 0..60 {
        write(&mut bench, 1);
        bench.now = bench.now.after(round_trip);
        bench.ack(n);
    }
    write(&mut bench, 1);
    let rto = bench.qp.poll_timeout().unwrap().since(bench.now);
    assert!((3_000_000..3_100_000).contains(&rto.0), "{rto:?}");
    for n in 60..300 {
        bench.ack(n);
        write(&mut bench, 1);
    }
    let rto = bench.qp.poll_timeout().unwrap().since(bench.now);
    assert!((1_000_000..1_100_000).contains(&rto.0), "{rto:?}");
}

#[test]
fn responses_to_resent_packets_are_not_timed() {
    let mut bench = measured();
    write(&mut bench, 1);
    bench.end_rto();
    assert_eq!(bench.psns(), [1]);
    bench.ack(1);
    write(&mut bench, 1);
    let doubled = Duration(2 * LEAST.0);
    assert_eq!(bench.qp.poll_timeout(), Some(bench.now.after(doubled)));
}

#[test]
fn without_a_timeout_there_is_no_rto() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        timeout: Some(0),
        ..Attrs::default()
    });
    write(&mut bench, 1);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn packets_that_request_no_response_are_not_sent_again() {
    let mut bench = Bench::new();
    bench.post_unsignaled(WRITE, 0);
    assert_eq!(bench.psns(), [0]);
    assert_eq!(bench.qp.poll_timeout(), bench.end_of_timer());
    bench.post(WRITE, 0);
    assert_eq!(bench.psns(), [1]);
    bench.end_rto();
    assert_eq!(bench.psns(), [0]);
}

#[test]
fn a_lost_read_response_is_requested_again() {
    let mut bench = Bench::new();
    bench.post(READ, 3 * MTU as usize);
    bench.post(READ, 8);
    assert_eq!(bench.psns(), [0, 3]);
    bench.read_response(0, ReadPart::First(DONE), MTU);
    bench.end_rto();
    assert_eq!(bench.psns(), [1], "one request");
    bench.read_response(1, ReadPart::First(DONE), MTU);
    assert_eq!(bench.psns(), [3]);
    bench.read_response(2, ReadPart::Last(DONE), MTU);
    bench.read_response(3, ReadPart::Only(DONE), 8);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 1);
}

#[test]
fn naks_after_an_rto_cost_no_retry_before_progress() {
    let mut bench = Bench::new();
    bench.change(Attrs {
        retry_cnt: Some(0),
        ..Attrs::default()
    });
    write(&mut bench, 3);
    bench.end_rto();
    assert_eq!(bench.psns(), [0]);
    bench.nak(0, NakCode::PsnSequence);
    assert_eq!(bench.psns(), []);
    bench.ack(0);
    assert_eq!(bench.psns(), [1, 2]);
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 1);
}
