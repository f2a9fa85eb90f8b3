// SPDX-License-Identifier: GPL-2.0

//! Tests of requests that break a reliable connection.

use super::super::reply::{MOST_AFTER_ERROR, MOST_UNHEARD};
use super::host::recv_wr;
use super::*;
use crate::host::{AccessFault, Fetch};
use crate::ids::{Imm, Rkey};
use crate::wire::packet::AtomicEth;
use crate::wr::{AtomicOp, FlushKind};

/// Passes the packets to the responder. The last one must break the QP.
fn broken_by(bench: &mut Bench, packets: &[(Body, u32)]) {
    let Some(((body, len), before)) = packets.split_last() else {
        panic!("no packet");
    };
    for (body, len) in before {
        bench.pass(*body, *len);
    }
    assert_eq!(
        bench.request(*body, *len),
        Outcome::Fatal,
        "{body:?} of {len}"
    );
}

/// Checks that the packets break the QP with a NAK of this code, and with this event, since no
/// receive WQE is in use.
fn refused(packets: &[(Body, u32)], code: NakCode, event: Event) {
    let mut bench = Bench::new(QpKind::Rc);
    broken_by(&mut bench, packets);
    assert_eq!(bench.events(), [event], "{packets:?}");
    assert!(bench.recv_wcs().is_empty());
    bench.responder.fail(&bench.context, &mut bench.host);
    let psn = bench.psn.minus(1).get();
    assert_eq!(bench.answers(), [Said::Nak(psn, code)], "{packets:?}");
}

/// Checks that the packets break the QP while a receive WQE of 2000 bytes is in use.
fn refused_in_receive(packets: &[(Body, u32)], code: NakCode, status: WcStatus) {
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.post_recv(1, 2000);
    broken_by(&mut bench, packets);
    assert!(bench.events().is_empty(), "{packets:?}");
    assert_eq!(bench.recv_wcs(), [recv_wc(1, status, 0)], "{packets:?}");
    bench.responder.fail(&bench.context, &mut bench.host);
    let psn = bench.psn.minus(1).get();
    assert_eq!(bench.answers(), [Said::Nak(psn, code)], "{packets:?}");
}

#[test]
fn malformed_requests() {
    let write_first = (Body::Write(WritePart::First(reth(0, 2000))), 1024);
    let middle = (Body::Write(WritePart::Middle), 1024);
    let atomic = Body::Atomic(AtomicEth {
        va: BASE + 4,
        rkey: RKEY,
        op: AtomicOp::FetchAdd { add: 1 },
    });
    let no_placement = FlushKind {
        placement: 0,
        selectivity: 0,
    };
    for packets in [
        &[(SEND_MIDDLE, 1024)][..],
        &[(send_last(), 8)],
        &[middle],
        &[(Body::Write(WritePart::Last(None)), 8)],
        &[write_first, (SEND_MIDDLE, 1024)],
        &[write_first, (read(0, 8), 0)],
        &[write_first, (send_only(), 8)],
        &[write_first, (Body::Write(WritePart::Last(None)), 977)],
        &[write_first, (Body::Write(WritePart::Last(None)), 975)],
        &[write_first, middle],
        &[(SEND_FIRST, 1023)],
        &[(send_only(), 1025)],
        &[(write_only(0, 9), 8)],
        &[(Body::AtomicWrite(reth(4, 8)), 8)],
        &[(Body::AtomicWrite(reth(8, 7)), 8)],
        &[(atomic, 0)],
        &[(Body::Flush(no_placement, reth(0, 8)), 0)],
    ] {
        refused(packets, NakCode::InvalidRequest, Event::QpReqErr);
    }
}

#[test]
fn malformed_requests_within_a_send() {
    let first = (SEND_FIRST, 1024);
    for packet in [
        (SEND_FIRST, 1024),
        (send_only(), 8),
        (write_only(0, 8), 8),
        (read(0, 8), 0),
        (SEND_MIDDLE, 1023),
        (send_last(), 0),
    ] {
        refused_in_receive(
            &[first, packet],
            NakCode::InvalidRequest,
            WcStatus::RemInvReqErr,
        );
    }
}

#[test]
fn messages_longer_than_their_receive() {
    for packets in [
        &[(SEND_FIRST, 1024), (SEND_MIDDLE, 1024)][..],
        &[(SEND_FIRST, 1024), (send_last(), 977)],
    ] {
        refused_in_receive(packets, NakCode::InvalidRequest, WcStatus::LocLenErr);
    }
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.post_recv(1, 2000);
    bench.pass(SEND_FIRST, 1024);
    bench.pass(send_last(), 976);
}

#[test]
fn bad_local_keys() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.post_recv(1, 2000);
    bench.host.local_fault = Some(WcStatus::LocProtErr);
    broken_by(&mut bench, &[(send_only(), 8)]);
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::LocProtErr, 0)]);
    assert_eq!(
        bench.answers(),
        [Said::Nak(0xff_fffe, NakCode::RemoteOperational)]
    );
}

#[test]
fn malformed_receives() {
    let mut bench = Bench::new(QpKind::Rc);
    let malformed = Fetch::Malformed(recv_wr(1, 0), WcStatus::LocQpOpErr);
    bench.host.recvs.push_back(malformed);
    broken_by(&mut bench, &[(send_only(), 0)]);
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::LocQpOpErr, 0)]);
    assert_eq!(
        bench.answers(),
        [Said::Nak(0xff_fffe, NakCode::RemoteOperational)]
    );
}

#[test]
fn memory_not_granted() {
    let bad = Reth {
        rkey: Rkey(1),
        ..reth(0, 8)
    };
    let atomic = Body::Atomic(AtomicEth {
        va: BASE,
        rkey: Rkey(1),
        op: AtomicOp::FetchAdd { add: 1 },
    });
    let kind = FlushKind {
        placement: 1,
        selectivity: 0,
    };
    for (body, len) in [
        (Body::Write(WritePart::Only(bad, None)), 8),
        (Body::Write(WritePart::Only(bad, Some(Imm(0)))), 8),
        (Body::ReadRequest(bad), 0),
        (read(0xfff9, 8), 0),
        (atomic, 0),
        (Body::AtomicWrite(bad), 8),
        (Body::Flush(kind, bad), 0),
    ] {
        refused(&[(body, len)], NakCode::RemoteAccess, Event::QpAccessErr);
    }
    // The whole range is checked before its first byte is written.
    let long = Body::Write(WritePart::First(reth(0xf000, 4097)));
    refused(&[(long, 1024)], NakCode::RemoteAccess, Event::QpAccessErr);
}

#[test]
fn operations_not_enabled() {
    for (body, len) in [
        (write_only(0, 8), 8),
        (write_only(0, 0), 0),
        (read(0, 8), 0),
        (Body::AtomicWrite(reth(0, 8)), 8),
    ] {
        let mut bench = Bench::new(QpKind::Rc);
        bench.context.settings.access = RemoteRights::default();
        broken_by(&mut bench, &[(body, len)]);
        assert_eq!(bench.events(), [Event::QpReqErr]);
        assert_eq!(
            bench.answers(),
            [Said::Nak(0xff_fffe, NakCode::InvalidRequest)]
        );
    }
}

#[test]
fn keys_that_can_not_be_invalidated() {
    let body = Body::Send(SendPart::Only(SendExtra::Invalidate(Rkey(1))));
    refused_in_receive(&[(body, 8)], NakCode::RemoteAccess, WcStatus::LocAccessErr);
}

#[test]
fn memory_revoked_within_a_write() {
    for (fault, code, event) in [
        (
            AccessFault::Denied,
            NakCode::RemoteAccess,
            Event::QpAccessErr,
        ),
        (
            AccessFault::Failed,
            NakCode::RemoteOperational,
            Event::QpFatal,
        ),
        (
            AccessFault::Invalid,
            NakCode::InvalidRequest,
            Event::QpReqErr,
        ),
        (
            AccessFault::NoQueue,
            NakCode::InvalidRequest,
            Event::QpAccessErr,
        ),
    ] {
        let mut bench = Bench::new(QpKind::Rc);
        let first = Body::Write(WritePart::First(reth(0, 2000)));
        bench.pass(first, 1024);
        bench.host.fault = Some(fault);
        let last = Body::Write(WritePart::Last(None));
        assert_eq!(bench.request(last, 976), Outcome::Fatal);
        assert_eq!(bench.events(), [event]);
        assert_eq!(bench.answers(), [Said::Nak(0xff_ffff, code)]);
    }
}

#[test]
fn few_responses_come_before_the_nak_that_ends_the_qp() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.pass_read(0, 8 * MTU);
    broken_by(&mut bench, &[(Body::Send(SendPart::Middle), MTU)]);
    bench.responder.fail(&bench.context, &mut bench.host);
    assert_eq!(bench.responder.unheard, MOST_UNHEARD - MOST_AFTER_ERROR);
    // As if all but three of the responses that may still be sent had been sent.
    bench.responder.unheard = MOST_UNHEARD - 3;
    let answers = bench.answers();
    let (nak, responses) = answers.split_last().unwrap();
    assert_eq!(responses.len(), 3);
    assert!(matches!(nak, Said::Nak(_, NakCode::InvalidRequest)));
}

#[test]
fn an_error_not_of_the_responder_cancels_its_responses() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.pass_read(0, 4 * MTU);
    bench.pass(write_only(0, 8), 8);
    bench.responder.fail(&bench.context, &mut bench.host);
    assert_eq!(bench.answers(), []);
}
