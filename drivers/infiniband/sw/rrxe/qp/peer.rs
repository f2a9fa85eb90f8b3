// SPDX-License-Identifier: GPL-2.0

//! Peer of a QP: one remote QP if the QP is connected, any sender if it is a datagram QP.

use kernel::prelude::*;
use rdma::{
    device::gid::Gid,
    net::{
        route::Route,
        skb::{Endpoints, Ingress},
    },
    verbs::av::{Av, PostedAv},
};
use roce::{
    ids::Qpn,
    qp::{QpKind, TransmitFault},
    wc::WcStatus,
};

use crate::{
    device::{stats::Counter, Device},
    net::path::{Address, Path},
    qp::filter::Admission,
    verbs::{ah::Ah, pd::PdId},
};

/// Peer of a QP. Protected by the turn lock (`qp/turn.rs`).
pub(crate) enum Peer {
    /// The QP is connected to one peer, which is known from RTR on.
    Connected(Option<Connection>),
    /// Datagram QP. Stores the arrival of the last datagram whose destination address was found
    /// among the device's addresses, so that the look-up is not repeated.
    Datagram(Option<LastArrival>),
    /// Raw packet QP. Its frames are passed to the network device.
    Raw,
}

/// Destination address and network device of a datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastArrival {
    /// Destination address, one of the device's.
    to: Gid,
    /// Network device by which the datagram came.
    ingress: Ingress,
    /// Value of [`Link::address_changes`](crate::device::link::Link::address_changes) before
    /// the address was looked up.
    changes: u64,
}

/// Connection to a peer.
pub(crate) struct Connection {
    /// Addresses and route of packets to the peer.
    path: Path,
    /// Address vector of the path, for `query_qp`.
    av: Av,
}

/// Address of a datagram, as a send work request gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Number of an address handle.
    Handle(u32),
    /// The address itself.
    Posted(PostedAv),
}

impl Default for Destination {
    fn default() -> Self {
        Self::Handle(0)
    }
}

impl Peer {
    /// Creates the peer of a QP in RESET.
    pub(crate) fn new(kind: QpKind) -> Self {
        match kind {
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => Self::Connected(None),
            QpKind::Ud | QpKind::Gsi => Self::Datagram(None),
            QpKind::RawPacket => Self::Raw,
        }
    }

    /// Forgets the peer, for a QP that enters RESET.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Connected(connection) => *connection = None,
            Self::Datagram(last) => *last = None,
            Self::Raw => {}
        }
    }

    /// Connects QP `local` to QP `remote` at the address `av`. Has no effect on QPs that are not of
    /// a connected type.
    pub(crate) fn connect(&mut self, device: &Device, av: Av, local: Qpn, remote: Qpn) {
        if let Self::Connected(connection) = self {
            let path = Path::new(device.link.clone(), &av, local, remote);
            *connection = Some(Connection { path, av });
        }
    }

    /// Returns the address of the connected peer.
    pub(crate) fn av(&self) -> Option<Av> {
        match self {
            Self::Connected(Some(connection)) => Some(connection.av),
            _ => None,
        }
    }

    /// Refuses packets that the QP must not take.
    ///
    /// A connected QP takes packets of its peer to its own address only. A datagram QP takes
    /// datagrams of any sender to any address of the device, and datagrams to a multicast group.
    /// The packet must have come by a network device that leads to its destination. `sender` is the
    /// number of the sending QP if that is a QP of this host.
    ///
    /// # Errors
    ///
    /// The counter of the reason.
    pub(crate) fn check(
        &mut self,
        device: &Device,
        endpoints: &Endpoints,
        ingress: Ingress,
        sender: Option<u32>,
    ) -> Result<(), Counter> {
        match self {
            Self::Connected(Some(connection)) => {
                let admission = connection.path.admission();
                admission.check(&device.link, endpoints, ingress, sender)
            }
            Self::Connected(None) | Self::Raw => Err(Counter::DropPeer),
            Self::Datagram(last) => {
                let to = endpoints.destination;
                let arrival = Some(LastArrival {
                    to,
                    ingress,
                    changes: device.link.address_changes(),
                });
                // A multicast packet is delivered only to QPs that are attached to its group.
                if *last == arrival || to.is_multicast() {
                    return Ok(());
                }
                device.link.check_destination(to, ingress)?;
                *last = arrival;
                Ok(())
            }
        }
    }

    /// Returns addresses, network device and sender of the packets that the QP takes, if it is
    /// connected.
    pub(crate) fn admission(&self) -> Option<Admission> {
        match self {
            Self::Connected(Some(connection)) => Some(connection.path.admission()),
            _ => None,
        }
    }

    /// Returns the route that [`Self::connected`] returned last.
    pub(crate) fn route(&self) -> Option<&Route> {
        match self {
            Self::Connected(Some(connection)) => connection.path.route(),
            _ => None,
        }
    }

    /// Returns whether the route that [`Self::connected`] returned last takes bursts.
    pub(crate) fn admits_bursts(&self) -> bool {
        self.route().is_some_and(Route::admits_bursts)
    }

    /// Returns addresses and route to the connected peer. Returns `None` if there is no peer or no
    /// route.
    pub(crate) fn connected(&mut self) -> Option<(&Address, &Route)> {
        match self {
            Self::Connected(Some(connection)) => connection.path.resolve().ok(),
            _ => None,
        }
    }
}

impl Destination {
    /// Returns addresses and route for a datagram of QP `local`, in protection domain `pd`, to QP
    /// `remote`. Returns `None` if there is no route: the datagram is lost.
    ///
    /// # Errors
    ///
    /// `LocQpOpErr` if the protection domain has no such address handle, or the device cannot send
    /// to the address.
    pub(crate) fn resolve(
        &self,
        device: &Device,
        pd: PdId,
        local: Qpn,
        remote: Qpn,
    ) -> Result<Option<(Address, Route)>, TransmitFault> {
        let wrong = TransmitFault::Local(WcStatus::LocQpOpErr);
        match self {
            Self::Handle(number) => device
                .ahs
                .with(*number, |ah| {
                    let ah: &Ah = &ah;
                    (ah.pd() == pd).then(|| ah.resolve(local, remote).ok())
                })
                .flatten()
                .ok_or(wrong),
            Self::Posted(posted) => {
                let av = device.link.resolve_av(posted).map_err(|_| wrong)?;
                let mut path = Path::new(device.link.clone(), &av, local, remote);
                let found = path.resolve().ok();
                Ok(found.map(|(address, route)| (*address, route.clone())))
            }
        }
    }
}
