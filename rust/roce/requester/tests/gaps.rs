// SPDX-License-Identifier: GPL-2.0

//! Tests of NAKs of a responder that keeps early packets.

use super::*;
use crate::qp::{Attrs, QpState};
use crate::time::Duration;
use crate::wire::packet::GapReport;

impl Bench {
    /// Passes a sequence NAK to the QP: `missing` packets from `n` on are missing.
    fn gap(&mut self, n: u32, missing: u8) {
        self.report(n, missing, false);
    }

    fn later_gap(&mut self, n: u32, missing: u8) {
        self.report(n, missing, true);
    }

    fn report(&mut self, n: u32, missing: u8, later_gap: bool) {
        let syndrome = Syndrome::Nak(NakCode::PsnSequence);
        let body = Body::Ack(Aeth { syndrome, msn: 0 });
        let mut packet = self.response(n, body, 0);
        let report = GapReport {
            missing,
            is_later: later_gap,
        };
        packet.bth.reserved = Reserved::default().with_extension(report.encode());
        self.qp.handle_packet(self.now, &packet, &mut self.host);
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.now = self.now.after(Duration(nanoseconds));
    }

    /// Creates a QP that has measured a round-trip time of 100 µs.
    fn measured() -> Self {
        Self::measuring(|bench| bench.ack(0))
    }
}

#[test]
fn only_missing_packets_are_sent_again() {
    let mut bench = Bench::new();
    bench.post(WRITE, 10 * 1024);
    assert_eq!(bench.psns().len(), 10);
    bench.gap(2, 3);
    assert_eq!(bench.psns(), [2, 3, 4]);
    bench.post(WRITE, 1024);
    assert_eq!(bench.psns(), [10]);
    bench.ack(10);
    assert_eq!(bench.sent().len(), 2);
    assert_eq!(bench.qp.poll_timeout(), None);
}

#[test]
fn a_nak_without_a_number_has_all_packets_sent_again() {
    let mut bench = Bench::new();
    bench.post(WRITE, 5 * 1024);
    bench.poll();
    bench.gap(2, 0);
    assert_eq!(bench.psns(), [2, 3, 4]);
}

#[test]
fn a_gap_among_reads_has_all_packets_sent_again() {
    let mut bench = Bench::new();
    bench.post(WRITE, 3 * 1024);
    bench.post(READ, 8);
    bench.poll();
    bench.gap(1, 1);
    assert_eq!(bench.psns(), [1, 2, 3]);
}

#[test]
fn later_gaps_are_filled_at_once() {
    let mut bench = Bench::new();
    bench.post(WRITE, 20 * 1024);
    bench.poll();
    bench.gap(2, 1);
    bench.later_gap(5, 2);
    bench.later_gap(9, 1);
    assert_eq!(bench.psns(), [2, 5, 6, 9]);
    bench.later_gap(15, 1);
    assert_eq!(bench.psns(), [15]);
    bench.ack(19);
    assert_eq!(bench.sent().len(), 1);
}

#[test]
fn later_gaps_acknowledge_nothing() {
    let mut bench = Bench::new();
    bench.post(SEND, 8);
    bench.post(SEND, 8);
    bench.poll();
    bench.later_gap(1, 1);
    assert_eq!(bench.sent(), []);
    assert_eq!(bench.psns(), [1]);
}

#[test]
fn a_missing_packet_may_be_lost_again() {
    let mut bench = Bench::measured();
    bench.post(WRITE, 5 * 1024);
    bench.poll();
    bench.gap(1, 1);
    assert_eq!(bench.psns(), [1]);
    // This NAK was sent before the packet could arrive.
    bench.wait(90_000);
    bench.gap(1, 1);
    assert_eq!(bench.psns(), []);
    for _ in 0..20 {
        bench.wait(300_000);
        bench.gap(1, 1);
        assert_eq!(bench.psns(), [1], "this spends no retry");
    }
    assert_eq!(bench.state(), QpState::Rts);
    // The acknowledgment timer is not restarted.
    bench.now = bench.end_of_timer().unwrap();
    assert!(bench.now < NOW.after(Duration(80_000_000)));
}

#[test]
fn naks_of_a_gap_let_new_packets_leave() {
    let mut bench = Bench::new();
    bench.post(SEND, 8);
    bench.poll();
    for _ in 0..3 {
        bench.time_out();
        bench.poll();
    }
    bench.ack(0);
    // The limit is 64 now. A gap lowers it to 48, so that each NAK stands for 12 kept packets.
    bench.post(WRITE, 1 << 20);
    let sent = u32::try_from(bench.psns().len()).unwrap();
    assert_eq!(sent, 64);
    bench.gap(1, 1);
    assert_eq!(bench.psns(), [1]);
    bench.gap(1, 1);
    assert_eq!(bench.psns(), (65..=72).collect::<Vec<_>>());
}

#[test]
fn isolated_losses_hardly_lower_the_limit_in_flight() {
    let mut bench = Bench::measured();
    bench.post(WRITE, 1 << 20);
    let sent = bench.psns();
    bench.gap(9, 1);
    assert_eq!(bench.psns()[0], 9);
    let newest = *sent.last().unwrap();
    bench.ack(newest);
    // All packets arrived. The limit is lowered by a 64th, and grows by one. Few packets are sent
    // at once.
    assert_eq!(bench.psns().len(), 16 + 16);
    assert_eq!(
        bench.qp.requester.limit_after_recovery(),
        512 - 512 / 64 + 1
    );
    // A second loss lowers this limit, not that of packets sent at once.
    bench.wait(100_000);
    bench.gap(newest + 20, 1);
    assert_eq!(bench.qp.requester.limit_after_recovery(), 506 - 506 / 64);
}

#[test]
fn gaps_of_one_window_lower_the_limit_once() {
    let mut bench = Bench::measured();
    bench.post(WRITE, 100 * 1024);
    bench.poll();
    for psn in [5, 10, 15] {
        bench.gap(psn, 1);
        assert_eq!(bench.psns(), [psn]);
    }
    assert_eq!(bench.qp.requester.limit_after_recovery(), 512 - 512 / 64);
}

#[test]
fn a_gap_without_room_does_not_block_the_qp() {
    let mut bench = Bench::new();
    bench.post(WRITE, 1 << 20);
    assert_eq!(bench.psns().len(), 512);
    // The limit shrinks to 384. Gaps farther ahead of the oldest packet are still filled.
    bench.gap(1, 1);
    bench.later_gap(500, 1);
    assert_eq!(bench.psns(), [1, 500]);
    assert_eq!(bench.qp.requester.limit_after_recovery(), 384);
}

#[test]
fn requests_have_the_cookie_of_the_responder() {
    let mut bench = Bench::new();
    bench.post(SEND, 8);
    bench.poll();
    bench.ack_with_cookie(0, 1234);
    bench.post(SEND, 8);
    let sent = bench.poll();
    let bth = sent[0].packet.bth;
    assert_eq!(
        (bth.reserved.fills_gaps(), bth.reserved.extension()),
        (true, 1234)
    );
    // An acknowledgment of another implementation changes nothing.
    bench.ack(1);
    bench.post(SEND, 8);
    assert_eq!(bench.poll()[0].packet.bth.reserved.extension(), 1234);
}

#[test]
fn a_nak_of_a_later_gap_behind_all_packets_acknowledges_nothing() {
    let mut bench = Bench::new();
    bench.post(SEND, 8);
    bench.poll();
    bench.later_gap(1, 1);
    assert_eq!(bench.sent(), []);
}

#[test]
fn a_new_connection_starts_with_few_packets() {
    let mut host = MockHost::new();
    let qp = connected(QpKind::Rc, FIRST, FIRST, &mut host);
    let mut bench = Bench { qp, host, now: NOW };
    bench.post(WRITE, 1 << 20);
    assert_eq!(bench.psns().len(), 64);
    bench.ack(15);
    assert_eq!(bench.psns().len(), 32);
    // An acknowledgment of many packets counts as one of 16.
    bench.ack(63);
    assert_eq!(bench.psns().len(), 48 + 16);
}

#[test]
fn without_retries_requests_have_no_cookie() {
    let mut bench = Bench::new();
    bench.post(SEND, 8);
    bench.poll();
    bench.ack_with_cookie(0, 1234);
    bench.post(SEND, 8);
    assert_eq!(bench.poll()[0].packet.bth.reserved.extension(), 1234);
    bench.ack(1);
    bench.change(Attrs {
        state: Some(QpState::Sqd),
        timeout: Some(0),
        ..Attrs::default()
    });
    bench.post(SEND, 8);
    assert_eq!(bench.poll()[0].packet.bth.reserved, Reserved::default());
}
