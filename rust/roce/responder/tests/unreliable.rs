// SPDX-License-Identifier: GPL-2.0

//! Tests of unreliable connections and datagrams.

use super::*;
use crate::host::{AccessFault, Count, QpDropReason};
use crate::ids::{Imm, Qkey};
use crate::wire::packet::Deth;

#[test]
fn a_loss_drops_the_rest_of_the_message() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.host.post_recv(1, 4096);
    bench.pass(SEND_FIRST, 1024);
    bench.psn = bench.psn.next();
    for (body, len) in [(SEND_MIDDLE, 1024), (send_last(), 8)] {
        bench.pass(body, len);
    }
    assert!(bench.recv_wcs().is_empty());
    assert_eq!(bench.host.dropped(), [QpDropReason::Invalid; 2]);
    // The next message fills the same receive WQE from its start.
    bench.pass(SEND_FIRST, 1024);
    bench.pass(send_last(), 8);
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::Success, 1032)]);
    assert_eq!(bench.answers(), []);
}

#[test]
fn a_new_message_may_start_anywhere() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.host.post_recv(1, 8);
    bench.host.post_recv(2, 8);
    bench.psn = Psn::new(1000);
    bench.pass(send_only(), 8);
    bench.psn = Psn::new(500);
    bench.pass(send_only(), 8);
    assert_eq!(bench.recv_wcs().len(), 2);
    assert_eq!(bench.host.counted(Count::OutOfSeqRequest), 2);
    assert_eq!(bench.responder.rq_psn(), Psn::new(501));
}

#[test]
fn a_first_packet_ends_the_message_before() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.pass(Body::Write(WritePart::First(reth(0, 2000))), 1024);
    bench.pass(Body::Write(WritePart::Only(reth(0, 8), None)), 8);
    bench.host.take_log();
    bench.pass(Body::Write(WritePart::Last(None)), 976);
    assert!(bench.host.take_log().is_empty());
}

/// A page that isn't resident delays the packet, as the network may: the packet arrives again
/// later.
#[test]
fn a_write_to_absent_memory_counts_as_not_received() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.pass(Body::Write(WritePart::First(reth(0, 2056))), 1024);
    let second = bench.psn;
    bench.host.fault = Some(AccessFault::Retry);
    bench.pass_at(second, Body::Write(WritePart::Middle), 1024);
    // The packet is ahead of the expected one, and doesn't end the message either.
    bench.pass_at(Psn::new(1000), write_only(0, 8), 8);
    assert_eq!(bench.responder.rq_psn(), second);
    bench.host.fault = None;
    bench.host.take_log();
    bench.pass_at(second, Body::Write(WritePart::Middle), 1024);
    bench.pass_at(second, Body::Write(WritePart::Middle), 1024);
    assert_eq!(bench.host.take_log().len(), 1);
    bench.pass_at(second.next(), Body::Write(WritePart::Last(None)), 8);
    assert!(bench.host.take_log().is_empty());
}

#[test]
fn packets_after_one_without_resident_memory_are_dropped_with_it() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.pass(Body::Write(WritePart::First(reth(0, 2056))), 1024);
    bench.host.fault = Some(AccessFault::Retry);
    bench.pass(Body::Write(WritePart::Middle), 1024);
    bench.host.fault = None;
    bench.host.take_log();
    bench.pass(Body::Write(WritePart::Last(None)), 8);
    assert!(bench.host.take_log().is_empty());
    assert_eq!(bench.host.dropped().len(), 1);
}

#[test]
fn faults_on_uc_only_drop_packets() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.pass(send_only(), 8);
    bench.pass(send_only(), 1025);
    bench.pass(write_only(0, 9), 8);
    bench.host.fault = Some(AccessFault::Denied);
    bench.pass(write_only(0, 8), 8);
    bench.host.fault = None;
    bench.context.settings.access.write = false;
    bench.pass(write_only(0, 8), 8);
    assert_eq!(
        bench.host.dropped(),
        [
            QpDropReason::NoReceive,
            QpDropReason::Invalid,
            QpDropReason::Invalid,
            QpDropReason::Access,
            QpDropReason::Invalid,
        ]
    );
    assert!(bench.host.take_log().is_empty());
}

#[test]
fn a_message_of_uc_too_long_for_its_receive_is_dropped() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.host.post_recv(1, 1030);
    bench.pass(SEND_FIRST, 1024);
    bench.pass(send_last(), 7);
    bench.pass(SEND_FIRST, 1024);
    bench.pass(SEND_MIDDLE, 1024);
    // The rest of a message that was dropped.
    bench.pass(send_last(), 7);
    assert_eq!(
        bench.host.dropped(),
        [
            QpDropReason::TooLong,
            QpDropReason::TooLong,
            QpDropReason::Invalid,
        ]
    );
    assert!(bench.recv_wcs().is_empty());
    // The receive WQE waits for a message that fits.
    bench.pass(SEND_FIRST, 1024);
    bench.pass(send_last(), 6);
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::Success, 1030)]);
    assert_eq!(bench.answers(), []);
}

/// The error is local. No packet of a peer can cause it.
#[test]
fn a_bad_local_key_breaks_an_unreliable_connection() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.host.post_recv(1, 8);
    bench.host.local_fault = Some(WcStatus::LocProtErr);
    assert_eq!(bench.request(send_only(), 8), Outcome::Fatal);
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::LocProtErr, 0)]);
    assert_eq!(bench.answers(), []);
}

#[test]
fn a_write_with_immediate_completes() {
    let mut bench = Bench::new(QpKind::Uc);
    bench.host.post_recv(1, 0);
    bench.pass(Body::Write(WritePart::Only(reth(0, 8), Some(Imm(3)))), 8);
    let wc = RecvWc {
        opcode: WcOpcode::RecvRdmaWithImm,
        extra: RecvExtra::Imm(Imm(3)),
        ..recv_wc(1, WcStatus::Success, 8)
    };
    assert_eq!(bench.recv_wcs(), [wc]);
}

const QKEY: Qkey = Qkey(0x11_2233);

/// Passes a datagram that doesn't break the QP to the responder.
fn datagram(bench: &mut Bench, qkey: Qkey, extra: SendExtra, len: u32) {
    let outcome = try_datagram(bench, qkey, extra, len);
    assert_eq!(outcome, Outcome::Continue);
}

fn try_datagram(bench: &mut Bench, qkey: Qkey, extra: SendExtra, len: u32) -> Outcome {
    let mut packet = bench.packet(Body::Send(SendPart::Only(extra)), len);
    let src = Qpn::new(0x99);
    packet.service = Service::Ud(Deth { qkey, src });
    bench.context.settings.qkey = QKEY;
    bench.hand_in(&packet)
}

#[test]
fn a_datagram_comes_with_room_for_its_grh() {
    let mut bench = Bench::new(QpKind::Ud);
    bench.host.post_recv(1, 60);
    bench.host.post_recv(2, 40);
    datagram(&mut bench, QKEY, SendExtra::Imm(Imm(6)), 20);
    datagram(&mut bench, QKEY, SendExtra::Plain, 0);
    let wc = RecvWc {
        src_qp: Qpn::new(0x99),
        grh: true,
        ..recv_wc(1, WcStatus::Success, 60)
    };
    assert_eq!(
        bench.host.take_log(),
        [
            Act::ScatterRecv(RecvSlot(1), 40),
            Act::Release(RecvSlot(1)),
            Act::RecvWc(RecvWc {
                extra: RecvExtra::Imm(Imm(6)),
                ..wc
            }),
            Act::ScatterRecv(RecvSlot(2), 40),
            Act::Release(RecvSlot(2)),
            Act::RecvWc(RecvWc {
                wr_id: 2,
                byte_len: 40,
                ..wc
            }),
        ]
    );
    assert_eq!(bench.answers(), []);
}

#[test]
fn datagrams_that_can_not_be_received_are_dropped() {
    let mut bench = Bench::new(QpKind::Ud);
    datagram(&mut bench, QKEY, SendExtra::Plain, 0);
    bench.host.post_recv(1, 60);
    datagram(&mut bench, Qkey(QKEY.0 ^ 1), SendExtra::Plain, 0);
    datagram(&mut bench, QKEY, SendExtra::Plain, 21);
    datagram(&mut bench, QKEY, SendExtra::Invalidate(RKEY), 0);
    let connected = bench.packet(send_only(), 0);
    assert_eq!(bench.hand_in(&connected), Outcome::Continue);
    assert_eq!(
        bench.host.dropped(),
        [
            QpDropReason::NoReceive,
            QpDropReason::Qkey,
            QpDropReason::TooLong,
            QpDropReason::Invalid,
            QpDropReason::Invalid,
        ]
    );
    assert!(bench.host.take_log().is_empty());
    datagram(&mut bench, QKEY, SendExtra::Plain, 20);
    assert_eq!(bench.recv_wcs().len(), 1);
}

#[test]
fn a_bad_local_key_breaks_a_datagram_qp() {
    let mut bench = Bench::new(QpKind::Ud);
    bench.host.post_recv(1, 60);
    bench.host.local_fault = Some(WcStatus::LocProtErr);
    assert_eq!(
        try_datagram(&mut bench, QKEY, SendExtra::Plain, 0),
        Outcome::Fatal
    );
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::LocProtErr, 0)]);
}

#[test]
fn the_gsi_has_its_own_queue_key() {
    let mut bench = Bench::new(QpKind::Gsi);
    bench.host.post_recv(1, 296);
    datagram(&mut bench, QKEY, SendExtra::Plain, 256);
    assert!(bench.recv_wcs().is_empty());
    datagram(&mut bench, Qkey(0x8001_0000), SendExtra::Plain, 256);
    assert_eq!(bench.recv_wcs().len(), 1);
}
