// SPDX-License-Identifier: GPL-2.0

//! Packets and frames that are built, and that the network stack is to send.
//!
//! A turn builds them in functions that have returned when it sends them. A container's network devices can have the network
//! stack call itself some times to send one packet (`MIRRED_NEST_LIMIT`, net/sched/act_mirred.c; `IP_TUNNEL_RECURSION_LIMIT`,
//! include/net/ip_tunnels.h). Its limits leave a part of the kernel's stack, of 16 KiB on x86-64, to those who send first.

use kernel::{prelude::*, sync::Arc};
use rdma::net::{
    netdev::Netdev,
    route::Route,
    skb::{TxFrame, TxPacket},
    tx_limit::TxCount,
};

use crate::qp::peer::Peer;

/// A packet or a frame that is to be sent.
pub(crate) enum Outgoing {
    /// A packet of IP.
    Packet {
        packet: TxPacket,
        /// That of a datagram; other packets have that of their QP's peer.
        route: Option<Route>,
    },
    /// A whole frame, by this network device.
    Frame(TxFrame, Netdev),
}

impl Outgoing {
    /// Sends it; it takes credit until it has left the host. `peer` is that of its QP.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// Any; it is lost. `EMSGSIZE` if it is longer than the network device's MTU.
    pub(crate) fn send(self, peer: &Peer, tx_limit: &Arc<TxCount>) -> Result {
        match self {
            Self::Packet { packet, route } => {
                let route = route.as_ref().or_else(|| peer.route()).ok_or(ENETUNREACH)?;
                packet.send(route, tx_limit)
            }
            // Its length was compared before.
            Self::Frame(frame, netdev) => frame.send(&netdev, tx_limit).map_err(|_| EAGAIN),
        }
    }
}
