// SPDX-License-Identifier: GPL-2.0

//! Receiving whole frames of the link layer.
//!
//! A frame fills a receive buffer as it is, without a header in front. One that finds no receive is
//! dropped. One that is too long for its receive ends that with a local length error and puts the QP in
//! error, as adapters do: the owner chose the rules by which frames come and the size of the buffers.

use super::{Received, Refusal, Replay, Responder};
use crate::host::{Count, Host, ScatterFault};
use crate::ids::Qpn;
use crate::qp::{Context, Outcome, Slots};
use crate::wc::{RecvExtra, WcOpcode, WcStatus};
use crate::wire::packet::NakCode;

impl<R: Slots<Replay>> Responder<R> {
    /// A frame of `length` bytes, which `scatter` copies to the receive WQE that the host holds.
    pub(crate) fn handle_frame<H: Host>(
        &mut self,
        length: u32,
        context: &Context,
        host: &mut H,
        scatter: impl FnOnce(&mut H) -> Result<(), ScatterFault>,
    ) -> Outcome {
        match self.receive_frame(length, host, scatter) {
            Ok(()) | Err(Refusal::Absent) => Outcome::Continue,
            Err(Refusal::Receive(status, _)) => {
                self.abandon_held(status, context, host);
                Outcome::Fatal
            }
            Err(refusal) => {
                if let Some(reason) = refusal.reason() {
                    host.count(Count::Dropped(reason));
                }
                Outcome::Continue
            }
        }
    }

    fn receive_frame<H: Host>(
        &mut self,
        length: u32,
        host: &mut H,
        scatter: impl FnOnce(&mut H) -> Result<(), ScatterFault>,
    ) -> Result<(), Refusal> {
        let wr = self.hold(None, host)?;
        if length > wr.length {
            return Err(Refusal::Receive(
                WcStatus::LocLenErr,
                NakCode::RemoteOperational,
            ));
        }
        scatter(host)?;
        self.complete_held(
            Received {
                opcode: WcOpcode::Recv,
                byte_len: length,
                extra: RecvExtra::None,
                src_qp: Qpn::default(),
                solicited: false,
                grh: false,
            },
            host,
        );
        Ok(())
    }
}
