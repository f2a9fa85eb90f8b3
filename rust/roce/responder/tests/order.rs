// SPDX-License-Identifier: GPL-2.0

//! Tests of packets that arrive late, early, twice or not at all.

use super::host::RKEY;
use super::*;
use crate::host::{AccessFault, Count};
use crate::wire::packet::AtomicEth;
use crate::wr::{AtomicOp, FlushKind};

#[test]
fn a_gap_is_reported_once() {
    for start in [0, 5, 0xff_ffff, 0x7f_ffff] {
        let mut bench = Bench::starting(QpKind::Rc, start);
        bench.psn = bench.psn.next();
        for _ in 0..3 {
            bench.pass(write_only(0, 8), 8);
        }
        assert_eq!(bench.answers(), [Said::Nak(start, NakCode::PsnSequence)]);
        bench.pass(write_only(0, 8), 8);
        assert_eq!(bench.answers(), []);
        assert_eq!(bench.host.counted(Count::OutOfSeqRequest), 4);
        bench.psn = Psn::new(start);
        bench.pass(write_only(0, 8), 8);
        assert_eq!(bench.answers(), [Said::Ack(start)]);
        bench.psn = bench.psn.next();
        bench.pass(write_only(0, 8), 8);
        let missing = Psn::new(start).next().get();
        assert_eq!(bench.answers(), [Said::Nak(missing, NakCode::PsnSequence)]);
    }
}

#[test]
fn an_unsent_nak_names_the_psn_that_is_missing_then() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_at(Psn::new(11), write_only(0, 8), 8);
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    assert_eq!(
        bench.answers(),
        [Said::Ack(10), Said::Nak(11, NakCode::PsnSequence)]
    );
}

#[test]
fn a_packet_ahead_takes_the_place_of_no_acknowledgment() {
    for (psn, ahead) in [(10, 20), (0xff_ffff, 0x6f_ffff)] {
        let both = [
            Said::Ack(psn),
            Said::Nak(Psn::new(psn).next().get(), NakCode::PsnSequence),
        ];
        // A third party's packet, `ahead`, arrives after the peer's, or before it.
        for psns in [[psn, ahead], [ahead, psn]] {
            let mut bench = Bench::starting(QpKind::Rc, psn);
            for psn in psns {
                bench.pass_at(Psn::new(psn), write_only(0, 8), 8);
            }
            assert_eq!(bench.answers(), both);
        }
        // The host drops the acknowledgment.
        let mut bench = Bench::starting(QpKind::Rc, psn);
        bench.pass_at(Psn::new(psn), write_only(0, 8), 8);
        bench.pass_at(Psn::new(ahead), write_only(0, 8), 8);
        bench.poll().unwrap();
        bench.responder.take_back();
        assert_eq!(bench.answers(), both);
    }
}

#[test]
fn an_unsent_nak_is_dropped_when_the_gap_is_filled() {
    for start in [10, 0xff_fffd] {
        let at = |n| Psn::new(start).plus(n);
        let mut bench = Bench::starting(QpKind::Rc, start);
        for ahead in [1, 3, 2] {
            bench.pass_at(at(ahead), write_only(0, 8), 8);
        }
        // The missing packet and the dropped ones arrive before the NAK is sent. None requests an
        // acknowledgment.
        for n in 0..4 {
            let mut packet = bench.packet(write_only(0, 8), 8);
            packet.bth.psn = at(n);
            packet.bth.ack_req = false;
            assert_eq!(bench.hand_in(&packet), Outcome::Executed);
        }
        // The unsent NAK would have acknowledged the packets before its PSN, so an acknowledgment
        // replaces the NAK.
        assert_eq!(bench.answers(), [Said::Ack(at(3).get())]);
        // The next loss leads to a NAK of its own.
        bench.pass_at(at(5), write_only(0, 8), 8);
        let missing = Said::Nak(at(4).get(), NakCode::PsnSequence);
        assert_eq!(bench.answers(), [missing]);
    }
}

#[test]
fn no_acknowledgment_before_a_nak_is_that_of_a_read() {
    let nak = |psn| Said::Nak(psn, NakCode::PsnSequence);
    // A third party's packets before and after the expected PSN, while a READ is answered.
    let mut bench = Bench::starting(QpKind::Rc, 8);
    for psn in [8, 9] {
        bench.pass_at(Psn::new(psn), write_only(0, 8), 8);
    }
    bench.answers();
    bench.pass_at(Psn::new(10), read(0, 2 * MTU), 0);
    for stranger in [8, 700] {
        bench.pass_at(Psn::new(stranger), write_only(0, 8), 8);
    }
    let responses = [
        Said::Read(10, Part::First, 0, MTU),
        Said::Read(11, Part::Last, 1024, MTU),
    ];
    assert_eq!(
        bench.answers(),
        [&responses[..], &[Said::Ack(8), nak(12)]].concat()
    );
    // A READ after a WRITE whose acknowledgment is due.
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_at(Psn::new(700), write_only(0, 8), 8);
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    bench.pass_at(Psn::new(11), read(0, 8), 0);
    assert_eq!(bench.answers(), [Said::Read(11, Part::Only, 0, 8), nak(12)]);
}

#[test]
fn a_duplicate_is_acknowledged_before_a_nak() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    assert_eq!(bench.answers(), [Said::Ack(10)]);
    bench.pass_at(Psn::new(700), write_only(0, 8), 8);
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    assert_eq!(
        bench.answers(),
        [Said::Ack(10), Said::Nak(11, NakCode::PsnSequence)]
    );
}

#[test]
fn a_duplicate_with_the_number_of_a_read_is_not_acknowledged() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_at(Psn::new(10), read(0, 8), 0);
    assert_eq!(bench.answers(), [Said::Read(10, Part::Only, 0, 8)]);
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    assert_eq!(bench.answers(), []);
    // No acknowledgment is sent before a NAK either.
    bench.pass_at(Psn::new(700), write_only(0, 8), 8);
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    assert_eq!(bench.answers(), [Said::Nak(11, NakCode::PsnSequence)]);
}

#[test]
fn a_dropped_acknowledgment_restores_no_needless_nak() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    bench.pass_at(Psn::new(12), write_only(0, 8), 8);
    assert_eq!(bench.poll_said(), Some(Said::Ack(10)));
    bench.pass_at(Psn::new(11), write_only(0, 8), 8);
    bench.pass_at(Psn::new(12), read(0, 8), 0);
    bench.responder.take_back();
    assert_eq!(bench.answers(), [Said::Read(12, Part::Only, 0, 8)]);
}

#[test]
fn an_answer_replaces_a_needless_nak() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_at(Psn::new(11), read(0, 8), 0);
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    bench.pass_at(Psn::new(11), read(0, 8), 0);
    assert_eq!(bench.answers(), [Said::Read(11, Part::Only, 0, 8)]);
    bench.pass_at(Psn::new(13), write_only(0, 8), 8);
    assert_eq!(bench.answers(), [Said::Nak(12, NakCode::PsnSequence)]);
}

#[test]
fn half_of_the_psns_are_ahead_and_half_behind() {
    let mut bench = Bench::starting(QpKind::Rc, 0);
    bench.pass_at(Psn::new(0x7f_ffff), write_only(0, 8), 8);
    assert_eq!(bench.answers(), [Said::Nak(0, NakCode::PsnSequence)]);
    bench.pass_at(Psn::new(0x80_0000), write_only(0, 8), 8);
    assert_eq!(bench.host.counted(Count::DuplicateRequest), 1);
    assert_eq!(bench.answers(), [Said::Ack(0xff_ffff)]);
    assert!(bench.host.take_log().is_empty());
}

#[test]
fn sends_and_writes_are_acknowledged_again_but_not_repeated() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.post_recv(1, 8);
    bench.host.post_recv(2, 8);
    bench.pass(send_only(), 8);
    bench.pass(write_only(0, 8), 8);
    bench.pass(write_only(0, 8), 8);
    bench.answers();
    bench.host.take_log();
    bench.pass_at(Psn::new(0xff_fffe), send_only(), 8);
    bench.pass_at(Psn::new(0xff_ffff), write_only(0, 8), 8);
    assert_eq!(bench.answers(), [Said::Ack(0)]);
    assert!(bench.host.take_log().is_empty());
    assert_eq!(bench.host.counted(Count::DuplicateRequest), 2);
}

#[test]
fn repeated_acknowledgments_skip_no_answer() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass(write_only(0, 8), 8);
    bench.pass_read(0, 8);
    bench.pass(write_only(0, 8), 8);
    bench.answers();
    bench.pass_at(Psn::new(10), write_only(0, 8), 8);
    assert_eq!(bench.answers(), [Said::Ack(10)]);
    bench.pass_at(Psn::new(11), read(0, 8), 0);
    bench.pass_at(Psn::new(12), write_only(0, 8), 8);
    assert_eq!(
        bench.answers(),
        [Said::Read(11, Part::Only, 0, 8), Said::Ack(12)]
    );
}

#[test]
fn a_lost_packet_changes_nothing() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.host.post_recv(1, 8);
    bench.host.fault = Some(AccessFault::Retry);
    let invalidate = Body::Send(SendPart::Only(SendExtra::Invalidate(RKEY)));
    for body in [write_only(0, 8), invalidate] {
        bench.pass_at(Psn::new(10), body, 8);
    }
    for body in [read(0, 8), fetch_add(0, 1)] {
        bench.pass_at(Psn::new(10), body, 0);
    }
    assert_eq!(bench.answers(), []);
    assert!(bench.recv_wcs().is_empty());
    bench.host.fault = None;
    bench.pass(invalidate, 8);
    assert_eq!(bench.recv_wcs().len(), 1);
    assert_eq!(bench.answers(), [Said::Ack(10)]);
}

#[test]
fn a_packet_for_an_absent_receive_may_arrive_again() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut bench = Bench::starting(kind, 10);
        bench.host.post_recv(1, 1032);
        bench.pass_at(Psn::new(10), SEND_FIRST, 1024);
        bench.answers();
        bench.host.absent = true;
        for _ in 0..2 {
            bench.pass_at(Psn::new(11), send_last(), 8);
        }
        assert_eq!(bench.responder.rq_psn(), Psn::new(11));
        assert!(bench.recv_wcs().is_empty());
        assert_eq!(bench.answers(), []);
        bench.host.absent = false;
        bench.pass_at(Psn::new(11), send_last(), 8);
        assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::Success, 1032)]);
        assert!(bench.host.dropped().is_empty());
    }
}

#[test]
fn atomics_are_answered_from_their_record() {
    let mut bench = Bench::new(QpKind::Rc);
    let swap = AtomicOp::CompareSwap {
        compare: 5,
        swap: 9,
    };
    bench.pass(fetch_add(8, 5), 0);
    bench.pass(atomic(8, swap), 0);
    bench.pass(fetch_add(8, 1), 0);
    assert_eq!(
        bench.answers(),
        [
            Said::Atomic(0xff_fffe, 0),
            Said::Atomic(0xff_ffff, 5),
            Said::Atomic(0, 9)
        ]
    );
    bench.host.take_log();
    bench.pass_at(Psn::new(0xff_ffff), atomic(8, swap), 0);
    assert_eq!(bench.answers(), [Said::Atomic(0xff_ffff, 5)]);
    // A request that differs from the recorded one isn't answered.
    bench.pass_at(Psn::new(0xff_ffff), atomic(16, swap), 0);
    bench.pass_at(Psn::new(0xff_ffff), fetch_add(8, 5), 0);
    bench.pass_at(Psn::new(0xff_ffff), read(8, 8), 0);
    bench.pass_at(Psn::new(0xff_fffd), fetch_add(8, 5), 0);
    assert_eq!(bench.answers(), []);
    assert!(bench.host.take_log().is_empty());
}

#[test]
fn atomic_writes_and_flushes_are_answered_again() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    let write = Body::AtomicWrite(reth(8, 8));
    let kind = FlushKind {
        placement: 1,
        selectivity: 0,
    };
    let flush = Body::Flush(kind, reth(8, 8));
    bench.pass(write, 8);
    bench.pass(flush, 0);
    let said = [
        Said::Read(10, Part::Only, 0, 0),
        Said::Read(11, Part::Only, 0, 0),
    ];
    assert_eq!(bench.answers(), said);
    let log = bench.host.take_log();
    assert!(log.contains(&Act::AtomicWrite(BASE + 8)));
    assert!(log.contains(&Act::Flush(BASE + 8, 8, kind)));
    bench.pass_at(Psn::new(10), write, 8);
    bench.pass_at(Psn::new(11), flush, 0);
    assert_eq!(bench.answers(), said);
    assert!(bench.host.take_log().is_empty());
}

#[test]
fn messages_are_counted() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    let msn = |bench: &mut Bench| {
        let Some(transmit) = bench.poll() else {
            panic!("no answer");
        };
        match transmit.packet.body {
            Body::Ack(aeth) | Body::AtomicAck(aeth, _) => aeth.msn,
            Body::ReadResponse(ReadPart::Only(aeth)) => aeth.msn,
            other => panic!("{other:?}"),
        }
    };
    bench.host.post_recv(1, 4096);
    bench.pass(SEND_FIRST, 1024);
    assert_eq!(msn(&mut bench), 0);
    bench.pass(send_last(), 4);
    assert_eq!(msn(&mut bench), 1);
    bench.pass_read(0, 8);
    bench.pass(fetch_add(0, 1), 0);
    bench.pass(write_only(0, 8), 8);
    assert_eq!(msn(&mut bench), 2);
    assert_eq!(msn(&mut bench), 3);
    assert_eq!(msn(&mut bench), 4);
}

#[test]
fn an_acknowledgment_is_sent_only_on_request() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    let mut packet = bench.packet(write_only(0, 8), 8);
    packet.bth.ack_req = false;
    assert_eq!(bench.hand_in(&packet), Outcome::Executed);
    assert_eq!(bench.answers(), []);
}

fn atomic(offset: u64, op: AtomicOp) -> Body {
    Body::Atomic(AtomicEth {
        va: BASE + offset,
        rkey: RKEY,
        op,
    })
}

fn fetch_add(offset: u64, add: u64) -> Body {
    atomic(offset, AtomicOp::FetchAdd { add })
}
