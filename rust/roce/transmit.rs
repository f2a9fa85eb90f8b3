// SPDX-License-Identifier: GPL-2.0

//! A packet to send: typed headers, and the place of its payload.

use crate::ids::{Rkey, Srqn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::train::Train;
use crate::wire::packet::Packet;
use crate::wr::SendSlot;

/// The place of the payload of an outgoing packet. The length of the payload is
/// `packet.payload_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The packet has no payload.
    None,
    /// The payload lies `offset` bytes into the SGEs or the inline payload of a send WQE. An empty
    /// datagram has this source too: `slot` names its address handle.
    Send {
        /// The host's name for the send WQE.
        slot: SendSlot,
        /// Offset in the message of the first payload byte.
        offset: u32,
    },
    /// The payload of a READ response, in the responder's memory.
    Remote {
        /// Remote key that the READ request named.
        rkey: Rkey,
        /// Virtual address of the first payload byte.
        va: u64,
        /// The shared receive queue that an XRC request named. The memory is that of its protection
        /// domain. `None` for other services.
        srqn: Option<Srqn>,
    },
}

/// Maximum numbers of packets of a train to send, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainLimits {
    /// Limit of a train of requests.
    pub requests: u32,
    /// Limit of a train of READ responses.
    pub responses: u32,
}

impl TrainLimits {
    /// Packets are sent one by one.
    pub const SINGLE: Self = Self::both(1);

    /// Returns the same limit for requests and responses.
    pub const fn both(limit: u32) -> Self {
        Self {
            requests: limit,
            responses: limit,
        }
    }
}

/// A train of packets to send: one packet, unless the host polls for more
/// ([`crate::qp::Qp::poll_train`]). The host reads the payload at `source`, appends pad and ICRC to
/// each packet and sends the packets.
///
/// A host that can't read the payload calls [`crate::qp::Qp::transmit_failed`], or for several
/// packets [`crate::qp::Qp::withdraw`]. A host that knows that the train didn't leave, for lack of
/// memory, of queue space or of a route, calls [`crate::qp::Qp::transmit_dropped`]. It makes any of
/// these calls before it polls for the next packet: UC and datagram WQEs complete in that poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Headers, and the length of the payload. For several packets: the PSN of the first one, the
    /// acknowledgment request and the solicited event of the last one, and the length of all
    /// payload.
    pub packet: Packet,
    /// Number of packets. More than one only if the host polled for more.
    pub count: u32,
    /// Place of the payload.
    pub source: Source,
    /// A copy of the packet may have been sent before. A host that passes pages to the network
    /// without copying should copy the payload of this packet: memory that changes between the
    /// computation of the ICRC and the transmission makes the ICRC wrong, and would do so again.
    /// Always a single packet.
    pub retransmission: bool,
}

impl Transmit {
    /// Returns the packets. `mtu` is the path MTU of the QP.
    pub fn train(&self, mtu: Mtu) -> Train {
        Train {
            packet: self.packet,
            count: self.count,
            mtu,
        }
    }

    /// Returns the PSN after the last packet. A READ request counts as one packet.
    pub(crate) fn past(&self) -> Psn {
        self.packet.bth.psn.plus(self.count)
    }
}
