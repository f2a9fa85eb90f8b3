// SPDX-License-Identifier: GPL-2.0

//! A packet to send: typed headers, and the name of its payload.

use crate::ids::{Rkey, Srqn};
use crate::wire::packet::Packet;
use crate::wr::SendSlot;

/// Where the payload of an outgoing packet lies. Its length is `packet.payload_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// There is none.
    None,
    /// `offset` bytes into the SGEs or the inline payload of a send WQE.
    Send {
        /// The WQE.
        slot: SendSlot,
        /// Offset of the first byte in the message.
        offset: u32,
    },
    /// The responder's memory (a READ response).
    Remote {
        /// The key of the request.
        rkey: Rkey,
        /// Virtual address of the first byte.
        va: u64,
        /// Of XRC, the shared queue that the request named: its protection domain's memory.
        srqn: Option<Srqn>,
    },
}

/// A packet to send. The host resolves `source`, appends pad and ICRC and sends it. If it can't
/// resolve the source it calls [`crate::qp::Qp::transmit_failed`], before it polls for the next
/// packet: UC and datagram WQEs complete in that poll. If the packet didn't leave for want of memory or queue
/// space it calls [`crate::qp::Qp::transmit_dropped`] then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The headers.
    pub packet: Packet,
    /// The payload.
    pub source: Source,
    /// It was sent before. A host that lends pages to the network had better copy the payload of
    /// this one: memory that changes while a packet leaves spoils its ICRC, and would again.
    pub retransmission: bool,
}
