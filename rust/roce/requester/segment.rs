// SPDX-License-Identifier: GPL-2.0

//! The division of a WQE's message into packets (IBTA 1.x §9.4, §9.7.2).

use super::wqe::SendWqe;
use crate::ids::{Imm, Pkey, Qkey, Qpn};
use crate::qp::{Context, QpKind};
use crate::transmit::{Source, Transmit};
use crate::wire::packet::{
    AtomicEth, Body, Bth, Deth, Packet, Reserved, Reth, SendPart, Service, WritePart,
};
use crate::wr::{RemoteAddr, SendExtra, SendOp, UdDest};

/// A queue key with this bit in a work request stands for the QP's own queue key (IBTA 1.x
/// §10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// The properties of a packet that don't follow from its WQE.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// The packet requests an acknowledgment.
    pub(super) asks: bool,
    /// The packet was sent before.
    pub(super) again: bool,
    /// The reserved bits of the packet. [`build`] adds `repeats_reads`.
    pub(super) reserved: Reserved,
}

/// Builds a train of `count` requests that starts with packet `index` of `wqe`. Returns `None` for
/// a local operation, which has no packets.
pub(super) fn build(
    wqe: &SendWqe,
    index: u32,
    count: u32,
    marks: Marks,
    context: &Context,
) -> Option<Transmit> {
    let last = index.wrapping_add(count) >= wqe.packets;
    let (body, solicitable) = match wqe.wr.op {
        SendOp::Send(extra) => (Body::Send(send_part(index, last, extra)), true),
        SendOp::Datagram(_, imm) => (Body::Send(SendPart::Only(extra_of(imm))), true),
        SendOp::Write(remote, imm) => {
            let reth = whole(wqe, remote);
            (
                Body::Write(write_part(index, last, reth, imm)),
                imm.is_some(),
            )
        }
        SendOp::Read(remote) => (Body::ReadRequest(rest(wqe, remote, index, context)), false),
        SendOp::Atomic(RemoteAddr { va, rkey }, op) => {
            (Body::Atomic(AtomicEth { va, rkey, op }), false)
        }
        SendOp::AtomicWrite(remote) => (Body::AtomicWrite(whole(wqe, remote)), false),
        SendOp::Flush(remote, kind) => (Body::Flush(kind, whole(wqe, remote)), false),
        SendOp::Local(_) => return None,
    };
    let (source, payload_len) = payload(wqe, index, count, context);
    let (service, dest) = address(wqe, context);
    let repeats_reads = matches!(body, Body::ReadRequest(_)) && context.settings.retries_losses();
    let reserved = match repeats_reads {
        true => marks.reserved.with_repeats_reads(true),
        false => marks.reserved,
    };
    let bth = Bth {
        dest,
        psn: wqe.first.plus(index),
        pkey: Pkey::DEFAULT,
        solicited: wqe.wr.solicited && solicitable && last,
        ack_req: marks.asks,
        mig_req: true,
        reserved,
    };
    let packet = Packet {
        service,
        bth,
        body,
        payload_len,
    };
    Some(Transmit {
        packet,
        count,
        source,
        retransmission: marks.again,
    })
}

/// Returns the place in a SEND of the packets from `index` on. `last` says whether they contain the
/// last one.
fn send_part(index: u32, last: bool, extra: SendExtra) -> SendPart {
    match (index, last) {
        (0, true) => SendPart::Only(extra),
        (0, false) => SendPart::First,
        (_, true) => SendPart::Last(extra),
        (_, false) => SendPart::Middle,
    }
}

/// Returns the place in an RDMA WRITE, as [`send_part`] does.
fn write_part(index: u32, last: bool, reth: Reth, imm: Option<Imm>) -> WritePart {
    match (index, last) {
        (0, true) => WritePart::Only(reth, imm),
        (0, false) => WritePart::First(reth),
        (_, true) => WritePart::Last(imm),
        (_, false) => WritePart::Middle,
    }
}

fn extra_of(imm: Option<Imm>) -> SendExtra {
    imm.map_or(SendExtra::Plain, SendExtra::Imm)
}

/// Returns the RETH of the whole remote range.
fn whole(wqe: &SendWqe, remote: RemoteAddr) -> Reth {
    Reth {
        va: remote.va,
        rkey: remote.rkey,
        length: wqe.wr.length,
    }
}

/// Returns the range that a READ request asks for if it starts with packet `index`.
fn rest(wqe: &SendWqe, remote: RemoteAddr, index: u32, context: &Context) -> Reth {
    let mtu = context.settings.path_mtu;
    let (offset, _) = wqe.piece(index, mtu);
    let (end, _) = wqe.piece(index.wrapping_add(wqe.span(index)), mtu);
    Reth {
        va: remote.va.wrapping_add(u64::from(offset)),
        rkey: remote.rkey,
        length: end.min(wqe.wr.length).saturating_sub(offset),
    }
}

/// Returns the place of the payload of `count` packets from packet `index` on, and its length.
fn payload(wqe: &SendWqe, index: u32, count: u32, context: &Context) -> (Source, u32) {
    let slot = wqe.wr.slot;
    let (offset, length) = match wqe.wr.op {
        // The slot also names the address of a datagram, so an empty datagram has a source, too.
        SendOp::Datagram(..) => return (Source::Send { slot, offset: 0 }, wqe.wr.length),
        SendOp::Send(_) | SendOp::Write(..) | SendOp::AtomicWrite(_) => {
            wqe.train_piece(index, count, context.settings.path_mtu)
        }
        SendOp::Read(_) | SendOp::Atomic(..) | SendOp::Flush(..) | SendOp::Local(_) => (0, 0),
    };
    if length == 0 {
        (Source::None, 0)
    } else {
        (Source::Send { slot, offset }, length)
    }
}

/// Returns the transport service and the destination QP.
fn address(wqe: &SendWqe, context: &Context) -> (Service, Qpn) {
    if let SendOp::Datagram(UdDest { qpn, qkey }, _) = wqe.wr.op {
        let qkey = own_or_given(qkey, context);
        let src = context.config.qpn;
        return (Service::Ud(Deth { qkey, src }), qpn);
    }
    let service = match context.config.kind {
        QpKind::Uc => Service::Uc,
        QpKind::XrcIni | QpKind::XrcTgt => Service::Xrc(Some(wqe.wr.srqn)),
        QpKind::Rc | QpKind::Ud | QpKind::Gsi | QpKind::RawPacket => Service::Rc,
    };
    (service, context.settings.dest_qpn)
}

/// Returns the queue key of a datagram: `given`, or the QP's own if [`OWN_QKEY`] is set.
fn own_or_given(given: Qkey, context: &Context) -> Qkey {
    if given.0 & OWN_QKEY == 0 {
        given
    } else {
        context.settings.qkey
    }
}
