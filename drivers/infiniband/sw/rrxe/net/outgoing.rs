// SPDX-License-Identifier: GPL-2.0

//! Packets and frames that are built, and wait to be passed to the network stack.
//!
//! A run of a QP's protocol engine builds them in functions that have returned before the run sends
//! them. So the stack frames of these functions take no room while the network stack runs. The
//! network devices of a container can make the network stack call itself several times for one
//! packet (`MIRRED_NEST_LIMIT`, net/sched/act_mirred.c; `IP_TUNNEL_RECURSION_LIMIT`,
//! include/net/ip_tunnels.h). The limits of this recursion leave a part of the kernel's stack,
//! which has 16 KiB on x86-64, to the first sender.

use kernel::{prelude::*, sync::Arc};
use rdma::net::{
    netdev::Netdev,
    route::Route,
    skb::{TxBurst, TxFrame, TxPacket},
    tx_limit::TxCount,
};

/// A packet or a frame to send.
pub(crate) enum Outgoing {
    /// An IP packet, complete but for the link-layer header and an IPv4 header's checksum.
    Packet(TxPacket),
    /// A burst of packets.
    Burst(TxBurst),
    /// A whole frame, and the network device that sends it.
    Frame(TxFrame, Netdev),
}

impl Outgoing {
    /// Passes the packet or frame to the network stack. It counts for `tx_limit` until the
    /// destructor of its buffer is called. `route` is the route of a packet.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// Any error means that the packet is lost. `EMSGSIZE` if it is longer than the network
    /// device's MTU.
    pub(crate) fn send(self, route: Option<&Route>, tx_limit: &Arc<TxCount>) -> Result {
        match self {
            Self::Packet(packet) => packet.send(route.ok_or(ENETUNREACH)?, tx_limit),
            Self::Burst(burst) => burst.send(route.ok_or(ENETUNREACH)?, tx_limit),
            // Any error becomes `EAGAIN`. So the caller doesn't conclude from an `EMSGSIZE` of the
            // network stack that the frame is longer than the MTU: its length was compared with the
            // MTU before.
            Self::Frame(frame, netdev) => frame.send(&netdev, tx_limit).map_err(|_| EAGAIN),
        }
    }
}
