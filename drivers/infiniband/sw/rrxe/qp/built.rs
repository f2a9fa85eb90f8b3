// SPDX-License-Identifier: GPL-2.0

//! Results of the building of packets in a run of a QP's engine.

use rdma::net::route::Route;
use roce::transmit::Transmit;

use crate::net::outgoing::Outgoing;

/// The engine's next packet. It stays in its place while it is built and sent, so that it is not
/// moved.
#[derive(Default)]
pub(super) struct Polled {
    /// The packet.
    pub(super) transmit: Option<Transmit>,
    /// Route of a datagram. `None` for other packets: they take the route of their QP's peer.
    pub(super) route: Option<Route>,
}

/// Result of the building of a packet.
pub(super) enum Built {
    /// The network stack has to send the packet.
    Send(Outgoing),
    /// The packet needs no more work.
    Handled(TxOutcome),
}

/// Result of the building of the engine's next packet.
pub(super) enum Next {
    /// The packet is built, and the network stack has to send it.
    Send(Outgoing),
    /// This many packets need no more work.
    Done(u32),
}

/// Outcome of a packet that the network stack does not have to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOutcome {
    /// The packet is in a queue of a QP of this host, or no QP takes it.
    Left,
    /// The host dropped the packet, because there was no memory, no route or no room in a queue.
    Dropped,
    /// The host dropped the packet, and the engine is not told: it would send the packet again, and
    /// the packet would be dropped again.
    Lost,
}
