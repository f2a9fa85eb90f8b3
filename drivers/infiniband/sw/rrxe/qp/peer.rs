// SPDX-License-Identifier: GPL-2.0

//! Whom a QP talks to: one peer, or with datagrams anybody.

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

/// Owned by a QP, under its turn.
pub(crate) enum Peer {
    /// One peer; known from RTR on.
    Connected(Option<Connection>),
    /// Anybody. The last datagram's arrival was looked for among the device's addresses, and needn't be again.
    Anybody(Option<Arrival>),
    /// Nobody: whole frames are handed to the network device.
    Nobody,
}

/// To which of the own addresses a datagram came, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    to: Gid,
    ingress: Ingress,
    /// [`Link::home_changes`] before the address was looked for.
    changes: u64,
}

/// The address of a connected peer.
pub(crate) struct Connection {
    path: Path,
    /// The same as the verbs know it, for `query_qp`.
    av: Av,
}

/// What a work request says of a datagram's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The number of an address handle.
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
    /// Nobody known yet.
    pub(crate) fn new(kind: QpKind) -> Self {
        match kind {
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => Self::Connected(None),
            QpKind::Ud | QpKind::Gsi => Self::Anybody(None),
            QpKind::RawPacket => Self::Nobody,
        }
    }

    /// Forgets whom it knows: RESET.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Connected(connection) => *connection = None,
            Self::Anybody(home) => *home = None,
            Self::Nobody => {}
        }
    }

    /// Connects QP `local` to QP `remote` at the address `av`.
    pub(crate) fn connect(&mut self, device: &Device, av: Av, local: Qpn, remote: Qpn) {
        if let Self::Connected(connection) = self {
            let path = Path::new(device.link.clone(), &av, local, remote);
            *connection = Some(Connection { path, av });
        }
    }

    /// The address of the connected peer.
    pub(crate) fn av(&self) -> Option<Av> {
        match self {
            Self::Connected(Some(connection)) => Some(connection.av),
            _ => None,
        }
    }

    /// Refuses packets that the QP must not take. It takes those from exactly its peer to exactly its own address, and a
    /// datagram from anybody to any address of the device, each by a network device that leads there; and datagrams to
    /// a group. `sender` is the QP of this host that sent the packet, if none of a network did.
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
            Self::Connected(None) | Self::Nobody => Err(Counter::DropPeer),
            Self::Anybody(home) => {
                let to = endpoints.destination;
                let arrival = Some(Arrival {
                    to,
                    ingress,
                    changes: device.link.home_changes(),
                });
                // What comes to a group was handed to the QPs attached to it only.
                if *home == arrival || to.is_multicast() {
                    return Ok(());
                }
                device.link.check_home(to, ingress)?;
                *home = arrival;
                Ok(())
            }
        }
    }

    /// The packets that the QP takes, if it is connected.
    pub(crate) fn admission(&self) -> Option<Admission> {
        match self {
            Self::Connected(Some(connection)) => Some(connection.path.admission()),
            _ => None,
        }
    }

    /// The route by which [`Self::connected`] last said that packets go.
    pub(crate) fn route(&self) -> Option<&Route> {
        match self {
            Self::Connected(Some(connection)) => connection.path.route(),
            _ => None,
        }
    }

    /// Addresses and route to the connected peer; `None` if there is no peer or no route.
    pub(crate) fn connected(&mut self) -> Option<(&Address, &Route)> {
        match self {
            Self::Connected(Some(connection)) => connection.path.resolve().ok(),
            _ => None,
        }
    }
}

impl Destination {
    /// Addresses and route for a datagram of QP `local`, in protection domain `pd`, to QP `remote`;
    /// `None` if there is no route: then it is lost.
    ///
    /// # Errors
    ///
    /// `LocQpOpErr` if there is no such address handle in the protection domain, or the address isn't
    /// one that the device can send to.
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
                let av = device.link.source(posted).map_err(|_| wrong)?;
                let mut path = Path::new(device.link.clone(), &av, local, remote);
                let found = path.resolve().ok();
                Ok(found.map(|(address, route)| (*address, route.clone())))
            }
        }
    }
}
