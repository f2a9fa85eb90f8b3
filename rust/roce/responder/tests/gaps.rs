// SPDX-License-Identifier: GPL-2.0

//! Tests of gaps with a host that keeps early packets.

use super::*;
use crate::host::Count;
use crate::wire::packet::GapReport;

/// A responder whose host keeps early packets, and the reserved bits of its peer's requests.
struct Gaps {
    bench: Bench,
    fills_gaps: bool,
    cookie: u16,
}

impl Gaps {
    fn new(fills_gaps: bool) -> Self {
        let mut bench = Bench::starting(QpKind::Rc, 0xff_fffe);
        bench.host.keeps_early = true;
        let mut gaps = Self {
            bench,
            fills_gaps,
            cookie: 0,
        };
        // The responder learns from a packet that is carried out whether the peer fills gaps.
        assert_eq!(gaps.pass(0xff_fffe, false), []);
        let mut packet = gaps.bench.packet(write_only(0, 8), 8);
        packet.bth.psn = Psn::new(0xff_ffff);
        packet.bth.reserved = packet.bth.reserved.with_fills_gaps(fills_gaps);
        gaps.hand_in(&packet);
        let bth = gaps.bench.poll().unwrap().packet.bth;
        assert_eq!(
            (bth.reserved.fills_gaps(), bth.reserved.extension() != 0),
            (fills_gaps, fills_gaps)
        );
        gaps.cookie = bth.reserved.extension();
        gaps
    }

    /// Passes the packet `psn`, then the kept packets that are expected. Returns all responses,
    /// with the number of missing packets that each NAK reports.
    fn pass(&mut self, psn: u32, asks: bool) -> Vec<(Said, u8)> {
        let mut packet = self.bench.packet(write_only(0, 8), 8);
        packet.bth.psn = Psn::new(psn);
        packet.bth.ack_req = asks;
        packet.bth.reserved = packet.bth.reserved.with_fills_gaps(self.fills_gaps);
        packet.bth.reserved = packet.bth.reserved.with_extension(self.cookie);
        self.hand_in(&packet);
        self.hand_in_kept();
        let bench = &mut self.bench;
        core::iter::from_fn(|| bench.poll())
            .map(|transmit| (said(&transmit), report(&transmit)))
            .collect()
    }

    fn hand_in_kept(&mut self) {
        while let Some(kept) = self.next_kept() {
            self.hand_in(&kept);
        }
    }

    fn hand_in(&mut self, packet: &Packet) {
        assert_ne!(self.bench.hand_in(packet), Outcome::Fatal);
        if self.bench.host.early.last() == Some(&None) {
            *self.bench.host.early.last_mut().unwrap() = Some(*packet);
        }
    }

    fn next_kept(&mut self) -> Option<Packet> {
        let expected = self.bench.responder.rq_psn();
        let early = &mut self.bench.host.early;
        let is_next = |kept: &Option<Packet>| kept.is_some_and(|kept| kept.bth.psn == expected);
        let index = early.iter().position(is_next)?;
        early.remove(index)
    }

    /// Passes an early packet without an acknowledgment request to the responder. Polls no
    /// response.
    fn hand_in_early(&mut self, psn: u32, body: Body, payload_len: u32) {
        let mut packet = self.bench.packet(body, payload_len);
        (packet.bth.psn, packet.bth.ack_req) = (Psn::new(psn), false);
        packet.bth.reserved = packet.bth.reserved.with_fills_gaps(self.fills_gaps);
        packet.bth.reserved = packet.bth.reserved.with_extension(self.cookie);
        self.hand_in(&packet);
    }

    fn nak(psn: u32) -> Said {
        Said::Nak(psn, NakCode::PsnSequence)
    }
}

/// Returns the number of missing packets that a NAK reports.
fn report(transmit: &Transmit) -> u8 {
    match said(transmit) {
        Said::Nak(..) => GapReport::decode(transmit.packet.bth.reserved.extension()).missing,
        _ => 0,
    }
}

#[test]
fn each_gap_is_reported_to_a_peer_that_fills_gaps() {
    let mut gaps = Gaps::new(true);
    assert_eq!(gaps.pass(2, false), [(Gaps::nak(0), 2)]);
    assert_eq!(gaps.pass(3, false), []);
    // Packet 4 is missing, too. A NAK reports this later gap.
    assert_eq!(gaps.pass(5, false), [(Gaps::nak(4), 1)]);
    assert_eq!(gaps.pass(0, false), [(Said::Ack(0), 0)]);
    // The later gap is the first one now.
    let both = [(Said::Ack(3), 0), (Gaps::nak(4), 1)];
    assert_eq!(gaps.pass(1, false), both);
    assert_eq!(gaps.pass(4, false), [(Said::Ack(5), 0)]);
    assert_eq!(gaps.pass(6, false), []);
    assert_eq!(gaps.bench.host.counted(Count::EarlyRequest), 3);
}

#[test]
fn a_gap_without_a_nak_is_reported_when_it_is_the_first() {
    let mut gaps = Gaps::new(true);
    assert_eq!(gaps.pass(1, false), [(Gaps::nak(0), 1)]);
    // Gaps at 2 and 4 open before the responder is polled. A NAK reports the latter only.
    for psn in [3, 5] {
        gaps.hand_in_early(psn, write_only(0, 8), 8);
    }
    assert_eq!(gaps.pass(6, false), [(Gaps::nak(4), 1)]);
    let both = [(Said::Ack(1), 0), (Gaps::nak(2), 1)];
    assert_eq!(gaps.pass(0, false), both);
    let both = [(Said::Ack(3), 0), (Gaps::nak(4), 1)];
    assert_eq!(gaps.pass(2, false), both);
}

#[test]
fn a_dropped_nak_of_a_later_gap_reports_nothing() {
    let mut gaps = Gaps::new(true);
    assert_eq!(gaps.pass(1, false), [(Gaps::nak(0), 1)]);
    gaps.hand_in_early(3, write_only(0, 8), 8);
    assert_eq!(said(&gaps.bench.poll().unwrap()), Gaps::nak(2));
    gaps.bench.responder.take_back();
    let both = [(Said::Ack(1), 0), (Gaps::nak(2), 1)];
    assert_eq!(gaps.pass(0, false), both);
}

#[test]
fn an_early_read_is_not_requested_again() {
    let mut gaps = Gaps::new(true);
    assert_eq!(gaps.pass(1, false), [(Gaps::nak(0), 1)]);
    gaps.hand_in_early(2, Body::ReadRequest(reth(0, 8)), 0);
    // The peer goes back, because it has a READ in flight.
    assert_eq!(gaps.pass(0, false), [(Said::Ack(1), 0)]);
    // The READ was lost again.
    assert_eq!(gaps.pass(3, false), []);
    assert_eq!(gaps.pass(4, true), [(Gaps::nak(2), 1)]);
}

#[test]
fn early_packets_that_ask_get_the_nak_again() {
    let mut gaps = Gaps::new(true);
    assert_eq!(gaps.pass(1, false), [(Gaps::nak(0), 1)]);
    assert_eq!(gaps.pass(2, false), []);
    assert_eq!(gaps.pass(3, true), [(Gaps::nak(0), 1)]);
    let mut gaps = Gaps::new(false);
    assert_eq!(gaps.pass(1, false), [(Gaps::nak(0), 0)]);
    assert_eq!(gaps.pass(2, true), []);
}

#[test]
fn early_packets_without_the_cookie_are_dropped() {
    for (fills_gaps, cookie) in [(false, 0), (false, 1), (true, 0), (true, 2)] {
        let mut gaps = Gaps::new(fills_gaps);
        gaps.cookie = cookie;
        assert_eq!(gaps.pass(1, true), [(Gaps::nak(0), 0)]);
        assert_eq!(gaps.pass(2, true), []);
        assert_eq!(gaps.bench.host.early, []);
        assert_eq!(gaps.pass(0, true), [(Said::Ack(0), 0)]);
    }
}

#[test]
fn early_packets_are_dropped_after_a_second() {
    let mut gaps = Gaps::new(true);
    gaps.pass(1, false);
    let end = gaps.bench.responder.early_deadline().unwrap();
    assert_eq!(end, Instant(1_000_000_000));
    let bench = &mut gaps.bench;
    bench
        .responder
        .expire_early(Instant(end.0 - 1), &mut bench.host);
    assert_eq!(bench.host.early.len(), 1);
    bench.responder.expire_early(end, &mut bench.host);
    assert_eq!(bench.host.early.len(), 0);
    assert_eq!(bench.responder.early_deadline(), None);
    assert_eq!(gaps.pass(0, false), []);
    assert_eq!(gaps.bench.responder.rq_psn(), Psn::new(1));
}

#[test]
fn early_packets_stay_while_missing_ones_arrive() {
    let mut gaps = Gaps::new(true);
    gaps.pass(2, false);
    gaps.bench.now = Instant(600_000_000);
    // A further early packet is no progress.
    gaps.pass(3, false);
    let deadline = |gaps: &Gaps| gaps.bench.responder.early_deadline();
    assert_eq!(deadline(&gaps), Some(Instant(1_000_000_000)));
    gaps.pass(0, false);
    assert_eq!(deadline(&gaps), Some(Instant(1_600_000_000)));
    gaps.pass(1, false);
    assert_eq!(deadline(&gaps), None);
}

#[test]
fn early_packets_that_the_host_has_lost_are_requested_again() {
    let mut gaps = Gaps::new(true);
    assert_eq!(gaps.pass(1, false), [(Gaps::nak(0), 1)]);
    gaps.bench.host.early.clear();
    let both = [(Said::Ack(0), 0), (Gaps::nak(1), 0)];
    assert_eq!(gaps.pass(0, false), both);
    assert_eq!(gaps.bench.responder.early_deadline(), None);
}

#[test]
fn an_error_drops_early_packets() {
    let mut gaps = Gaps::new(true);
    gaps.pass(1, false);
    let bench = &mut gaps.bench;
    bench.responder.fail(&bench.context, &mut bench.host);
    assert_eq!(bench.host.early.len(), 0);
    assert_eq!(bench.responder.early_deadline(), None);
}

#[test]
fn a_responder_that_fills_no_gaps_has_no_cookie() {
    let mut bench = Bench::starting(QpKind::Rc, 0);
    bench.context.config.fills_gaps = false;
    let mut packet = bench.packet(write_only(0, 8), 8);
    packet.bth.reserved = packet.bth.reserved.with_fills_gaps(true);
    assert_eq!(bench.hand_in(&packet), Outcome::Executed);
    let bth = bench.poll().unwrap().packet.bth;
    assert_eq!(
        (bth.reserved.fills_gaps(), bth.reserved.extension()),
        (false, 0)
    );
}

#[test]
fn the_rest_of_a_long_gap_is_reported() {
    let mut gaps = Gaps::new(true);
    assert_eq!(gaps.pass(20, false), [(Gaps::nak(0), 15)]);
    assert_eq!(gaps.pass(22, false), [(Gaps::nak(21), 1)]);
    for psn in 0..14 {
        gaps.pass(psn, false);
    }
    let both = [(Said::Ack(14), 0), (Gaps::nak(15), 5)];
    assert_eq!(gaps.pass(14, false), both);
}

#[test]
fn a_peer_that_goes_back_gets_one_nak() {
    let mut gaps = Gaps::new(true);
    let read = Body::ReadRequest(reth(0, 8));
    gaps.hand_in_early(1, read, 0);
    assert_eq!(gaps.pass(2, false), [(Gaps::nak(0), 2)]);
    gaps.hand_in_early(3, read, 0);
    assert_eq!(gaps.pass(4, false), []);
    assert_eq!(gaps.pass(0, false), [(Said::Ack(0), 0)]);
    gaps.hand_in_early(1, read, 0);
    gaps.hand_in_kept();
    let is_nak = |transmit: &Transmit| matches!(said(transmit), Said::Nak(..));
    let bench = &mut gaps.bench;
    assert!(!core::iter::from_fn(|| bench.poll()).any(|transmit| is_nak(&transmit)));
    gaps.hand_in_early(3, read, 0);
    assert_eq!(gaps.pass(5, true).last(), Some(&(Said::Ack(5), 0)));
}

#[test]
fn a_packet_with_the_cookie_of_a_peer_that_goes_back_is_not_kept() {
    let mut gaps = Gaps::new(true);
    gaps.fills_gaps = false;
    gaps.pass(1, false);
    assert!(gaps.bench.host.early.is_empty());
}
