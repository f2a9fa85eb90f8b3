// SPDX-License-Identifier: GPL-2.0

//! Tests of READs: their responses, their repetition and their limits.

use super::*;
use crate::host::AccessFault;
use crate::responder::reply::MOST_UNHEARD;
use crate::wire::packet::AtomicEth;
use crate::wr::AtomicOp;

#[test]
fn responses_are_cut_to_the_mtu() {
    for (length, responses) in [
        (0, vec![Said::Read(0xff_fffe, Part::Only, 0, 0)]),
        (1, vec![Said::Read(0xff_fffe, Part::Only, 0, 1)]),
        (MTU, vec![Said::Read(0xff_fffe, Part::Only, 0, MTU)]),
        (
            MTU + 1,
            vec![
                Said::Read(0xff_fffe, Part::First, 0, MTU),
                Said::Read(0xff_ffff, Part::Last, 1024, 1),
            ],
        ),
        (
            3 * MTU,
            vec![
                Said::Read(0xff_fffe, Part::First, 0, MTU),
                Said::Read(0xff_ffff, Part::Middle, 1024, MTU),
                Said::Read(0, Part::Last, 2048, MTU),
            ],
        ),
    ] {
        let mut bench = Bench::new(QpKind::Rc);
        bench.pass_read(0, length);
        assert_eq!(bench.answers(), responses, "{length} bytes");
        assert_eq!(bench.responder.rq_psn(), bench.psn);
    }
}

#[test]
fn an_empty_read_needs_no_key() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.host.fault = Some(AccessFault::Denied);
    bench.pass_read(0, 0);
    assert_eq!(bench.answers(), [Said::Read(0xff_fffe, Part::Only, 0, 0)]);
}

#[test]
fn later_acknowledgments_wait_and_earlier_ones_are_covered() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass(write_only(0, 8), 8);
    bench.pass_read(0, 2 * MTU);
    bench.pass(write_only(0, 8), 8);
    assert_eq!(bench.poll_said(), Some(Said::Read(11, Part::First, 0, MTU)));
    bench.pass(write_only(0, 8), 8);
    bench.psn = bench.psn.next();
    bench.pass(write_only(0, 8), 8);
    assert_eq!(
        bench.answers(),
        [
            Said::Read(12, Part::Last, 1024, MTU),
            Said::Ack(14),
            Said::Nak(15, NakCode::PsnSequence)
        ]
    );
}

#[test]
fn a_replay_may_be_a_part() {
    let mut bench = Bench::new(QpKind::Rc);
    bench.pass_read(64, 3 * MTU + 100);
    bench.answers();
    let psn = Psn::new(0);
    // The end of the READ.
    bench.pass_at(psn, read(64 + 2048, MTU + 100), 0);
    assert_eq!(
        bench.answers(),
        [
            Said::Read(0, Part::First, 64 + 2048, MTU),
            Said::Read(1, Part::Last, 64 + 3072, 100)
        ]
    );
    // A part of the READ.
    bench.pass_at(psn, read(64 + 2048, 10), 0);
    assert_eq!(bench.answers(), [Said::Read(0, Part::Only, 64 + 2048, 10)]);
    // Other addresses, more than the original length, and PSNs without a record.
    bench.pass_at(psn, read(64 + 2047, 10), 0);
    bench.pass_at(psn, read(64 + 2048, MTU + 101), 0);
    bench.pass_at(Psn::new(0xff_fffd), read(64, 10), 0);
    assert_eq!(bench.answers(), []);
    let mut other_key = reth(64 + 2048, 10);
    other_key.rkey.0 ^= 1;
    bench.pass_at(psn, Body::ReadRequest(other_key), 0);
    assert_eq!(bench.answers(), []);
}

#[test]
fn read_responses_restart_where_the_peer_asks() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 4 * MTU);
    bench.pass(write_only(0, 8), 8);
    for _ in 0..3 {
        bench.poll();
    }
    bench.pass_at(Psn::new(11), read(1024, 3 * MTU), 0);
    assert_eq!(
        bench.answers(),
        [
            Said::Read(11, Part::First, 1024, MTU),
            Said::Read(12, Part::Middle, 2048, MTU),
            Said::Read(13, Part::Last, 3072, MTU),
            Said::Ack(14),
        ]
    );
}

#[test]
fn a_repeated_part_does_not_shorten_the_responses_that_are_due() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 2 * MTU);
    bench.pass_at(Psn::new(10), read(0, 8), 0);
    assert_eq!(
        bench.answers(),
        [
            Said::Read(10, Part::First, 0, MTU),
            Said::Read(11, Part::Last, 1024, MTU)
        ]
    );
}

#[test]
fn lost_responses_are_sent_before_the_rest() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 8 * MTU);
    for _ in 0..5 {
        bench.poll_said();
    }
    // The peer lacks response 1, then also 3 and 4.
    bench.pass_at(Psn::new(11), read(1024, MTU), 0);
    bench.pass_at(Psn::new(13), read(3072, 2 * MTU), 0);
    let said = [
        Said::Read(11, Part::First, 1024, MTU),
        Said::Read(12, Part::Middle, 2048, MTU),
        Said::Read(13, Part::Middle, 3072, MTU),
        Said::Read(14, Part::Last, 4096, MTU),
        Said::Read(15, Part::Middle, 5120, MTU),
    ];
    for (index, said) in said.into_iter().enumerate() {
        let transmit = bench.poll().unwrap();
        assert_eq!(super::said(&transmit), said);
        assert_eq!(transmit.retransmission, index < 4);
    }
    bench.pass_at(Psn::new(10), read(0, MTU), 0);
    assert_eq!(
        bench.answers(),
        [
            Said::Read(10, Part::Only, 0, MTU),
            Said::Read(16, Part::Middle, 6144, MTU),
            Said::Read(17, Part::Last, 7168, MTU),
        ]
    );
    bench.pass_at(Psn::new(12), read(2048, MTU), 0);
    assert_eq!(bench.answers(), [Said::Read(12, Part::Only, 2048, MTU)]);
}

#[test]
fn two_parts_of_a_finished_read_are_sent() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 8 * MTU);
    assert_eq!(bench.answers().len(), 8);
    bench.pass_at(Psn::new(11), read(1024, MTU), 0);
    bench.pass_at(Psn::new(12), read(2048, MTU), 0);
    assert_eq!(
        bench.answers(),
        [
            Said::Read(11, Part::First, 1024, MTU),
            Said::Read(12, Part::Last, 2048, MTU),
        ]
    );
}

#[test]
fn a_peer_that_asks_for_the_rest_gets_lost_responses_first() {
    // The lost part, and the rest that the peer asks for, in packets. All responses were sent, or
    // only `polled` of them.
    for (polled, lost, rest, responses) in [
        (8, 1..2, 6, vec![1, 6, 7]),
        (8, 1..5, 3, vec![1, 2, 3, 4, 5, 6, 7]),
        (6, 1..2, 4, vec![1, 4, 5, 6, 7]),
        (4, 1..2, 6, vec![1, 4, 5, 6, 7]),
    ] {
        let mut bench = Bench::starting(QpKind::Rc, 10);
        bench.pass_read(0, 8 * MTU);
        for _ in 0..polled {
            bench.poll_said();
        }
        for part in [lost, rest..8] {
            let (start, count) = (part.start, part.end - part.start);
            let body = read(u64::from(start * MTU), count * MTU);
            bench.pass_at(Psn::new(10 + start), body, 0);
        }
        let said = bench.answers();
        let psns = said.iter().map(|said| match said {
            Said::Read(psn, ..) => psn - 10,
            other => panic!("{other:?}"),
        });
        assert!(psns.eq(responses), "{said:?}");
    }
}

#[test]
fn a_dropped_response_is_sent_after_lost_ones() {
    for polled in [3, 4] {
        let mut bench = Bench::starting(QpKind::Rc, 10);
        bench.pass_read(0, 4 * MTU);
        for _ in 0..polled {
            bench.poll_said();
        }
        bench.pass_at(Psn::new(10), read(0, MTU), 0);
        bench.responder.take_back();
        let mut expected = vec![Said::Read(10, Part::Only, 0, MTU)];
        if polled == 3 {
            expected.push(Said::Read(12, Part::Middle, 2048, MTU));
        }
        expected.push(Said::Read(13, Part::Last, 3072, MTU));
        assert_eq!(bench.answers(), expected);
    }
}

#[test]
fn an_empty_read_that_is_repeated_is_answered_once() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 0);
    bench.pass_at(Psn::new(10), read(0, 0), 0);
    assert_eq!(bench.answers(), [Said::Read(10, Part::Only, 0, 0)]);
}

#[test]
fn a_peer_that_asks_for_the_rest_interrupts_repeated_responses() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 4 * MTU);
    assert_eq!(bench.answers().len(), 4);
    bench.pass_at(Psn::new(10), read(0, 4 * MTU), 0);
    assert_eq!(bench.poll_said(), Some(Said::Read(10, Part::First, 0, MTU)));
    bench.pass_at(Psn::new(12), read(2048, 2 * MTU), 0);
    assert_eq!(
        bench.answers(),
        [
            Said::Read(12, Part::First, 2048, MTU),
            Said::Read(13, Part::Last, 3072, MTU),
        ]
    );
}

#[test]
fn responses_have_the_cookie() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    let mut packet = bench.packet(read(0, 2 * MTU), 0);
    packet.bth.reserved = packet.bth.reserved.with_fills_gaps(true);
    assert_eq!(bench.hand_in(&packet), Outcome::Executed);
    for _ in 0..2 {
        let reserved = bench.poll().unwrap().packet.bth.reserved;
        assert!(reserved.fills_gaps() && reserved.extension() != 0);
    }
}

#[test]
fn the_number_of_unanswered_reads_is_limited() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    for _ in 0..4 {
        bench.pass_read(0, 8);
    }
    assert_eq!(bench.read(0, 8), Outcome::Fatal);
    assert_eq!(bench.events(), [Event::QpReqErr]);
    bench.responder.fail(&bench.context, &mut bench.host);
    let mut said = (10..14)
        .map(|psn| Said::Read(psn, Part::Only, 0, 8))
        .collect::<Vec<_>>();
    said.push(Said::Nak(14, NakCode::InvalidRequest));
    assert_eq!(bench.answers(), said);
}

#[test]
fn the_oldest_is_forgotten() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    for _ in 0..5 {
        bench.pass_read(0, 8);
        bench.answers();
    }
    bench.pass_at(Psn::new(10), read(0, 8), 0);
    assert_eq!(bench.answers(), []);
    bench.pass_at(Psn::new(11), read(0, 8), 0);
    assert_eq!(bench.answers(), [Said::Read(11, Part::Only, 0, 8)]);
}

#[test]
fn none_is_served_where_none_may_be() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.context.settings.max_dest_rd_atomic = 0;
    assert_eq!(bench.read(0, 8), Outcome::Fatal);
    assert_eq!(bench.answers(), [Said::Nak(10, NakCode::InvalidRequest)]);
}

#[test]
fn memory_that_goes_away_breaks_the_first_answer() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 2 * MTU);
    bench.pass_read(0, 8);
    bench.host.post_recv(1, 4096);
    bench.pass(SEND_FIRST, 1024);
    bench.poll();
    let lost = bench.poll().unwrap();
    assert_eq!(
        bench.fail_transmit(&lost, AccessFault::Retry),
        Outcome::Continue
    );
    assert_eq!(
        bench.fail_transmit(&lost, AccessFault::Denied),
        Outcome::Fatal
    );
    assert_eq!(bench.events(), [Event::QpAccessErr]);
    bench.responder.fail(&bench.context, &mut bench.host);
    assert_eq!(bench.answers(), [Said::Nak(11, NakCode::RemoteAccess)]);
    // The receive WQE of the SEND after the READ isn't at fault.
    assert_eq!(bench.recv_wcs(), [recv_wc(1, WcStatus::WrFlushErr, 0)]);
}

#[test]
fn memory_that_went_away_refuses_a_replay_only() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 2 * MTU);
    bench.answers();
    let again = read(0, 2 * MTU);
    bench.pass_at(Psn::new(10), again, 0);
    let lost = bench.poll().unwrap();
    assert_eq!(
        bench.fail_transmit(&lost, AccessFault::Denied),
        Outcome::Continue
    );
    assert_eq!(bench.answers(), [Said::Nak(10, NakCode::RemoteAccess)]);
    bench.host.fault = Some(AccessFault::Denied);
    bench.pass_at(Psn::new(10), again, 0);
    assert_eq!(bench.answers(), [Said::Nak(10, NakCode::RemoteAccess)]);
    bench.host.fault = Some(AccessFault::Retry);
    bench.pass_at(Psn::new(10), again, 0);
    assert_eq!(bench.answers(), []);
    assert!(bench.events().is_empty());
}

#[test]
fn a_right_that_was_taken_away_ends_an_answer_and_refuses_a_replay() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 3 * MTU);
    assert_eq!(bench.poll_said(), Some(Said::Read(10, Part::First, 0, MTU)));
    bench.context.settings.access.read = false;
    assert_eq!(bench.answers(), [Said::Nak(11, NakCode::RemoteAccess)]);
    bench.pass_at(Psn::new(10), read(0, 3 * MTU), 0);
    assert_eq!(bench.answers(), [Said::Nak(10, NakCode::RemoteAccess)]);
    assert!(bench.events().is_empty());
    bench.context.settings.access.read = true;
    bench.pass_at(Psn::new(12), read(2 * u64::from(MTU), MTU), 0);
    assert_eq!(bench.answers(), [Said::Read(12, Part::Only, 2048, MTU)]);
}

#[test]
fn a_refused_first_answer_is_refused_again() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, MTU);
    bench.pass(write_only(0, 8), 8);
    bench.context.settings.access.read = false;
    // The acknowledgment of the WRITE follows the NAK, so it doesn't end the READ.
    let refused = Said::Nak(10, NakCode::RemoteAccess);
    assert_eq!(bench.answers(), [refused, Said::Ack(11)]);
    // The network has lost the NAK, and the memory is gone.
    bench.host.fault = Some(AccessFault::Denied);
    bench.pass_at(Psn::new(10), read(0, MTU), 0);
    let nak = bench.poll().unwrap();
    assert_eq!(said(&nak), refused);
    // The NAK has the MSN after the WRITE, and not that after the READ.
    assert!(matches!(nak.packet.body, Body::Ack(aeth) if aeth.msn == 2));
    assert_eq!(bench.answers(), []);
    assert!(bench.events().is_empty());
}

#[test]
fn a_duplicate_does_not_affect_the_first_answer() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 2 * MTU);
    bench.poll();
    bench.host.fault = Some(AccessFault::Failed);
    bench.pass_at(Psn::new(10), read(0, 2 * MTU), 0);
    assert_eq!(bench.answers(), [Said::Read(11, Part::Last, 1024, MTU)]);
}

#[test]
fn a_response_that_the_host_dropped_is_sent_again() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 2 * MTU + 1);
    bench.pass(write_only(0, 8), 8);
    let mut said = Vec::new();
    while let Some(dropped) = bench.poll_said() {
        bench.responder.take_back();
        assert_eq!(bench.poll_said(), Some(dropped));
        said.push(dropped);
    }
    assert_eq!(
        said,
        [
            Said::Read(10, Part::First, 0, MTU),
            Said::Read(11, Part::Middle, 1024, MTU),
            Said::Read(12, Part::Last, 2048, 1),
            Said::Ack(13),
        ]
    );
    // Nothing is due, and nothing can be taken back.
    bench.responder.take_back();
    assert_eq!(bench.poll_said(), None);
}

#[test]
fn a_dropped_response_does_not_undo_a_new_request() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, 3 * MTU);
    bench.poll();
    assert_eq!(
        bench.poll_said(),
        Some(Said::Read(11, Part::Middle, 1024, MTU))
    );
    // The host holds the response back for a while. The peer misses the one before, and asks again.
    bench.pass_at(Psn::new(10), read(0, 3 * MTU), 0);
    bench.responder.take_back();
    assert_eq!(
        bench.answers(),
        [
            Said::Read(10, Part::First, 0, MTU),
            Said::Read(11, Part::Middle, 1024, MTU),
            Said::Read(12, Part::Last, 2048, MTU),
        ]
    );
    // An acknowledgment that is taken back doesn't replace a newer one either.
    for psn in [13, 14] {
        bench.pass_at(Psn::new(psn), write_only(0, 8), 8);
        if psn == 13 {
            assert_eq!(bench.poll_said(), Some(Said::Ack(13)));
        }
    }
    bench.responder.take_back();
    assert_eq!(bench.answers(), [Said::Ack(14)]);
}

#[test]
fn a_dropped_response_of_a_forgotten_request_stays_dropped() {
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.context.settings.max_dest_rd_atomic = 1;
    bench.pass_read(0, 2 * MTU);
    bench.answers();
    bench.pass_at(Psn::new(10), read(0, 2 * MTU), 0);
    assert_eq!(bench.poll_said(), Some(Said::Read(10, Part::First, 0, MTU)));
    // The peer has received all data, and a late copy of its request arrived. Its next READ
    // replaces the record.
    bench.pass_read(4096, 8);
    bench.responder.take_back();
    assert_eq!(bench.answers(), [Said::Read(12, Part::Only, 4096, 8)]);
}

#[test]
fn a_read_with_a_dropped_response_counts_as_unanswered() {
    for (dropped, outcome) in [(true, Outcome::Fatal), (false, Outcome::Executed)] {
        let mut bench = Bench::starting(QpKind::Rc, 10);
        bench.context.settings.max_dest_rd_atomic = 1;
        bench.pass_read(0, 8);
        bench.poll();
        if dropped {
            bench.responder.take_back();
        }
        assert_eq!(bench.read(0, 8), outcome);
    }
}

#[test]
fn old_records_do_not_match_new_packets() {
    // After the records of a READ and an atomic, more than half of all PSNs pass, or nearly all, or
    // more than all.
    for taken in [(1 << 23) + 10, (1 << 24) - 501, (1 << 24) + 3] {
        let mut bench = Bench::starting(QpKind::Rc, 10);
        bench.pass_read(0, 2 * MTU);
        bench.answers();
        let mut left: u32 = taken;
        bench.pass(Body::Atomic(word()), 0);
        bench.answers();
        // Skips the packets between, since only their number matters.
        bench.responder.expected = bench.responder.expected.plus(left);
        bench.responder.position += u64::from(left);
        left = 500;
        let latest = bench.responder.rq_psn().minus(1);
        let behind = latest.minus(left);
        bench.pass_at(behind, write_only(0, 8), 8);
        assert_eq!(
            bench.answers(),
            [Said::Ack(latest.get())],
            "{taken} PSNs later"
        );
        if taken < 1 << 24 {
            continue;
        }
        // Nor do the records answer requests that have the same PSNs, but come one wrap later.
        bench.pass_at(Psn::new(10), read(0, 2 * MTU), 0);
        bench.pass_at(Psn::new(12), Body::Atomic(word()), 0);
        assert_eq!(bench.answers(), [], "{taken} PSNs later");
    }
}

fn word() -> AtomicEth {
    AtomicEth {
        va: BASE,
        rkey: RKEY,
        op: AtomicOp::FetchAdd { add: 1 },
    }
}

#[test]
fn a_peer_that_is_not_heard_of_gets_no_more() {
    const PACKETS: u32 = 5;
    const LEFT: u32 = 3;
    let mut bench = Bench::starting(QpKind::Rc, 10);
    bench.pass_read(0, PACKETS * MTU);
    bench.responder.unheard = MOST_UNHEARD - LEFT;
    assert_eq!(bench.answers().len(), LEFT as usize);
    assert_eq!(bench.poll_said(), None);
    // The peer's timer has expired, and it requests the rest.
    let (rest, offset) = (Psn::new(10).plus(LEFT), u64::from(LEFT * MTU));
    bench.responder.note_peer_alive();
    bench.pass_at(rest, read(offset, (PACKETS - LEFT) * MTU), 0);
    assert_eq!(
        bench.poll_said(),
        Some(Said::Read(rest.get(), Part::First, offset, MTU))
    );
    assert_eq!(bench.answers().len(), 1);
}
