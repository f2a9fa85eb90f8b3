// SPDX-License-Identifier: GPL-2.0

//! The responder of raw packet QPs, which receive whole L2 frames.
//!
//! A frame is stored at the start of a receive buffer, without a header before it. A frame without
//! a receive WQE is dropped. A frame that is longer than its WQE ends the WQE with a local length
//! error and puts the QP in error, as hardware adapters do: the owner chose both the steering rules
//! and the size of the buffers.

use super::{Received, Refusal, Replay, Responder};
use crate::host::{Count, Host, ScatterFault};
use crate::ids::Qpn;
use crate::qp::{Context, Outcome, Slots};
use crate::wc::{RecvExtra, WcOpcode, WcStatus};
use crate::wire::packet::NakCode;

impl<R: Slots<Replay>> Responder<R> {
    /// Receives a frame of `length` bytes. `scatter` copies it to the receive WQE that the host
    /// holds.
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

    /// Stores a frame in the next receive WQE, and completes the WQE.
    ///
    /// # Errors
    ///
    /// Returns the [`Refusal`] of a frame that isn't received.
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
