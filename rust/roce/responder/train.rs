// SPDX-License-Identifier: GPL-2.0

//! The execution of a train of request packets as one.

use super::{Replay, Responder};
use crate::host::Host;
use crate::qp::{Context, QpKind, Slots};
use crate::time::Instant;
use crate::train::Train;
use crate::wire::packet::{Body, WritePart};

impl<R: Slots<Replay>> Responder<R> {
    /// Carries out a train of a SEND or an RDMA WRITE as one. Returns `false` if it can't.
    /// Then a receive WQE may be held, and bytes of its buffer or of the range of the RDMA
    /// WRITE may be written. Nothing else has changed, so the packets of the train can be processed
    /// one by one.
    pub(crate) fn handle_train<H: Host>(
        &mut self,
        train: &Train,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> bool {
        let packet = &train.packet;
        let is_reliable = matches!(context.config.kind, QpKind::Rc | QpKind::XrcTgt);
        let may_be_train = match packet.body {
            // The last packet takes a receive WQE, and those before it don't.
            Body::Write(WritePart::Last(Some(_)) | WritePart::Only(_, Some(_))) => false,
            Body::Send(_) | Body::Write(_) => true,
            _ => false,
        };
        if !is_reliable || !may_be_train || packet.bth.psn != self.expected {
            return false;
        }
        let Ok(psns) = self.execute(packet, train.count, context, host) else {
            return false;
        };
        self.advance(psns);
        let last = packet.bth.psn.plus(psns.saturating_sub(1));
        self.acknowledge(packet, last, host);
        self.continue_gap(packet, last, now, context, host);
        true
    }
}
