// SPDX-License-Identifier: GPL-2.0

//! Trains have the effects of their packets: two pairs of QPs go through the same events, one with
//! trains and one with single packets, and are compared after each event.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{in_rts, TestQp, BASE, FIRST, NOW, RKEY, SEND};
use crate::host::{AccessFault, Count};
use crate::ids::{Imm, Rkey};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::qp::{Attrs, QpKind};
use crate::testing::{connected, drain, qp, to_init, to_rtr, to_rts, MockHost, MEMORY_LEN};
use crate::time::{Duration, Instant};
use crate::train::Train;
use crate::transmit::{Source, TrainLimits, Transmit};
use crate::wc::WcStatus;
use crate::wire::{decode_train, ICRC_LEN};
use crate::wr::{AtomicOp, RemoteAddr, SendExtra, SendOp};

const MTU: Mtu = Mtu::Bytes1024;
/// Longest train that the hosts poll for.
const LONGEST: u32 = 7;
/// Length of the longest message, in bytes.
const LONGEST_MESSAGE: u32 = 12_000;

/// A QP with its host.
struct End {
    qp: TestQp,
    host: MockHost,
}

/// A pair of connected QPs.
struct Pair {
    ends: [End; 2],
    now: Instant,
}

/// The fate of a train that was polled.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It arrives as one.
    Arrives,
    /// Its packets arrive one by one.
    IsSplit,
    /// Only its first packets arrive, this many at most.
    IsCut(u32),
    /// It is lost in the network.
    IsLost,
    /// It doesn't leave. The sender's host reports this only for a train of one packet.
    IsDropped,
    /// The sender's host withdraws a train of several packets. Then its first packet arrives.
    IsWithdrawn,
}

#[derive(Clone, Debug)]
enum Event {
    /// End 0 posts a request. End 1 posts none: if both sides of a QP have packets, they alternate
    /// by trains, so that the order of a train's packets among others differs.
    Post {
        op: u8,
        length: u32,
        signaled: bool,
    },
    /// End 1 posts a receive buffer.
    PostRecv {
        length: u32,
    },
    Poll {
        end: usize,
        limit: u32,
        fate: Fate,
    },
    /// One kind of the memory accesses of the end's host fails from now on, or all succeed again.
    Fault {
        end: usize,
        fault: u8,
    },
    /// Time passes until the timers of both ends have expired.
    Time,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        10 => Just(Fate::Arrives),
        2 => Just(Fate::IsSplit),
        2 => (1..LONGEST).prop_map(Fate::IsCut),
        1 => Just(Fate::IsLost),
        1 => Just(Fate::IsDropped),
        2 => Just(Fate::IsWithdrawn),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let length = prop_oneof![0..100u32, 0..LONGEST_MESSAGE, Just(1024), Just(4096)];
    prop_oneof![
        6 => (0..8u8, length.clone(), any::<bool>())
            .prop_map(|(op, length, signaled)| Event::Post { op, length, signaled }),
        5 => length.prop_map(|length| {
            let length = if length % 5 == 0 { length } else { LONGEST_MESSAGE };
            Event::PostRecv { length }
        }),
        30 => (0..2usize, 1..=LONGEST, fate()).prop_map(
            |(end, limit, fate)| Event::Poll { end, limit, fate }
        ),
        1 => (0..2usize, 0..12u8).prop_map(|(end, fault)| Event::Fault { end, fault }),
        1 => Just(Event::Time),
    ]
}

impl Pair {
    fn new() -> Self {
        let end = || {
            let mut host = MockHost::new();
            let qp = connected(
                QpKind::Rc,
                Psn::new(0xff_fff0),
                Psn::new(0xff_fff0),
                &mut host,
            );
            End { qp, host }
        };
        Self {
            ends: [end(), end()],
            now: NOW,
        }
    }

    fn post(&mut self, op: u8, length: u32, signaled: bool) {
        let host = &mut self.ends[0].host;
        let remote = RemoteAddr {
            va: BASE + u64::from(length % 512),
            rkey: RKEY,
        };
        let op = match op {
            0 => SendOp::Send(SendExtra::Plain),
            1 => SendOp::Send(SendExtra::Imm(Imm(length))),
            2 => SendOp::Send(SendExtra::Invalidate(Rkey(9))),
            3 => SendOp::Write(remote, None),
            4 => SendOp::Write(remote, Some(Imm(length))),
            5 => SendOp::Atomic(
                RemoteAddr { va: BASE, ..remote },
                AtomicOp::FetchAdd { add: 3 },
            ),
            _ => SendOp::Read(remote),
        };
        let length = if matches!(op, SendOp::Atomic(..)) {
            8
        } else {
            length
        };
        let seed = length as usize + host.send_buffers.len();
        let payload = (0..length as usize)
            .map(|at| (at * 7 + at / 256 + seed) as u8)
            .collect();
        host.post_send_with(op, payload, |wr| {
            wr.signaled = signaled;
            wr.solicited = length % 3 == 0;
        });
    }

    fn set_fault(&mut self, end: usize, fault: u8) {
        let host = &mut self.ends[end].host;
        (
            host.access_fault,
            host.recv_fault,
            host.send_fault,
            host.absent,
        ) = match fault {
            0 => (Some(AccessFault::Denied), None, None, false),
            1 => (Some(AccessFault::Retry), None, None, false),
            2 => (None, Some(WcStatus::LocProtErr), None, false),
            3 => (None, None, Some(WcStatus::LocProtErr), false),
            4 => (None, None, None, true),
            _ => (None, None, None, false),
        };
    }

    fn poll(&mut self, end: usize, limit: u32) -> Option<Transmit> {
        let End { qp, host } = &mut self.ends[end];
        qp.poll_train(self.now, TrainLimits::both(limit), host)
    }

    /// Reads the payload of a train, as its sender's host does.
    fn read(&self, end: usize, transmit: &Transmit) -> Vec<u8> {
        let host = &self.ends[end].host;
        let length = transmit.packet.payload_len as usize;
        match transmit.source {
            Source::None => Vec::new(),
            Source::Send { slot, offset } => {
                host.send_buffers[slot.0 as usize][offset as usize..][..length].to_vec()
            }
            Source::Remote { va, .. } => host.memory[(va - BASE) as usize..][..length].to_vec(),
        }
    }

    /// Passes the first `count` packets of a train to the other end, as one if `whole` is set and
    /// the QP takes it.
    fn deliver(&mut self, from: usize, train: &Train, payload: &[u8], count: u32, whole: bool) {
        let End { qp, host } = &mut self.ends[1 - from];
        let payload_of =
            |offset: u32, length: u32| payload[offset as usize..][..length as usize].to_vec();
        check_description(train);
        if whole {
            host.payload = payload.to_vec();
            if qp.handle_train(self.now, train, host) {
                return;
            }
        }
        for index in 0..count.min(train.count) {
            let (packet, offset) = train.packet(index);
            host.payload = payload_of(offset, packet.payload_len);
            qp.handle_packet(self.now, &packet, host);
        }
    }

    fn pass_time(&mut self) {
        self.now = self.now.after(Duration(1 << 30));
        for End { qp, host } in &mut self.ends {
            qp.handle_timeout(self.now, host);
        }
    }
}

/// Checks that a host that gets `train` as one packet with its number of packets finds the train.
fn check_description(train: &Train) {
    let header = train.packet.encode();
    let length = header.len() + (train.packet.payload_len.next_multiple_of(4)) as usize + ICRC_LEN;
    let decoded = decode_train(&header, length).unwrap();
    assert_eq!(decoded.payload_offset, header.len());
    let expected = (train.count > 1).then_some(*train);
    assert_eq!(Train::of(decoded.packet, train.count), expected);
    if train.count > 1 {
        assert_eq!(Train::of(decoded.packet, train.count * 64), None);
        assert_eq!(Train::of(decoded.packet, 1), None);
    }
}

/// Polls both pairs for the same packets, and lets them meet the same fate.
fn poll_both(singles: &mut Pair, trains: &mut Pair, end: usize, limit: u32, fate: Fate) {
    let Some(mut transmit) = trains.poll(end, limit) else {
        assert_eq!(singles.poll(end, 1), None);
        return;
    };
    assert!((1..=limit).contains(&transmit.count));
    if matches!(fate, Fate::IsWithdrawn) && transmit.count > 1 {
        trains.ends[end].qp.withdraw(&transmit);
        transmit = trains.poll(end, 1).unwrap();
        assert_eq!(transmit.count, 1);
    }
    let train = transmit.train(MTU);
    let payload = trains.read(end, &transmit);
    let mut polled = vec![];
    for index in 0..train.count {
        let single = singles.poll(end, 1).unwrap();
        assert_eq!(single.count, 1);
        let (packet, offset) = train.packet(index);
        assert_eq!(single.packet, packet);
        assert_eq!(single.retransmission, transmit.retransmission);
        let bytes = singles.read(end, &single);
        assert_eq!(
            bytes,
            &payload[offset as usize..][..packet.payload_len as usize]
        );
        polled.push((single, bytes));
    }
    let arrives = match fate {
        Fate::Arrives | Fate::IsSplit | Fate::IsWithdrawn => train.count,
        Fate::IsCut(count) => count.min(train.count),
        Fate::IsLost => 0,
        Fate::IsDropped if train.count > 1 => 0,
        Fate::IsDropped => {
            for pair in [singles, trains] {
                pair.ends[end].qp.transmit_dropped(pair.now, &transmit);
            }
            return;
        }
    };
    for (single, bytes) in &polled[..arrives as usize] {
        singles.deliver(end, &single.train(MTU), bytes, 1, false);
    }
    let whole = arrives == train.count && !matches!(fate, Fate::IsSplit);
    trains.deliver(end, &train, &payload, arrives, whole);
}

/// Returns the short fields of a host in which a failure shows.
fn seen(host: &MockHost) -> impl core::fmt::Debug + '_ {
    (
        host.sent(),
        &host.recv_wcs,
        &host.events,
        &host.counts,
        &host.invalidated,
        (host.recvs.len(), host.released.len(), host.retired.len()),
        host.memory.iter().rposition(|byte| *byte != 0),
    )
}

/// Compares all that the owners and the peers of the QPs can see.
fn compare(singles: &mut Pair, trains: &mut Pair) {
    for (single, train) in singles.ends.iter_mut().zip(&mut trains.ends) {
        // The poll of a train that is withdrawn may take a WQE early, to see whether one follows.
        let mut posted = [VecDeque::new(), VecDeque::new()];
        for (End { host, .. }, posted) in [&mut *single, &mut *train].into_iter().zip(&mut posted) {
            host.payload.clear();
            host.checks = 0;
            host.counts.retain(|count| *count != Count::AckDeferred);
            core::mem::swap(&mut host.sends, posted);
        }
        // Not `assert_eq`: the message would contain the whole memory.
        assert!(
            single.host == train.host,
            "{:?} and {:?}",
            seen(&single.host),
            seen(&train.host)
        );
        assert_eq!(single.qp.attrs(), train.qp.attrs());
        assert_eq!(single.qp.poll_timeout(), train.qp.poll_timeout());
        if posted[0].len() == posted[1].len() {
            assert_eq!(single.qp.rests(), train.qp.rests());
        }
        [single.host.sends, train.host.sends] = posted;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        max_shrink_iters: 4096,
        ..ProptestConfig::default()
    })]

    #[test]
    fn trains_have_the_effects_of_their_packets(events in prop::collection::vec(event(), 1..120)) {
        assert!(LONGEST_MESSAGE as usize + 512 < MEMORY_LEN);
        let (mut singles, mut trains) = (Pair::new(), Pair::new());
        for event in events {
            match event {
                Event::Poll { end, limit, fate } => {
                    poll_both(&mut singles, &mut trains, end, limit, fate);
                }
                event => {
                    for pair in [&mut singles, &mut trains] {
                        match event {
                            Event::Post { op, length, signaled } => {
                                pair.post(op, length, signaled)
                            }
                            Event::PostRecv { length } => {
                                pair.ends[1].host.post_recv(length);
                            }
                            Event::Fault { end, fault } => pair.set_fault(end, fault),
                            Event::Time => pair.pass_time(),
                            Event::Poll { .. } => {}
                        }
                    }
                }
            }
            compare(&mut singles, &mut trains);
        }
    }
}

#[test]
fn withdrawn_trains_do_not_count_towards_the_next_acknowledgment_request() {
    let (mut singles, mut trains) = (Pair::new(), Pair::new());
    for _ in 0..10 {
        for pair in [&mut singles, &mut trains] {
            pair.post(3, LONGEST_MESSAGE, false);
        }
    }
    for _ in 0..100 {
        poll_both(&mut singles, &mut trains, 0, LONGEST, Fate::IsWithdrawn);
        compare(&mut singles, &mut trains);
    }
}

#[test]
fn read_requests_say_whether_lost_responses_are_repeated() {
    for (timeout, retry_cnt, repeats) in [(14, 3, true), (0, 3, false), (14, 0, false)] {
        let mut host = MockHost::new();
        let mut requester = qp(QpKind::Rc, 8);
        let rts = Attrs {
            timeout: Some(timeout),
            retry_cnt: Some(retry_cnt),
            ..to_rts(QpKind::Rc, FIRST)
        };
        for attrs in [to_init(QpKind::Rc), to_rtr(QpKind::Rc, FIRST), rts] {
            requester.modify(NOW, &attrs, &mut host).unwrap();
        }
        let read = SendOp::Read(RemoteAddr {
            va: BASE,
            rkey: RKEY,
        });
        host.post_send(read, vec![0; 8]);
        host.post_send(SEND, vec![0; 8]);
        let sent = drain(&mut requester, NOW, &mut host);
        let marks = sent
            .iter()
            .map(|sent| sent.packet.bth.reserved.repeats_reads());
        assert_eq!(marks.collect::<Vec<_>>(), [repeats, false]);

        let (mut responder, mut host) = in_rts(QpKind::Rc);
        assert!(!responder.peer_repeats_reads());
        responder.handle_packet(NOW, &sent[0].packet, &mut host);
        assert_eq!(responder.peer_repeats_reads(), repeats);
    }
}
