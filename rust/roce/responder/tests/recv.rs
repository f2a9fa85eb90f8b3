// SPDX-License-Identifier: GPL-2.0

//! Tests of SENDs and WRITEs of a reliable connection that succeed, and of receive WQEs.

use super::host::recv_wr;
use super::*;
use crate::host::{Count, Fetch};
use crate::ids::Imm;
use crate::qp::Steps;

#[test]
fn a_send_fills_one_receive() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.post_recv(1, 3000);
    for (body, len) in [(SEND_FIRST, 1024), (SEND_MIDDLE, 1024), (send_last(), 952)] {
        bench.pass(body, len);
    }
    let slot = RecvSlot(1);
    assert_eq!(
        bench.host.take_log(),
        [
            Act::ScatterRecv(slot, 0),
            Act::ScatterRecv(slot, 1024),
            Act::ScatterRecv(slot, 2048),
            Act::Release(slot),
            Act::RecvWc(recv_wc(1, WcStatus::Success, 3000)),
        ]
    );
    assert_eq!(bench.answers(), [Said::Ack(0)]);
    assert_eq!(bench.host.counted(Count::AckDeferred), 2);
    assert_eq!(bench.responder.rq_psn(), Psn::new(1));
}

#[test]
fn an_empty_send_touches_no_buffer() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.local_fault = Some(WcStatus::LocProtErr);
    bench.host.post_recv(1, 0);
    bench.pass(send_only(), 0);
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::Success, 0)]);
}

#[test]
fn immediates_and_invalidations_are_reported() {
    let mut bench = Bench::new(QpKind::Rc);
    for (name, sent, extra) in [
        (1, SendExtra::Plain, RecvExtra::None),
        (2, SendExtra::Imm(Imm(9)), RecvExtra::Imm(Imm(9))),
        (3, SendExtra::Invalidate(RKEY), RecvExtra::Invalidated(RKEY)),
    ] {
        bench.host.post_recv(name, 10);
        let mut packet = bench.packet(Body::Send(SendPart::Only(sent)), 10);
        packet.bth.solicited = true;
        bench.psn = bench.psn.next();
        assert_eq!(bench.hand_in(&packet), Outcome::Executed);
        let log = bench.host.take_log();
        let wc = RecvWc {
            extra,
            solicited: true,
            ..recv_wc(u64::from(name), WcStatus::Success, 10)
        };
        assert_eq!(log.last(), Some(&Act::RecvWc(wc)));
        let invalidated = log.contains(&Act::Invalidate(RKEY));
        assert_eq!(invalidated, matches!(sent, SendExtra::Invalidate(_)));
    }
}

#[test]
fn a_write_is_placed_where_its_reth_says() {
    let mut bench = Bench::new(QpKind::Rc);
    let first = Body::Write(WritePart::First(reth(16, 2060)));
    bench.pass(first, 1024);
    bench.pass(Body::Write(WritePart::Middle), 1024);
    bench.pass(Body::Write(WritePart::Last(None)), 12);
    let access = crate::host::RemoteAccess::Write;
    assert_eq!(
        bench.host.take_log(),
        [
            Act::Check(BASE + 16, 2060, access),
            Act::Write(BASE + 16),
            Act::Write(BASE + 16 + 1024),
            Act::Write(BASE + 16 + 2048),
        ]
    );
    assert_eq!(bench.answers(), [Said::Ack(0)]);
}

#[test]
fn an_empty_write_needs_no_key() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.fault = Some(crate::host::AccessFault::Denied);
    bench.pass(write_only(0, 0), 0);
    assert_eq!(bench.host.take_log(), []);
    assert_eq!(bench.answers(), [Said::Ack(0xff_fffe)]);
}

#[test]
fn a_write_with_immediate_takes_a_receive_at_its_end() {
    let mut bench = Bench::new(QpKind::Rc);
    let first = Body::Write(WritePart::First(reth(0, 1030)));
    let last = Body::Write(WritePart::Last(Some(Imm(5))));
    bench.pass(first, 1024);
    bench.pass(last, 6);
    assert_eq!(bench.answers(), [Said::Rnr(0xff_ffff, 12)]);
    // Without a receive WQE, the last packet isn't written.
    let access = crate::host::RemoteAccess::Write;
    assert_eq!(
        bench.host.take_log(),
        [Act::Check(BASE, 1030, access), Act::Write(BASE)]
    );
    bench.host.post_recv(4, 0);
    bench.pass_at(Psn::new(0xff_ffff), last, 6);
    let wc = RecvWc {
        opcode: WcOpcode::RecvRdmaWithImm,
        extra: RecvExtra::Imm(Imm(5)),
        ..recv_wc(4, WcStatus::Success, 1030)
    };
    assert_eq!(
        bench.host.take_log(),
        [
            Act::Write(BASE + 1024),
            Act::Release(RecvSlot(4)),
            Act::RecvWc(wc)
        ]
    );
    assert_eq!(bench.answers(), [Said::Ack(0xff_ffff)]);
}

#[test]
fn without_a_receive_one_rnr_nak_is_sent() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.pass(send_only(), 8);
    bench.pass(send_only(), 8);
    assert_eq!(bench.answers(), [Said::Rnr(0xff_fffe, 12)]);
    bench.pass(send_only(), 8);
    assert_eq!(bench.answers(), []);
    // If the packet arrives again, a NAK is sent again.
    bench.psn = Psn::new(0xff_fffe);
    bench.pass(send_only(), 8);
    assert_eq!(bench.answers(), [Said::Rnr(0xff_fffe, 12)]);
    assert_eq!(bench.host.counted(Count::SendRnrErr), 2);
    bench.host.post_recv(1, 8);
    bench.psn = Psn::new(0xff_fffe);
    bench.pass(send_only(), 8);
    assert_eq!(bench.answers(), [Said::Ack(0xff_fffe)]);
    // From now on a missing packet leads to a NAK again.
    bench.psn = bench.psn.next();
    bench.pass(send_only(), 8);
    assert_eq!(
        bench.answers(),
        [Said::Nak(0xff_ffff, NakCode::PsnSequence)]
    );
}

#[test]
fn a_receive_posted_meanwhile_shortens_the_wait() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.pass(send_only(), 8);
    bench.host.post_recv(1, 8);
    assert_eq!(bench.answers(), [Said::Rnr(0xff_fffe, 1)]);
    assert!(bench.host.recvs.is_empty());
    bench.psn = Psn::new(0xff_fffe);
    bench.pass(send_only(), 8);
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::Success, 8)]);
    assert_eq!(bench.answers(), [Said::Ack(0xff_fffe)]);
}

#[test]
fn an_acknowledgment_survives_an_rnr_nak_never_sent() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.host.post_recv(1, 8);
    bench.pass(send_only(), 8);
    bench.pass(SEND_FIRST, MTU);
    bench.host.post_recv(2, 4096);
    let mut again = bench.packet(SEND_FIRST, MTU);
    again.bth.psn = Psn::new(11);
    again.bth.ack_req = false;
    assert_eq!(bench.hand_in(&again), Outcome::Executed);
    assert_eq!(bench.answers(), [Said::Ack(11)]);
}

#[test]
fn the_held_receive_is_flushed_first_and_then_the_others() {
    let mut bench = Bench::new(QpKind::Rc);
    for name in 1..=3 {
        bench.host.post_recv(name, 4096);
    }
    let malformed = recv_wr(4, 0);
    bench
        .host
        .recvs
        .push_back(Fetch::Malformed(malformed, WcStatus::LocQpOpErr));
    bench.pass(SEND_FIRST, 1024);
    bench.host.take_log();
    bench.responder.fail(&bench.context, &mut bench.host);
    let mut flush = |budget| {
        let responder = &mut bench.responder;
        responder.flush_recv(&bench.context, &mut bench.host, &mut Steps(budget))
    };
    assert!(flush(2));
    assert!(!flush(2));
    let wcs = bench.recv_wcs();
    let flushed = (1..=4).map(|name| recv_wc(name, WcStatus::WrFlushErr, 0));
    assert!(wcs.into_iter().eq(flushed));
    assert_eq!(bench.answers(), []);
}

#[test]
fn reset_gives_the_held_receive_back_without_a_completion() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.post_recv(1, 4096);
    bench.pass(SEND_FIRST, 1024);
    bench.host.take_log();
    bench.responder.reset(&mut bench.host);
    assert_eq!(bench.host.take_log(), [Act::Release(RecvSlot(1))]);
    assert_eq!(bench.answers(), []);
    bench.responder.start(Psn::new(5));
    bench.host.post_recv(2, 8);
    bench.pass_at(Psn::new(5), send_only(), 8);
    assert_eq!(bench.answers(), [Said::Ack(5)]);
}
