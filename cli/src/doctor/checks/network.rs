// SPDX-License-Identifier: GPL-2.0

//! Checks of UDP port 4791 and the firewall.

use crate::{
    device::Device,
    doctor::{
        facts::Facts,
        finding::{error, Finding},
        firewall::{self, Direction, Packet},
        ROCE_PORT,
    },
};

/// Checks whether a tunnel or a process has the UDP port of RoCE.
pub(super) fn port(facts: &Facts) -> Vec<Finding> {
    let has_link = facts.devices.iter().any(Device::has_port);
    if has_link || !facts.port.is_bound {
        return Vec::new();
    }
    let tunnel = facts
        .netdevs
        .iter()
        .find(|each| each.tunnel_port() == Some(ROCE_PORT.into()));
    let (user, remedy) = if let Some(tunnel) = tunnel {
        let name = &tunnel.name;
        (
            format!("The tunnel {name}"),
            format!("Run `ip link del {name}`, and create the tunnel again with another UDP port (dstport)."),
        )
    } else if facts.port.has_fou {
        (
            "A tunnel of `ip fou`".to_owned(),
            "Run `ip fou del port 4791`, and add the tunnel again with another port.".to_owned(),
        )
    } else if let Some(process) = facts.port.processes.first() {
        (
            format!("The process {process}"),
            "End this process, or configure another UDP port for it.".to_owned(),
        )
    } else {
        (
            "An unknown socket of the kernel or of another user".to_owned(),
            "Run `ss -aunp sport = :4791` as root to see its owner, and end it.".to_owned(),
        )
    };
    let problem = format!("{user} has UDP port 4791, so no link can be added.");
    vec![error("port", problem, remedy)]
}

/// Checks whether the firewall drops RoCE packets. Rules that match only some addresses are no
/// fault unless the packets of the peer match.
pub(super) fn firewall(facts: &Facts) -> Vec<Finding> {
    let Some(rules) = &facts.rules else {
        return Vec::new();
    };
    let netdevs = facts
        .devices
        .iter()
        .filter(|each| each.is_rrxe())
        .filter_map(|each| each.netdev.as_ref());
    let mut findings: Vec<Finding> = Vec::new();
    for netdev in netdevs {
        for packet in packets(facts, netdev) {
            let Some(culprit) = firewall::culprit(rules, &packet) else {
                continue;
            };
            let finding = blocked(&packet, &culprit);
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
    findings
}

/// Returns the kinds of packets that a link exchanges through a network device.
fn packets<'a>(facts: &Facts, netdev: &'a str) -> Vec<Packet<'a>> {
    let peer = facts.peer.as_ref().and_then(|peer| peer.address);
    let mut packets = Vec::new();
    for is_v6 in [false, true] {
        for direction in [Direction::In, Direction::Out] {
            packets.push(Packet {
                direction,
                is_v6,
                netdev,
                peer: peer.filter(|address| address.is_ipv6() == is_v6),
            });
        }
    }
    // Only packets of the peer's address family matter if a peer is checked.
    packets.retain(|packet| peer.is_none() || packet.peer.is_some());
    packets
}

fn blocked(packet: &Packet<'_>, culprit: &firewall::Culprit) -> Finding {
    let direction = match packet.direction {
        Direction::In => "incoming",
        Direction::Out => "outgoing",
    };
    let family = if packet.is_v6 { "IPv6" } else { "IPv4" };
    error(
        "firewall",
        format!(
            "The firewall drops {direction} RoCE packets over {family} by {}.",
            culprit.rule
        ),
        culprit.remedy.clone(),
    )
}
