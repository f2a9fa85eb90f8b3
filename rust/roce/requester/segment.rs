// SPDX-License-Identifier: GPL-2.0

//! From a WQE to the packets of its message (IBTA 1.x §9.4, §9.7.2).

use super::wqe::SendWqe;
use crate::ids::{Imm, Pkey, Qkey, Qpn};
use crate::qp::{Context, QpKind};
use crate::transmit::{Source, Transmit};
use crate::wire::packet::{AtomicEth, Body, Bth, Deth, Packet, Reth, SendPart, Service, WritePart};
use crate::wr::{RemoteAddr, SendOp, SendTail, UdDest};

/// A queue key with this bit, as a work request gives it, stands for the QP's own (IBTA 1.x
/// §10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// What a packet says beside its WQE.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// An acknowledgement is asked for.
    pub(super) asks: bool,
    /// It was sent before.
    pub(super) again: bool,
}

/// The request that starts with packet `index` of `wqe`; `None` for what has no packets.
pub(super) fn build(
    wqe: &SendWqe,
    index: u32,
    marks: Marks,
    context: &Context,
) -> Option<Transmit> {
    let last = index.wrapping_add(1) >= wqe.packets;
    let (body, solicitable) = match wqe.wr.op {
        SendOp::Send(tail) => (Body::Send(send_part(index, last, tail)), true),
        SendOp::Datagram(_, imm) => (Body::Send(SendPart::Only(tail_of(imm))), true),
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
    let (source, payload_len) = payload(wqe, index, context);
    let (service, dest) = address(wqe, context);
    let bth = Bth {
        dest,
        psn: wqe.first.plus(index),
        pkey: Pkey::DEFAULT,
        solicited: wqe.wr.solicited && solicitable && last,
        ack_req: marks.asks,
        mig_req: true,
        fecn: false,
        becn: false,
    };
    let packet = Packet {
        service,
        bth,
        body,
        payload_len,
    };
    Some(Transmit {
        packet,
        source,
        retransmission: marks.again,
    })
}

fn send_part(index: u32, last: bool, tail: SendTail) -> SendPart {
    match (index, last) {
        (0, true) => SendPart::Only(tail),
        (0, false) => SendPart::First,
        (_, true) => SendPart::Last(tail),
        (_, false) => SendPart::Middle,
    }
}

fn write_part(index: u32, last: bool, reth: Reth, imm: Option<Imm>) -> WritePart {
    match (index, last) {
        (0, true) => WritePart::Only(reth, imm),
        (0, false) => WritePart::First(reth),
        (_, true) => WritePart::Last(imm),
        (_, false) => WritePart::Middle,
    }
}

fn tail_of(imm: Option<Imm>) -> SendTail {
    imm.map_or(SendTail::Plain, SendTail::Imm)
}

fn whole(wqe: &SendWqe, remote: RemoteAddr) -> Reth {
    Reth {
        va: remote.va,
        rkey: remote.rkey,
        length: wqe.wr.length,
    }
}

/// What a READ request that starts with packet `index` asks for.
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

/// Where the payload of packet `index` lies, and its length.
fn payload(wqe: &SendWqe, index: u32, context: &Context) -> (Source, u32) {
    let slot = wqe.wr.slot;
    let (offset, length) = match wqe.wr.op {
        // The slot also names the address of a datagram, be it empty.
        SendOp::Datagram(..) => return (Source::Send { slot, offset: 0 }, wqe.wr.length),
        SendOp::Send(_) | SendOp::Write(..) | SendOp::AtomicWrite(_) => {
            wqe.piece(index, context.settings.path_mtu)
        }
        SendOp::Read(_) | SendOp::Atomic(..) | SendOp::Flush(..) | SendOp::Local(_) => (0, 0),
    };
    if length == 0 {
        (Source::None, 0)
    } else {
        (Source::Send { slot, offset }, length)
    }
}

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

fn own_or_given(given: Qkey, context: &Context) -> Qkey {
    if given.0 & OWN_QKEY == 0 {
        given
    } else {
        context.settings.qkey
    }
}
