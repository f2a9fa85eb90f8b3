// SPDX-License-Identifier: GPL-2.0

//! Tests of the limit on the work requests that a run starts, finishes or flushes.

use super::*;
use crate::wr::LocalOp;

/// Number of packets that the host polls in a run.
const PACKETS: usize = 32;
/// Maximum number of work requests without a packet that a run processes in each queue.
const STEPS: usize = 64;

const BIND: SendOp = SendOp::Local(LocalOp::BindMw);
/// Payload length that exceeds every port MTU.
const TOO_LONG: usize = 8192;

/// Makes one run of a host. Returns the number of its packets.
fn run(qp: &mut TestQp, host: &mut MockHost) -> usize {
    qp.begin_run();
    let sent = std::iter::from_fn(|| qp.poll_transmit(NOW, host));
    sent.take(PACKETS).count()
}

/// Makes runs until nothing is left. Returns the number of packets of all runs, and the largest
/// number by which one run lowered `left`.
fn runs(qp: &mut TestQp, host: &mut MockHost, left: fn(&MockHost) -> usize) -> (usize, usize) {
    let (mut packets, mut most) = (0, 0);
    for _ in 0..10_000 {
        let before = left(host);
        let sent = run(qp, host);
        packets += sent;
        most = most.max(before - left(host));
        if sent < PACKETS && qp.poll_timeout().is_none() {
            return (packets, most);
        }
    }
    panic!("never comes to rest");
}

/// Before each request that sends a packet, the queue has 60 requests that send none: nearly as
/// many as a run processes.
#[test]
fn few_requests_without_a_packet_start_in_a_run() {
    let cases = [
        (QpKind::Ud, DATAGRAM, TOO_LONG, DATAGRAM),
        (QpKind::Uc, BIND, 0, SEND),
    ];
    for (kind, silent, length, op) in cases {
        let (mut qp, mut host) = in_rts(kind);
        let payload = vec![0; length];
        for _ in 0..40 {
            for _ in 4..STEPS {
                host.post_send(silent, payload.clone());
            }
            host.post_send(op, vec![]);
        }
        let posted = host.sends.len();
        let (packets, most) = runs(&mut qp, &mut host, |host| host.sends.len());
        assert_eq!(packets, 40, "{kind:?}");
        assert_eq!(host.sent().len(), posted, "{kind:?}");
        // A run may take one request that it doesn't start, to see whether the queue is empty.
        assert!(most <= STEPS + 1, "{kind:?}: {most}");
    }
}

/// The limit on steps doesn't end a run of requests with one packet each before the host's limit
/// on packets does.
#[test]
fn a_run_of_packets_is_not_cut_short() {
    for (kind, op) in [(QpKind::Ud, DATAGRAM), (QpKind::Uc, SEND)] {
        let (mut qp, mut host) = in_rts(kind);
        for _ in 0..10 * PACKETS {
            host.post_send(op, vec![]);
        }
        for _ in 0..10 {
            assert_eq!(run(&mut qp, &mut host), PACKETS, "{kind:?}");
        }
    }
}

/// Responses that are still due don't make a run flush more.
#[test]
fn few_requests_are_flushed_in_a_run_that_answers() {
    let (mut qp, mut host) = broken::broken();
    for _ in 0..2000 {
        host.post_send(SEND, vec![]);
        host.post_recv(1);
    }
    let (packets, most) = runs(&mut qp, &mut host, |host| {
        host.sends.len().max(host.recvs.len())
    });
    assert_eq!((packets, most), (65, STEPS));
    assert_eq!((host.sent().len(), host.recv_wcs.len()), (2000, 2000));
}

/// The second poll takes all steps and returns a response. Work is left, but no timer runs.
#[test]
fn a_backlog_after_an_answer_is_no_deadline() {
    let (mut qp, mut host) = in_rts(QpKind::Rc);
    let request = read_request(8 * 1024);
    qp.handle_packet(NOW, &request, &mut host);
    for _ in 0..2 * STEPS {
        host.post_send(BIND, vec![]);
    }
    assert!(qp.poll_transmit(NOW, &mut host).is_some());
    assert_eq!(qp.poll_timeout(), None);
    assert!(qp.poll_transmit(NOW, &mut host).is_some());
    assert_eq!(host.sent().len(), STEPS);
    assert_eq!(qp.poll_timeout(), Some(Instant(0)));
    assert_eq!(qp.deadline(), None);
    assert!(!qp.flushes());
}
