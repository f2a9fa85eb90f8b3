// SPDX-License-Identifier: GPL-2.0

//! Checks of links and their network devices.

use crate::{
    device::{Device, OVERHEAD},
    doctor::{
        facts::Facts,
        finding::{error, warning, Finding},
    },
    netdev::Netdev,
};

/// Path MTU below which small packets make RDMA slow.
const GOOD_PATH_MTU: u32 = 1024;

/// Returns the links of this network namespace with their network devices.
fn local(facts: &Facts) -> impl Iterator<Item = (&Device, &Netdev)> {
    facts
        .devices
        .iter()
        .filter(|each| each.is_rrxe())
        .filter_map(|link| {
            let name = link.netdev.as_ref()?;
            let netdev = facts.netdevs.iter().find(|each| each.name == *name)?;
            Some((link, netdev))
        })
}

/// Checks whether there is a link at all.
pub(super) fn existence(facts: &Facts) -> Vec<Finding> {
    if facts
        .devices
        .iter()
        .any(|each| each.is_rrxe() || each.has_port())
    {
        return Vec::new();
    }
    let hidden = match facts.netns_exclusive {
        true => ", and links of other namespaces are hidden (`rdma system` shows netns exclusive)",
        false => "",
    };
    vec![warning(
        "link",
        format!("There is no link of rrxe in this network namespace{hidden}."),
        "Run `rrxe add rrxe0 NETDEV` with the name of your network device.",
    )]
}

/// Checks whether another driver has the UDP port of this network namespace.
pub(super) fn other_driver(facts: &Facts) -> Vec<Finding> {
    let is_other = |each: &&Device| !each.is_rrxe() && each.has_port();
    let Some(link) = facts
        .devices
        .iter()
        .find(is_other)
        .filter(|_| facts.port.is_bound)
    else {
        return Vec::new();
    };
    if local(facts).next().is_some() {
        return Vec::new();
    }
    let name = &link.name;
    vec![error(
        "other-driver",
        format!("Link {name} of another driver (rdma_rxe) uses UDP port 4791, so rrxe can add no link here."),
        format!("Run `rdma link del {name}`, and then `rrxe add`."),
    )]
}

/// Checks whether all links belong to other network namespaces.
pub(super) fn foreign(facts: &Facts) -> Vec<Finding> {
    let links: Vec<_> = facts.devices.iter().filter(|each| each.is_rrxe()).collect();
    let Some(link) = links
        .first()
        .filter(|_| links.iter().all(|each| each.netdev.is_none()))
    else {
        return Vec::new();
    };
    let name = &link.name;
    vec![error(
        "netns",
        format!("The network device of link {name} is in another network namespace, so no program here can use the link."),
        "Run `rrxe add` in this network namespace, or run your program in the link's one (`ip netns exec`).",
    )]
}

/// Checks whether ports are ACTIVE.
pub(super) fn state(facts: &Facts) -> Vec<Finding> {
    let down = local(facts).filter(|(link, _)| link.state != "ACTIVE");
    down.map(|(link, netdev)| inactive(link, netdev)).collect()
}

fn inactive(link: &Device, netdev: &Netdev) -> Finding {
    let (link, name) = (&link.name, &netdev.name);
    if !netdev.is_up() {
        return error(
            "state",
            format!("Link {link} is not ACTIVE, because network device {name} is down."),
            format!("Run `ip link set {name} up`."),
        );
    }
    if !netdev.has_carrier() {
        return error(
            "state",
            format!("Link {link} is not ACTIVE, because network device {name} has no carrier."),
            format!("Connect the cable of {name}, or set its peer device up."),
        );
    }
    error(
        "state",
        format!("Link {link} is not ACTIVE, although network device {name} is up."),
        format!("Run `rrxe del {link}` and `rrxe add {link} {name}`, and look at `dmesg`."),
    )
}

/// Checks whether links have addresses that peers can reach.
pub(super) fn addresses(facts: &Facts) -> Vec<Finding> {
    local(facts)
        .flat_map(|(link, netdev)| unusable_addresses(link, netdev))
        .collect()
}

fn unusable_addresses(link: &Device, netdev: &Netdev) -> Vec<Finding> {
    let name = &netdev.name;
    let failed = netdev.addresses.iter().filter(|each| each.dadfailed);
    let mut findings: Vec<_> = failed
        .map(|each| {
            warning(
                "addresses",
                format!("Another host has the address {} of {name}, too.", each.local),
                format!("Give one of the hosts another address, and run `ip addr del {} dev {name}` here.", each.local),
            )
        })
        .collect();
    let is_routable = |address: &std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => !address.is_link_local(),
        std::net::IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let usable = netdev
        .addresses
        .iter()
        .filter(|each| !each.dadfailed && !each.tentative);
    let routable: Vec<_> = usable.map(|each| each.local).filter(is_routable).collect();
    if routable.is_empty() {
        findings.push(no_address(link, netdev));
    } else if netdev.is_up() {
        findings.extend(
            routable
                .iter()
                .filter_map(|address| no_gid(link, name, *address)),
        );
    }
    findings
}

fn no_address(link: &Device, netdev: &Netdev) -> Finding {
    let (link, name) = (&link.name, &netdev.name);
    if let Some(master) = &netdev.master {
        return warning(
            "addresses",
            format!("Network device {name} of link {link} is a port of {master} and has no IP address of its own."),
            format!("Run `rrxe del {link}` and `rrxe add {link} {master}`."),
        );
    }
    warning(
        "addresses",
        format!("Network device {name} of link {link} has no IP address that peers can route to."),
        format!("Run `ip addr add ADDRESS/PREFIX dev {name}`."),
    )
}

fn no_gid(link: &Device, netdev: &str, address: std::net::IpAddr) -> Option<Finding> {
    if link.gids.iter().any(|gid| gid.address == address) {
        return None;
    }
    Some(warning(
        "gids",
        format!(
            "Link {} has no GID for the address {address} of {netdev}.",
            link.name
        ),
        format!(
            "Run `rrxe del {0}` and `rrxe add {0} {netdev}`; a link has at most 256 GIDs.",
            link.name
        ),
    ))
}

/// Checks whether network devices have room for packets of a good size.
pub(super) fn mtu(facts: &Facts) -> Vec<Finding> {
    let wanted = GOOD_PATH_MTU + OVERHEAD;
    let small = local(facts).filter(|(_, netdev)| netdev.mtu < wanted);
    small
        .map(|(link, netdev)| {
            let name = &netdev.name;
            warning(
                "mtu",
                format!(
                    "The MTU of {name} is {}, so the path MTU of link {} is {} bytes only.",
                    netdev.mtu,
                    link.name,
                    link.mtu.unwrap_or_default()
                ),
                format!("Run `ip link set {name} mtu 1500`, or at least {wanted}, on all hosts of the network."),
            )
        })
        .collect()
}
