// SPDX-License-Identifier: GPL-2.0

//! Where the packets of a QP go, and whose packets it takes.

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

/// What the headers of all packets of a path have in common.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) source: Gid,
    pub(crate) destination: Gid,
    pub(crate) traffic_class: u8,
    /// 20 bits.
    pub(crate) flow_label: u32,
    pub(crate) source_port: u16,
    /// In this host: [`Av::priority`].
    pub(crate) priority: u32,
    /// Without the length.
    pub(crate) header: IpHeader,
}

impl Address {
    /// The same for packets from QP `local` to QP `remote`.
    pub(crate) fn between(&self, local: Qpn, remote: Qpn) -> Self {
        Self {
            source_port: source_port(self.flow_label, local, remote),
            ..*self
        }
    }
}

/// A way to a peer.
pub(crate) struct Path {
    link: Arc<Link>,
    /// The network device that has the source address.
    netdev_index: u32,
    remote: Qpn,
    address: Address,
    route: Option<Route>,
    /// The source was an address of the link when a route was first looked up. ib_core may drop it later, though the host
    /// keeps it: with another prefix, or when a bond uses another port.
    is_of_link: bool,
}

impl Path {
    /// The way that `av` describes, from QP `local` to QP `remote`.
    ///
    /// All packets of one pair of QPs have one UDP source port, so that they stay in order; the
    /// flow label, or else the pair, tells which (`rdma_get_udp_sport()`).
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

    /// The packets that come this way: from exactly this peer to exactly this address.
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

    /// Address and route; the latter is looked up anew when it is no longer valid. Any context;
    /// doesn't sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the source was no address of the link the first time, `ENODEV` when the network device is gone, and those of
    /// [`Route::lookup`].
    #[inline]
    pub(crate) fn resolve(&mut self) -> Result<(&Address, &Route)> {
        if !self.route.as_ref().is_some_and(Route::is_valid) {
            self.route = None;
            self.route = Some(self.look_up()?);
        }
        let route = self.route.as_ref().ok_or(ENODEV)?;
        Ok((&self.address, route))
    }

    /// The route that [`Self::resolve`] found last.
    pub(crate) fn route(&self) -> Option<&Route> {
        self.route.as_ref()
    }

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
