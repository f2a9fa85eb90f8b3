// SPDX-License-Identifier: GPL-2.0

//! Checks of the path to a peer.

use std::net::IpAddr;

use crate::{
    device::Device,
    doctor::{
        facts::{Facts, Peer, RoceProbe, Route, UdpProbe},
        finding::{error, warning, Finding},
    },
};

/// Checks the path to the peer, from the name to the RoCE connection. A step that fails explains
/// the failures of later steps, so only the first failure is reported. Lost pings are reported in
/// any case.
pub(super) fn peer(facts: &Facts) -> Vec<Finding> {
    let Some(peer) = &facts.peer else {
        return Vec::new();
    };
    let steps = [address, scope, route, reachability, path_mtu, port, roce];
    let first = steps.into_iter().find_map(|step| step(peer, facts));
    first.into_iter().chain(loss(peer)).collect()
}

fn address(peer: &Peer, _: &Facts) -> Option<Finding> {
    let name = &peer.name;
    peer.address.is_none().then(|| {
        error(
            "peer-name",
            format!("The name {name} has no address."),
            "Correct the name, or add it to /etc/hosts or to your name server.",
        )
    })
}

/// A link-local address selects a host only together with a network device (scope ID), and the
/// facts about the peer have no scope ID.
fn scope(peer: &Peer, _: &Facts) -> Option<Finding> {
    let is_link_local =
        matches!(peer.address, Some(IpAddr::V6(address)) if address.is_unicast_link_local());
    is_link_local.then(|| {
        error(
            "peer-name",
            format!(
                "The doctor cannot check a peer by a link-local address such as {}.",
                peer.name
            ),
            "Give another address of the peer.",
        )
    })
}

fn route(peer: &Peer, facts: &Facts) -> Option<Finding> {
    let name = &peer.name;
    let Some(route) = &peer.route else {
        return Some(error(
            "peer-route",
            format!("This host has no route to {name}."),
            "Give the network device of the link an address in the peer's network, or add a route by `ip route add`.",
        ));
    };
    let netdev = &route.netdev;
    (!has_link(facts, route)).then(|| {
        error(
            "peer-route",
            format!("The route to {name} uses the network device {netdev}, which has no link."),
            format!("Run `rrxe add NAME {netdev}`, or correct the route."),
        )
    })
}

/// Returns whether the route's network device has a link. A route to an address of this host uses
/// the loopback device, and the link is on the device that has the address.
fn has_link(facts: &Facts, route: &Route) -> bool {
    let mut links = facts.devices.iter().filter(|each| each.is_rrxe());
    links.any(|link: &Device| match route.netdev.as_str() {
        "lo" => link
            .gids
            .iter()
            .any(|gid| Some(gid.address) == route.source),
        name => link.netdev.as_deref() == Some(name),
    })
}

fn reachability(peer: &Peer, _: &Facts) -> Option<Finding> {
    let silent = peer.ping.sent > 0 && peer.ping.received == 0;
    let name = &peer.name;
    (silent && peer.roce != RoceProbe::Answered).then(|| {
        error(
            "peer-reachable",
            format!("The peer {name} answers neither pings nor RoCE connection requests."),
            "Check whether the peer is up, its address, and the cables, switches and firewalls on the path.",
        )
    })
}

fn path_mtu(peer: &Peer, facts: &Facts) -> Option<Finding> {
    let route = peer.route.as_ref()?;
    let link = facts
        .devices
        .iter()
        .find(|each| each.netdev.as_ref() == Some(&route.netdev))?;
    let mtu = link
        .mtu
        .filter(|_| peer.ping.received > 0 && !peer.long_ping_passed)?;
    let (name, netdev) = (&peer.name, &route.netdev);
    Some(error(
        "peer-mtu",
        format!("Pings reach {name}, but none with the length of a RoCE packet of {mtu} payload bytes."),
        format!("Set the same MTU on all hosts and switches of the path, or lower that of {netdev} by `ip link set`."),
    ))
}

fn port(peer: &Peer, _: &Facts) -> Option<Finding> {
    let name = &peer.name;
    match &peer.udp {
        UdpProbe::Refused => Some(error(
            "peer-port",
            format!("The peer {name} rejects packets to UDP port 4791: it has no RoCE link, or its firewall rejects them."),
            "Run `rrxe doctor` on the peer; `rrxe add` adds a link there.",
        )),
        UdpProbe::Failed(reason) if peer.roce != RoceProbe::Answered => Some(error(
            "peer-port",
            format!("A datagram to UDP port 4791 of {name} fails: {reason}."),
            "Have the firewalls of the peer and of the path pass UDP port 4791.",
        )),
        _ => None,
    }
}

fn roce(peer: &Peer, _: &Facts) -> Option<Finding> {
    let name = &peer.name;
    match &peer.roce {
        RoceProbe::Silent => Some(error(
            "peer-roce",
            format!("The peer {name} answers pings, but no RoCE connection requests."),
            "Have the firewalls of the peer and of the path pass UDP port 4791, and run `rrxe doctor` on the peer.",
        )),
        RoceProbe::Failed(reason) => Some(error(
            "peer-roce",
            format!("A RoCE connection request to {name} fails: {reason}."),
            "Remove the other faults first, and look at `dmesg` and `rrxe status`.",
        )),
        RoceProbe::Answered | RoceProbe::NotTried => None,
    }
}

fn loss(peer: &Peer) -> Option<Finding> {
    let lost = peer.ping.sent.saturating_sub(peer.ping.received);
    (lost > 0 && peer.ping.received > 0).then(|| {
        warning(
            "peer-loss",
            format!("{lost} of {} pings to {} were lost.", peer.ping.sent, peer.name),
            "Find the place of the loss by the drop counters of the hosts (`ip -s link`, `tc -s qdisc`) and switches.",
        )
    })
}
