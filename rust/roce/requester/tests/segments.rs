// SPDX-License-Identifier: GPL-2.0

//! Tests of the division of messages into packets, and of acknowledgment requests.

use super::*;

#[test]
fn sends_are_cut_at_the_mtu() {
    let parts = |length: usize| {
        let mut bench = Bench::new();
        bench.post(SendOp::Send(SendExtra::Imm(Imm(5))), length);
        let sent = bench.poll();
        let expected: Vec<u32> = (0..sent.len() as u32).collect();
        let offset = |transmit: &Transmit| transmit.packet.bth.psn.ahead_of(FIRST);
        assert_eq!(sent.iter().map(offset).collect::<Vec<_>>(), expected);
        sent.iter()
            .map(|transmit| match transmit.packet.body {
                Body::Send(part) => (part, transmit.packet.payload_len),
                body => panic!("{body:?}"),
            })
            .collect::<Vec<_>>()
    };
    let extra = SendExtra::Imm(Imm(5));
    assert_eq!(parts(0), [(SendPart::Only(extra), 0)]);
    assert_eq!(parts(1), [(SendPart::Only(extra), 1)]);
    assert_eq!(parts(1024), [(SendPart::Only(extra), 1024)]);
    let two = [(SendPart::First, 1024), (SendPart::Last(extra), 1)];
    assert_eq!(parts(1025), two);
    let three = [
        (SendPart::First, 1024),
        (SendPart::Middle, 1024),
        (SendPart::Last(extra), 1024),
    ];
    assert_eq!(parts(3072), three);
}

#[test]
fn writes_carry_the_range_first_and_the_immediate_last() {
    let mut bench = Bench::new();
    bench
        .host
        .post_send_with(SendOp::Write(REMOTE, Some(Imm(6))), vec![0; 2500], |wr| {
            wr.solicited = true;
        });
    let sent = bench.poll();
    let reth = Reth {
        va: REMOTE.va,
        rkey: REMOTE.rkey,
        length: 2500,
    };
    let bodies: Vec<Body> = sent.iter().map(|transmit| transmit.packet.body).collect();
    let expected = [
        Body::Write(WritePart::First(reth)),
        Body::Write(WritePart::Middle),
        Body::Write(WritePart::Last(Some(Imm(6)))),
    ];
    assert_eq!(bodies, expected);
    let solicited = sent.iter().map(|transmit| transmit.packet.bth.solicited);
    assert!(solicited.eq([false, false, true]));
    let slot = crate::wr::SendSlot(0);
    assert_eq!(sent[2].source, Source::Send { slot, offset: 2048 });
    assert_eq!(sent[2].packet.payload_len, 452);
}

#[test]
fn only_sends_and_immediates_solicit() {
    let imm = SendOp::Write(REMOTE, Some(Imm(1)));
    for (op, length, solicited) in [
        (SEND, 0, true),
        (imm, 0, true),
        (WRITE, 0, false),
        (READ, 0, false),
        (ADD, 8, false),
        (ATOMIC_WRITE, 8, false),
    ] {
        let mut bench = Bench::new();
        bench
            .host
            .post_send_with(op, vec![0; length], |wr| wr.solicited = true);
        assert_eq!(bench.poll()[0].packet.bth.solicited, solicited, "{op:?}");
    }
}

#[test]
fn only_payload_needs_a_source() {
    for (op, length, named) in [
        (SEND, 0, false),
        (SEND, 1, true),
        (WRITE, 0, false),
        (READ, 9, false),
        (ADD, 8, false),
        (ATOMIC_WRITE, 8, true),
        (FLUSH, 100, false),
    ] {
        let mut bench = Bench::new();
        bench.post(op, length);
        let transmit = bench.poll()[0];
        assert_eq!(transmit.source != Source::None, named, "{op:?}");
        assert_eq!(transmit.packet.payload_len > 0, named, "{op:?}");
    }
}

#[test]
fn datagrams_name_their_queue_key_or_the_own_one() {
    for (given, sent) in [
        (0x5, 0x5),
        (0x7fff_ffff, 0x7fff_ffff),
        (0x8000_0000, 0x1111),
    ] {
        let mut bench = Bench::of(QpKind::Ud);
        let dest = UdDest {
            qpn: Qpn::new(0x77),
            qkey: Qkey(given),
        };
        bench.post(SendOp::Datagram(dest, None), 0);
        let transmit = bench.poll()[0];
        let Service::Ud(deth) = transmit.packet.service else {
            panic!("{transmit:?}");
        };
        assert_eq!(
            (deth.qkey, deth.src),
            (Qkey(sent), crate::ids::Qpn::new(0x11))
        );
        assert_eq!(transmit.packet.bth.dest, Qpn::new(0x77));
        assert!(!transmit.packet.bth.ack_req);
        assert!(matches!(transmit.source, Source::Send { .. }));
        assert_eq!(bench.sent(), [(0, Success)]);
    }
}

#[test]
fn frames_are_one_packet_of_any_length() {
    let nobody = UdDest {
        qpn: Qpn::new(0),
        qkey: Qkey(0),
    };
    let mut bench = Bench::of(QpKind::RawPacket);
    bench.post(SendOp::Datagram(nobody, None), 9000);
    let transmits = bench.poll();
    assert_eq!(transmits.len(), 1);
    assert_eq!(transmits[0].packet.payload_len, 9000);
    assert_eq!(bench.sent(), [(0, Success)]);
}

#[test]
fn datagrams_must_fit_one_packet() {
    let dest = UdDest {
        qpn: Qpn::new(0x77),
        qkey: Qkey(1),
    };
    for (length, packets) in [(1024, 1), (1025, 0)] {
        let mut bench = Bench::of(QpKind::Gsi);
        bench.post(SendOp::Datagram(dest, None), length);
        bench.post(SendOp::Datagram(dest, None), 0);
        assert_eq!(bench.poll().len(), packets + 1);
        assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
    }
}

#[test]
fn unreliable_sends_finish_once_sent() {
    let mut bench = Bench::of(QpKind::Uc);
    bench.post(SEND, 3000);
    bench.post(WRITE, 10);
    for _ in 0..3 {
        let transmit = bench.qp.poll_transmit(NOW, &mut bench.host).unwrap();
        assert!(!transmit.packet.bth.ack_req);
        assert_eq!(transmit.packet.service, Service::Uc);
        assert!(bench.sent().is_empty());
    }
    assert_eq!(bench.psns(), [3]);
    assert_eq!(bench.sent(), [(0, Success), (1, Success)]);
    assert_eq!(bench.qp.poll_timeout(), None);
}

fn asking(bench: &mut Bench) -> Vec<u32> {
    bench
        .poll()
        .iter()
        .enumerate()
        .filter(|(_, transmit)| transmit.packet.bth.ack_req)
        .map(|(index, _)| index as u32)
        .collect()
}

#[test]
fn acknowledgments_are_asked_for_sparingly() {
    let mut bench = Bench::new();
    for _ in 0..7 {
        bench.post_unsignaled(SEND, 0);
    }
    assert_eq!(
        asking(&mut bench),
        [],
        "nothing waits for an acknowledgment"
    );
    bench.time_out();
    let newest = bench.poll();
    assert_eq!(newest.len(), 1, "when none was asked for");
    assert_eq!(newest[0].packet.bth.psn, psn(6));
    assert!(newest[0].packet.bth.ack_req);
    assert_eq!(bench.host.count_of(Count::CompleterRetry), 0);
    // The packets that the response doesn't acknowledge were lost.
    bench.nak(2, NakCode::PsnSequence);
    assert_eq!(bench.psns(), [2, 3, 4, 5, 6]);
    bench.ack(6);
    assert_eq!(bench.qp.poll_timeout(), None);

    let mut bench = Bench::new();
    bench.post_unsignaled(SEND, 0);
    bench.post(SEND, 0);
    bench.post_unsignaled(SEND, 0);
    assert_eq!(asking(&mut bench), [1], "only the signaled");

    let mut bench = Bench::new();
    bench.post(SEND, 80 * 1024);
    assert_eq!(asking(&mut bench), [59, 79], "every 60 packets");

    let mut bench = Bench::new();
    for _ in 0..20 {
        bench.post_unsignaled(SEND, 0);
    }
    assert_eq!(asking(&mut bench), [7], "where the window ends");

    let mut bench = Bench::new();
    bench.post_unsignaled(SEND, 0);
    bench.post(INVALIDATE, 0);
    assert_eq!(asking(&mut bench), [0], "the next request must wait");

    let mut bench = Bench::new();
    bench.post_unsignaled(SEND, 0);
    bench.post(REG_MR, 0);
    assert_eq!(asking(&mut bench), [0], "the next request sends nothing");

    let mut bench = Bench::new();
    bench.post_unsignaled(SEND, 0);
    assert_eq!(asking(&mut bench), []);
    bench.post(INVALIDATE, 0);
    assert_eq!(asking(&mut bench), [0], "later requests must wait");
}

#[test]
fn resent_requests_ask_for_an_acknowledgment_at_each_end() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.post_unsignaled(SEND, 1500);
    }
    assert_eq!(asking(&mut bench), []);
    bench.time_out();
    assert_eq!(bench.psns(), [5], "the newest packet asks");
    bench.time_out();
    assert_eq!(asking(&mut bench), [1, 3, 5]);
}

#[test]
fn the_number_in_flight_is_bounded() {
    let mut bench = Bench::new();
    bench.post(WRITE, 1 << 20);
    assert_eq!(bench.poll().len(), 512);
    bench.ack(99);
    let sent = bench.poll();
    assert_eq!(sent.len(), 100);
    assert!(sent.last().unwrap().packet.bth.ack_req);
}

#[test]
fn losses_lower_the_limit_in_flight_and_progress_raises_it() {
    let mut bench = Bench::new();
    bench.post(WRITE, 1 << 20);
    bench.poll();
    bench.time_out();
    let sent = bench.poll();
    assert_eq!(sent.len(), 256);
    assert!(sent.last().unwrap().packet.bth.ack_req);
    bench.ack(9);
    assert_eq!(bench.poll().len(), 10);
    bench.ack(31);
    assert_eq!(bench.poll().len(), 22 + 1);
    for _ in 0..3 {
        bench.time_out();
        bench.poll();
    }
    bench.ack(32);
    for _ in 0..3 {
        bench.time_out();
        bench.poll();
    }
    bench.ack(33);
    bench.time_out();
    // The limit never falls below four packets. Each of the four requests an acknowledgment.
    assert_eq!(asking(&mut bench), [0, 1, 2, 3]);
}
