// SPDX-License-Identifier: GPL-2.0

//! The oracle of an unreliable connection's responder. A packet that can't be carried out is
//! dropped with the rest of its message, and the sender gets no NAK (IBTA 1.x §9.8.2).

use roce::qp::QpState;
use roce::wc::WcStatus;
use roce::wire::packet::Packet;
use roce::wr::SendOp;

use crate::responder::Reference;
use crate::side::{Effect, Gap};

impl Reference<'_> {
    /// Carries out a packet on the shadow copy of the memory, if it is the first packet of a
    /// message, or the next of the current one.
    pub(crate) fn unreliable(&mut self, packet: &Packet, effects: &mut Vec<Effect>) {
        let rx = &mut self.side.rx;
        let Some(ext) = rx.numbering.ext(packet.bth.psn, rx.epsn) else {
            return;
        };
        let Some(index) = self.peer.message_at(ext) else {
            return;
        };
        let message = self.peer.messages[index].clone();
        let starts = ext == message.first;
        let continues = rx.open && ext == rx.epsn;
        let before = (rx.epsn, rx.open, rx.offset);
        rx.epsn = ext + 1;
        rx.open = false;
        if starts {
            rx.offset = 0;
        } else if !continues {
            return;
        }
        let segment = ext - message.first;
        let bytes = message.segment(segment, self.side.profile.mtu);
        let done = match message.wr.op {
            SendOp::Send(extra) => self.send(&message, extra, segment, bytes, effects),
            _ => self.write(&message, segment, bytes, effects),
        };
        let rx = &mut self.side.rx;
        // An invalid receive is the receiver's own fault, and breaks its QP.
        let broken =
            matches!(effects.last(), Some(Effect::RecvDone(wc)) if wc.status != WcStatus::Success);
        if broken {
            self.side.state = QpState::Err;
        } else if matches!(&done, Err(codes) if codes.is_empty()) {
            // The memory isn't resident, so the packet counts as not received.
            (rx.epsn, rx.open, rx.offset) = before;
        } else if done.is_ok() && core::mem::take(&mut rx.gap) != Gap::NotReady {
            rx.offset += bytes.len() as u32;
            rx.open = ext + 1 < message.end();
        }
    }
}
