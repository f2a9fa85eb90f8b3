// SPDX-License-Identifier: GPL-2.0

//! Tests of raw packet QPs, which receive whole frames.

use super::*;
use crate::ids::Qpn;
use crate::testing::SRQN;
use crate::wc::{RecvExtra, RecvWc, WcOpcode};

/// Passes a frame to the QP. It goes to the oldest receive WQE that the QP has not completed.
fn receive(qp: &mut TestQp, host: &mut MockHost, frame: &[u8]) {
    let length = frame.len() as u32;
    host.payload = frame.to_vec();
    qp.handle_frame(length, host, |host| {
        let slot = host.recv_buffers.len() - host.recvs.len() - 1;
        crate::host::RecvQueue::scatter_recv(host, crate::wr::RecvSlot(slot as u32), 0)
    });
}

#[test]
fn a_frame_fills_a_receive_from_its_start() {
    let (mut qp, mut host) = in_rts(QpKind::RawPacket);
    host.post_recv(100);
    host.post_recv(4);
    receive(&mut qp, &mut host, b"some frame");
    receive(&mut qp, &mut host, b"fits");
    assert_eq!(&host.recv_buffers[0][..11], b"some frame\0");
    assert_eq!(&host.recv_buffers[1], b"fits");
    let wc = RecvWc {
        wr_id: 0,
        status: Success,
        opcode: WcOpcode::Recv,
        byte_len: 10,
        extra: RecvExtra::None,
        src_qp: Qpn::default(),
        solicited: false,
        grh: false,
    };
    let second = RecvWc {
        wr_id: 1,
        byte_len: 4,
        ..wc
    };
    assert_eq!(host.recv_wcs, [wc, second]);
    assert_eq!(host.released.len(), 2);
    assert!(host.events.is_empty());
}

#[test]
fn a_frame_that_is_too_long_breaks_the_qp() {
    let (mut qp, mut host) = in_rts(QpKind::RawPacket);
    host.post_recv(4);
    host.post_recv(100);
    receive(&mut qp, &mut host, b"byte!");
    assert_eq!(qp.state(), QpState::Err);
    drain(&mut qp, NOW, &mut host);
    let ended: Vec<_> = host
        .recv_wcs
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    assert_eq!(ended, [(0, WcStatus::LocLenErr), (1, WrFlushErr)]);
    receive(&mut qp, &mut host, b"late");
    assert_eq!(host.count_of(Count::Dropped(QpDropReason::State)), 1);
}

#[test]
fn a_frame_without_a_receive_is_dropped() {
    let (mut qp, mut host) = in_rts(QpKind::RawPacket);
    receive(&mut qp, &mut host, b"lost");
    assert_eq!(host.count_of(Count::Dropped(QpDropReason::NoReceive)), 1);
    host.post_recv(8);
    receive(&mut qp, &mut host, b"found");
    assert_eq!(host.recv_wcs.len(), 1);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn a_frame_for_absent_memory_may_arrive_again() {
    let (mut qp, mut host) = in_rts(QpKind::RawPacket);
    host.post_recv(8);
    host.absent = true;
    receive(&mut qp, &mut host, b"frame");
    assert!(host.recv_wcs.is_empty() && host.counts.is_empty());
    host.absent = false;
    receive(&mut qp, &mut host, b"frame");
    assert_eq!(&host.recv_buffers[0][..5], b"frame");
    assert_eq!(host.recv_wcs.len(), 1);
}

#[test]
fn memory_that_is_not_granted_breaks_the_qp() {
    let (mut qp, mut host) = in_rts(QpKind::RawPacket);
    host.post_recv(8);
    host.recv_fault = Some(LocProtErr);
    receive(&mut qp, &mut host, b"frame");
    assert_eq!(host.recv_wcs[0].status, LocProtErr);
    assert_eq!(qp.state(), QpState::Err);
}

#[test]
fn frames_are_for_raw_packet_qps_that_receive() {
    let (mut ud, mut host) = in_rts(QpKind::Ud);
    host.post_recv(100);
    receive(&mut ud, &mut host, b"frame");
    assert_eq!(host.counts, [Count::Dropped(QpDropReason::Service)]);
    let (mut fresh, mut host) = (qp(QpKind::RawPacket, 4), MockHost::new());
    receive(&mut fresh, &mut host, b"frame");
    fresh
        .modify(NOW, &to_init(QpKind::RawPacket), &mut host)
        .unwrap();
    receive(&mut fresh, &mut host, b"frame");
    assert_eq!(host.counts, [Count::Dropped(QpDropReason::State); 2]);
    fresh
        .modify(NOW, &to_rtr(QpKind::RawPacket, FIRST), &mut host)
        .unwrap();
    host.post_recv(8);
    receive(&mut fresh, &mut host, b"frame");
    assert_eq!(host.recv_wcs.len(), 1);
    // Packets of other services are dropped.
    fresh.handle_packet(NOW, &send_only(FIRST), &mut host);
    let named = packet(Service::Xrc(Some(SRQN)), FIRST, send_only(FIRST).body, 0);
    fresh.handle_packet(NOW, &named, &mut host);
    assert_eq!(host.count_of(Count::Dropped(QpDropReason::Service)), 2);
}
