// SPDX-License-Identifier: GPL-2.0

//! Collects the facts about a peer, as far as this host sees them.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket},
    time::Duration,
};

use serde::Deserialize;

use super::{
    facts::{Peer, Ping, RoceProbe, Route, UdpProbe},
    ROCE_PORT,
};
use crate::{device::Device, tool};

/// Number of echo requests.
const PINGS: u32 = 10;
/// Time to wait for the response to a datagram.
const UDP_WAIT: Duration = Duration::from_millis(500);
/// Bytes around the payload of a WRITE, without the IP header: UDP, BTH, RETH, ICRC.
const WRITE_HEADERS: u32 = 8 + 12 + 16 + 4;
/// Bytes of the header of an echo request.
const ECHO_HEADER: u32 = 8;
/// Exit status of `timeout` if the time limit ended the program.
const TIMED_OUT: i32 = 124;
/// Exit status of `timeout` if the program does not exist.
const NO_PROGRAM: i32 = 127;

/// A route in the output of `ip -j route get`.
#[derive(Deserialize)]
struct RouteLine {
    dev: Option<String>,
    prefsrc: Option<IpAddr>,
}

/// Collects the facts about the peer of this name. Adds to `unknown` a sentence for each fact that
/// cannot be collected. `wait` is the time for the response to a connection request, in seconds.
pub(super) fn collect(
    name: &str,
    wait: u64,
    devices: &[Device],
    unknown: &mut Vec<String>,
) -> Peer {
    let mut peer = Peer {
        name: name.to_owned(),
        address: resolve(name),
        ..Peer::default()
    };
    let Some(address) = peer.address else {
        return peer;
    };
    peer.route = route(address);
    let Some(route) = &peer.route else {
        return peer;
    };
    peer.ping = ping(address, PINGS, 56, unknown);
    if peer.ping.received > 0 {
        let link = devices
            .iter()
            .find(|each| each.netdev.as_ref() == Some(&route.netdev));
        let length = link.and_then(|link| link.mtu).unwrap_or(256) + WRITE_HEADERS - ECHO_HEADER;
        peer.long_ping_passed = ping(address, 3, length, unknown).received > 0;
    }
    peer.udp = datagram(address);
    peer.roce = connect(address, wait, unknown);
    peer
}

/// Returns the first address of a name.
fn resolve(name: &str) -> Option<IpAddr> {
    let mut addresses = (name, ROCE_PORT).to_socket_addrs().ok()?;
    addresses.next().map(|address| address.ip())
}

fn route(address: IpAddr) -> Option<Route> {
    let lines: Vec<RouteLine> =
        tool::json("ip", &["-j", "route", "get", &address.to_string()]).ok()?;
    let line = lines.into_iter().next()?;
    Some(Route {
        netdev: line.dev?,
        source: line.prefsrc,
    })
}

/// Sends echo requests with `length` bytes of data, which may not be fragmented.
fn ping(address: IpAddr, count: u32, length: u32, unknown: &mut Vec<String>) -> Ping {
    let (count_text, length, address) =
        (count.to_string(), length.to_string(), address.to_string());
    let arguments = [
        "-n",
        "-q",
        "-M",
        "do",
        "-i",
        "0.2",
        "-W",
        "2",
        "-c",
        &count_text,
        "-s",
        &length,
        &address,
    ];
    match tool::run("ping", &arguments) {
        Ok(output) => Ping {
            sent: count,
            received: received(&output.stdout),
        },
        Err(error) => {
            unknown.push(format!(
                "Pings, because the program ping cannot be run: {error}."
            ));
            Ping::default()
        }
    }
}

/// Returns the number of responses in the output of ping.
fn received(text: &str) -> u32 {
    let summary = text
        .lines()
        .find(|line| line.contains(" packets transmitted"));
    let part = summary.and_then(|line| line.split(", ").find(|part| part.contains("received")));
    part.and_then(|part| part.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Sends one byte to UDP port 4791 of the peer. A link drops it without a response.
fn datagram(address: IpAddr) -> UdpProbe {
    let local: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let exchange = || {
        let socket = UdpSocket::bind(SocketAddr::new(local, 0))?;
        socket.connect(SocketAddr::new(address, ROCE_PORT))?;
        socket.set_read_timeout(Some(UDP_WAIT))?;
        socket.send(&[0])?;
        socket.recv(&mut [0])
    };
    probe_result(exchange())
}

/// Interprets the response to a datagram.
fn probe_result(response: io::Result<usize>) -> UdpProbe {
    let Err(error) = response else {
        return UdpProbe::Silent;
    };
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => UdpProbe::Silent,
        ErrorKind::ConnectionRefused => UdpProbe::Refused,
        ErrorKind::PermissionDenied => UdpProbe::Forbidden,
        _ => UdpProbe::Failed(error.to_string()),
    }
}

/// Has rping send a connection request to a service that the peer does not offer. The peer's
/// connection management rejects the request, without a program there.
fn connect(address: IpAddr, wait: u64, unknown: &mut Vec<String>) -> RoceProbe {
    let (limit, address, port) = (wait.to_string(), address.to_string(), ROCE_PORT.to_string());
    let arguments = [
        "-k", "2", &limit, "rping", "-c", "-C", "1", "-a", &address, "-p", &port,
    ];
    let output = tool::run("timeout", &arguments);
    let probe = output.map_or(RoceProbe::NotTried, |output| connection_result(&output));
    if probe == RoceProbe::NotTried {
        unknown.push(
            "The RoCE connection, because rping is missing (package rdmacm-utils).".to_owned(),
        );
    }
    probe
}

/// Interprets the status and the output of rping.
fn connection_result(output: &tool::Output) -> RoceProbe {
    let text = format!("{}{}", output.stdout, output.stderr);
    let has = |event: &str| text.contains(event);
    if output.succeeded || has("RDMA_CM_EVENT_REJECTED") || has("RDMA_CM_EVENT_ESTABLISHED") {
        RoceProbe::Answered
    } else if output.status == Some(TIMED_OUT) || has("RDMA_CM_EVENT_UNREACHABLE") {
        RoceProbe::Silent
    } else if output.status == Some(NO_PROGRAM) {
        RoceProbe::NotTried
    } else {
        let first = text.lines().next().unwrap_or("rping prints no reason");
        RoceProbe::Failed(first.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rping(status: i32, stderr: &str) -> tool::Output {
        tool::Output {
            succeeded: status == 0,
            status: Some(status),
            stdout: String::new(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn responses_of_ping_are_counted() {
        for (text, count) in [
            (
                "10 packets transmitted, 7 received, 30% packet loss, time 9ms",
                7,
            ),
            (
                "1 packets transmitted, 0 received, +1 errors, 100% packet loss",
                0,
            ),
            ("ping: sendmsg: Message too long", 0),
        ] {
            assert_eq!(received(text), count, "{text}");
        }
    }

    #[test]
    fn the_output_of_rping_is_interpreted() {
        for (status, text, wanted) in [
            (
                255,
                "cma event RDMA_CM_EVENT_REJECTED, error 8",
                RoceProbe::Answered,
            ),
            (0, "", RoceProbe::Answered),
            (124, "", RoceProbe::Silent),
            (
                255,
                "cma event RDMA_CM_EVENT_UNREACHABLE, error -110",
                RoceProbe::Silent,
            ),
            (
                127,
                "timeout: failed to run command 'rping'",
                RoceProbe::NotTried,
            ),
            (
                255,
                "cma event RDMA_CM_EVENT_ADDR_ERROR, error -19\nmore",
                RoceProbe::Failed("cma event RDMA_CM_EVENT_ADDR_ERROR, error -19".to_owned()),
            ),
        ] {
            assert_eq!(connection_result(&rping(status, text)), wanted, "{text}");
        }
    }

    #[test]
    fn errors_of_a_datagram_are_interpreted() {
        for (kind, wanted) in [
            (ErrorKind::WouldBlock, UdpProbe::Silent),
            (ErrorKind::ConnectionRefused, UdpProbe::Refused),
            (ErrorKind::PermissionDenied, UdpProbe::Forbidden),
        ] {
            assert_eq!(probe_result(Err(kind.into())), wanted, "{kind:?}");
        }
        assert!(matches!(
            probe_result(Err(ErrorKind::HostUnreachable.into())),
            UdpProbe::Failed(_)
        ));
    }

    #[test]
    fn an_address_is_its_own_name() {
        assert_eq!(resolve("10.77.0.1"), Some("10.77.0.1".parse().unwrap()));
    }
}
