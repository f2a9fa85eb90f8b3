// SPDX-License-Identifier: GPL-2.0

//! Tables of faults on the path to a peer.

use super::{healthy, run};
use crate::doctor::facts::{Peer, Ping, RoceProbe, Route, UdpProbe};

/// A check, the name of a fault, a change of the facts about a healthy peer, and a part of the
/// remedy.
type PeerCase = (&'static str, &'static str, fn(&mut Peer), &'static str);

/// Returns the facts about a peer without a fault.
fn peer() -> Peer {
    Peer {
        name: "other".to_owned(),
        address: Some("10.0.0.2".parse().unwrap()),
        route: Some(Route {
            netdev: "eth0".to_owned(),
            source: Some("10.0.0.1".parse().unwrap()),
        }),
        ping: Ping {
            sent: 10,
            received: 10,
        },
        long_ping_passed: true,
        udp: UdpProbe::Silent,
        roce: RoceProbe::Answered,
    }
}

#[test]
fn a_healthy_peer_has_no_finding() {
    let mut facts = healthy();
    facts.peer = Some(peer());
    assert_eq!(run(&facts), []);
}

/// Checks a change of the facts about a peer.
fn expect_of_peer(check: &str, name: &str, change: fn(&mut Peer), remedy: &str) {
    let mut facts = healthy();
    let mut other = peer();
    change(&mut other);
    facts.peer = Some(other);
    let found = run(&facts);
    assert_eq!(found.len(), 1, "{name}: {found:#?}");
    assert_eq!(found[0].check, check, "{name}");
    assert!(found[0].remedy.contains(remedy), "{name}: {found:#?}");
}

#[test]
fn faults_of_a_peer_are_found() {
    let cases: [PeerCase; 12] = [
        (
            "peer-name",
            "no address",
            |peer| peer.address = None,
            "/etc/hosts",
        ),
        (
            "peer-name",
            "link-local",
            |peer| peer.address = "fe80::1".parse().ok(),
            "another address",
        ),
        (
            "peer-route",
            "no route",
            |peer| peer.route = None,
            "ip route add",
        ),
        (
            "peer-route",
            "a route elsewhere",
            |peer| {
                peer.route = Some(Route {
                    netdev: "eth1".to_owned(),
                    source: None,
                })
            },
            "rrxe add NAME eth1",
        ),
        (
            "peer-reachable",
            "nothing",
            |peer| {
                peer.ping.received = 0;
                peer.roce = RoceProbe::Silent
            },
            "cables",
        ),
        (
            "peer-mtu",
            "long packets",
            |peer| peer.long_ping_passed = false,
            "same MTU",
        ),
        (
            "peer-port",
            "no link",
            |peer| {
                peer.udp = UdpProbe::Refused;
                peer.roce = RoceProbe::Silent
            },
            "on the peer",
        ),
        (
            "peer-port",
            "prohibited",
            |peer| {
                peer.udp = UdpProbe::Failed("No route to host".to_owned());
                peer.roce = RoceProbe::Silent
            },
            "pass UDP port",
        ),
        (
            "peer-roce",
            "dropped",
            |peer| peer.roce = RoceProbe::Silent,
            "firewall",
        ),
        (
            "peer-roce",
            "an error",
            |peer| peer.roce = RoceProbe::Failed("x".to_owned()),
            "dmesg",
        ),
        (
            "peer-loss",
            "loss",
            |peer| peer.ping.received = 9,
            "drop counters",
        ),
        (
            "peer-loss",
            "most are lost",
            |peer| peer.ping.received = 1,
            "drop counters",
        ),
    ];
    for (check, name, change, remedy) in cases {
        expect_of_peer(check, name, change, remedy);
    }
}

#[test]
fn a_peer_that_answers_roce_needs_no_pings() {
    for change in [
        (|peer: &mut Peer| peer.ping.received = 0) as fn(&mut Peer),
        |peer| peer.udp = UdpProbe::Forbidden,
        |peer| peer.roce = RoceProbe::NotTried,
    ] {
        let mut facts = healthy();
        let mut other = peer();
        change(&mut other);
        facts.peer = Some(other);
        assert_eq!(run(&facts), []);
    }
}

#[test]
fn this_host_is_reached_through_the_loopback_device() {
    let mut facts = healthy();
    let mut own = peer();
    own.route = Some(Route {
        netdev: "lo".to_owned(),
        source: Some("10.0.0.1".parse().unwrap()),
    });
    facts.peer = Some(own);
    assert_eq!(run(&facts), []);
}
