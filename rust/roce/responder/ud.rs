// SPDX-License-Identifier: GPL-2.0

//! Receiving datagrams (IBTA 1.x §9.8.3).
//!
//! A receive buffer starts with 40 bytes for the global route header, which the host fills in when
//! the engine places the payload behind it, even an empty one. A datagram that can't be received
//! is dropped, and one that is too long for the next buffer too: its sender needn't be known, so
//! it must not be able to break the QP.

use super::{Received, Refusal, Replay, Responder};
use crate::host::{Host, QpDropReason};
use crate::ids::Qkey;
use crate::qp::{Context, Outcome, QpKind, Slots};
use crate::wc::{RecvExtra, WcOpcode};
use crate::wire::packet::{Body, Deth, Packet, SendPart, Service};
use crate::wr::SendTail;

/// Bytes at the start of a receive buffer that hold the global route header.
pub const GRH_LEN: u32 = 40;

/// Bytes of a management datagram (IBTA 1.x §13.4.2), and of every payload for QP1. Linux takes its receives to be full,
/// so behind a shorter payload it would read an older datagram (`ib_mad_recv_done()`, drivers/infiniband/core/mad.c).
const MAD_LEN: u32 = 256;

/// The queue key of QP1 (§3.5.3).
const GSI_QKEY: Qkey = Qkey(0x8001_0000);

impl<R: Slots<Replay>> Responder<R> {
    /// A packet of an unreliable datagram or general service QP.
    pub(super) fn handle_datagram<H: Host>(
        &mut self,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        match self.receive_datagram(packet, context, host) {
            Ok(()) => Outcome::Continue,
            Err(refusal) => self.abandon_packet(refusal, context, host),
        }
    }

    fn receive_datagram<H: Host>(
        &mut self,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let (deth, extra) = datagram(packet).ok_or(Refusal::Lost(QpDropReason::Invalid))?;
        if deth.qkey != own_qkey(context) {
            return Err(Refusal::Lost(QpDropReason::Qkey));
        }
        let is_mad = packet.payload_len == MAD_LEN;
        if context.config.kind == QpKind::Gsi && !is_mad {
            return Err(Refusal::Lost(QpDropReason::Invalid));
        }
        let wr = self.hold(None, host)?;
        let byte_len = packet.payload_len.saturating_add(GRH_LEN);
        if byte_len > wr.length {
            return Err(Refusal::TooLong);
        }
        host.scatter_recv(wr.slot, GRH_LEN)?;
        self.complete_held(
            Received {
                opcode: WcOpcode::Recv,
                byte_len,
                extra,
                src_qp: deth.src,
                solicited: packet.bth.solicited,
                grh: true,
            },
            host,
        );
        Ok(())
    }
}

/// What a packet has to be to be a datagram.
fn datagram(packet: &Packet) -> Option<(Deth, RecvExtra)> {
    match (packet.service, packet.body) {
        (Service::Ud(deth), Body::Send(SendPart::Only(SendTail::Plain))) => {
            Some((deth, RecvExtra::None))
        }
        (Service::Ud(deth), Body::Send(SendPart::Only(SendTail::Imm(imm)))) => {
            Some((deth, RecvExtra::Imm(imm)))
        }
        _ => None,
    }
}

fn own_qkey(context: &Context) -> Qkey {
    match context.config.kind {
        QpKind::Gsi => GSI_QKEY,
        _ => context.settings.qkey,
    }
}
