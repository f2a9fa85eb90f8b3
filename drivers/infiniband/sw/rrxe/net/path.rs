// SPDX-License-Identifier: GPL-2.0

//! The path of a QP's packets: their addresses and route, and the packets that the QP accepts.

use kernel::{prelude::*, sync::Arc};
use rdma::{
    device::gid::Gid,
    net::{
        route::{source_port, Flow, Route},
        skb::Endpoints,
    },
    verbs::av::Av,
};
use roce::{ids::Qpn, wire::UDP_PORT};

use crate::{device::link::Link, net::ip_header::IpHeader, qp::filter::Admission};

/// Header fields that all packets of a path have in common.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    /// Source address.
    pub(crate) source: Gid,
    /// Destination address.
    pub(crate) destination: Gid,
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) traffic_class: u8,
    /// IPv6 flow label, 20 bits.
    pub(crate) flow_label: u32,
    /// UDP source port.
    pub(crate) source_port: u16,
    /// Priority of the packets in queueing disciplines of this host ([`Av::priority`]).
    pub(crate) priority: u32,
    /// IP header whose length is still zero.
    pub(crate) header: IpHeader,
}

impl Address {
    /// Returns the header fields for packets from the QP `local` to the QP `remote`.
    pub(crate) fn between(&self, local: Qpn, remote: Qpn) -> Self {
        Self {
            source_port: source_port(self.flow_label, local, remote),
            ..*self
        }
    }
}

/// A path to a remote QP.
pub(crate) struct Path {
    link: Arc<Link>,
    /// Index of the network device that has the source address.
    netdev_index: u32,
    /// Number of the remote QP.
    remote: Qpn,
    /// Header fields of the packets.
    address: Address,
    /// Route, looked up when the first packet is sent.
    route: Option<Route>,
    /// Whether the source has been an address of the link at a look-up of the route. ib_core may
    /// remove the address later though the host keeps it: if its prefix changes, or if a bond uses
    /// another port.
    is_of_link: bool,
}

impl Path {
    /// Creates the path that `av` describes, from the QP `local` to the QP `remote`.
    ///
    /// All packets of one pair of QPs have the same UDP source port, so that they stay in order.
    /// The flow label selects the port, or the pair of QP numbers if the flow label is zero
    /// (`rdma_get_udp_sport()`).
    pub(crate) fn new(link: Arc<Link>, av: &Av, local: Qpn, remote: Qpn) -> Self {
        Self {
            netdev_index: link.index_of_source(av),
            link,
            remote,
            address: Address {
                source: av.sgid,
                destination: av.dgid,
                traffic_class: av.traffic_class,
                flow_label: av.flow_label,
                source_port: source_port(av.flow_label, local, remote),
                priority: av.priority(),
                header: IpHeader::new(av),
            },
            route: None,
            is_of_link: false,
        }
    }

    /// Returns the condition for packets that the local QP accepts: those from exactly this peer to
    /// exactly this address, by a network device that leads to this address.
    pub(crate) fn admission(&self) -> Admission {
        Admission {
            endpoints: Endpoints {
                source: self.address.destination,
                destination: self.address.source,
            },
            netdev_index: self.netdev_index,
            remote: self.remote,
        }
    }

    /// Returns header fields and route. Looks the route up again when it is no longer valid. Any
    /// context but hard interrupts; doesn't sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the source is no address of the link, and was none at any earlier look-up;
    /// `ENODEV` if the network device is gone; those of [`Route::lookup`].
    #[inline]
    pub(crate) fn resolve(&mut self) -> Result<(&Address, &Route)> {
        if !self.route.as_ref().is_some_and(Route::is_valid) {
            self.route = None;
            self.route = Some(self.look_up()?);
        }
        let route = self.route.as_ref().ok_or(ENODEV)?;
        Ok((&self.address, route))
    }

    /// Returns the route that [`Self::resolve`] found last.
    pub(crate) fn route(&self) -> Option<&Route> {
        self.route.as_ref()
    }

    /// Looks the route up. Checks the source address before, until the check has succeeded once.
    fn look_up(&mut self) -> Result<Route> {
        let source = self.address.source;
        if !self.is_of_link && !self.link.has_gid_on(source, self.netdev_index) {
            return Err(EINVAL);
        }
        self.is_of_link = true;
        let netdev = self.link.netdev().ok_or(ENODEV)?;
        let flow = Flow {
            source: self.address.source,
            destination: self.address.destination,
            netdev_index: self.netdev_index,
            traffic_class: self.address.traffic_class,
            flow_label: self.address.flow_label,
            source_port: self.address.source_port,
            destination_port: UDP_PORT,
        };
        Route::lookup(&netdev, &flow)
    }
}
