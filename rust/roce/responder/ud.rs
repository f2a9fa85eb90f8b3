// SPDX-License-Identifier: GPL-2.0

//! The receipt of datagrams (IBTA 1.x §9.8.3).
//!
//! A receive buffer starts with 40 bytes for the global route header. The host fills them in when
//! the engine stores the payload after them, even an empty one. A datagram that can't be received
//! is dropped, and so is one that is too long for the next buffer: an unknown sender must not be
//! able to break the QP.

use super::{Received, Refusal, Replay, Responder};
use crate::host::{Host, QpDropReason};
use crate::ids::{Pkey, Qkey};
use crate::qp::{Context, Outcome, QpKind, Slots};
use crate::wc::{RecvExtra, WcOpcode};
use crate::wire::packet::{Body, Deth, Packet, SendPart, Service};
use crate::wire::{grh::GRH_LEN, mad};
use crate::wr::SendExtra;

/// Length of a management datagram (IBTA 1.x §13.4.2), and of every payload for QP1, in bytes.
/// ib_core assumes that each received payload has this length, so after a shorter payload it would
/// read the remains of an older datagram (`ib_mad_recv_done()`, drivers/infiniband/core/mad.c).
const MAD_LEN: u32 = mad::MAD_LEN as u32;

/// Queue key of QP1 (§3.5.3).
const GSI_QKEY: Qkey = Qkey(0x8001_0000);

impl<R: Slots<Replay>> Responder<R> {
    /// Receives a packet on an unreliable datagram or general service QP.
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

    /// Stores a datagram in the next receive WQE, and completes the WQE.
    ///
    /// # Errors
    ///
    /// Returns the [`Refusal`] of a datagram that isn't received.
    fn receive_datagram<H: Host>(
        &mut self,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let received = match context.config.kind {
            QpKind::Gsi => management(packet),
            _ => datagram(packet, context.settings.qkey),
        };
        let (deth, extra) = received.map_err(Refusal::Dropped)?;
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

/// Checks that a packet is a management datagram, the only kind that QP1 accepts. Doesn't check the
/// state of QP1.
///
/// # Errors
///
/// Returns the reason for which QP1 drops the packet.
pub fn check_management(packet: &Packet) -> Result<(), QpDropReason> {
    if !matches!(packet.service, Service::Ud(_)) {
        return Err(QpDropReason::Service);
    }
    if !packet.bth.pkey.matches(Pkey::DEFAULT) {
        return Err(QpDropReason::Pkey);
    }
    management(packet).map(|_| ())
}

/// Returns the datagram header and the immediate data of a management datagram.
///
/// # Errors
///
/// Returns the drop reason of a packet that isn't a datagram for QP1.
fn management(packet: &Packet) -> Result<(Deth, RecvExtra), QpDropReason> {
    let received = datagram(packet, GSI_QKEY)?;
    match packet.payload_len {
        MAD_LEN => Ok(received),
        _ => Err(QpDropReason::Invalid),
    }
}

/// Returns the datagram header and the immediate data of a packet.
///
/// # Errors
///
/// Returns the drop reason of a packet that isn't a datagram for a QP with the queue key `own`.
fn datagram(packet: &Packet, own: Qkey) -> Result<(Deth, RecvExtra), QpDropReason> {
    let (deth, extra) = match (packet.service, packet.body) {
        (Service::Ud(deth), Body::Send(SendPart::Only(SendExtra::Plain))) => {
            (deth, RecvExtra::None)
        }
        (Service::Ud(deth), Body::Send(SendPart::Only(SendExtra::Imm(imm)))) => {
            (deth, RecvExtra::Imm(imm))
        }
        _ => return Err(QpDropReason::Invalid),
    };
    if deth.qkey != own {
        return Err(QpDropReason::Qkey);
    }
    Ok((deth, extra))
}
