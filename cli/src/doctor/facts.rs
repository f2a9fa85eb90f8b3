// SPDX-License-Identifier: GPL-2.0

//! The facts that the doctor's checks evaluate. The module `collect` collects them.

use std::net::IpAddr;

use crate::{device::Device, netdev::Netdev};

use super::firewall::Rules;

/// All facts about this host, as seen from one network namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) kernel: Kernel,
    pub(crate) module: Module,
    pub(crate) provider: Provider,
    pub(crate) files: DeviceFiles,
    /// Whether each RDMA device is in one network namespace only.
    pub(crate) netns_exclusive: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) netdevs: Vec<Netdev>,
    pub(crate) port: PortUse,
    /// Rules of the firewall; none if they could not be read.
    pub(crate) rules: Option<Rules>,
    pub(crate) memlock: Memlock,
    pub(crate) peer: Option<Peer>,
    /// A sentence for each fact that could not be collected.
    pub(crate) unknown: Vec<String>,
}

/// The running kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    /// Its release, as `uname -r` prints it.
    pub(crate) release: String,
    /// Lines of its configuration; none if the configuration is not installed.
    pub(crate) config: Option<String>,
    /// Whether it loads signed modules only.
    pub(crate) wants_signatures: bool,
}

/// The kernel module rrxe.
#[derive(Clone, Debug, Default)]
pub(crate) struct Module {
    pub(crate) is_loaded: bool,
    /// Version of the loaded module; none if it has none.
    pub(crate) loaded_version: Option<String>,
    /// The module that is installed for the running kernel.
    pub(crate) installed: Option<InstalledModule>,
    /// Releases of other kernels for which the module is installed.
    pub(crate) other_releases: Vec<String>,
    /// Lines of modprobe's configuration that keep the module from being loaded.
    pub(crate) blocks: Vec<String>,
}

/// An installed module.
#[derive(Clone, Debug, Default)]
pub(crate) struct InstalledModule {
    pub(crate) version: Option<String>,
    pub(crate) is_signed: bool,
}

/// libibverbs and its providers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Provider {
    /// Version of the private interface between libibverbs and its providers; none without
    /// libibverbs.
    pub(crate) wanted: Option<String>,
    /// File names of the providers for rrxe's devices, such as `librxe-rdmav34.so`.
    pub(crate) libraries: Vec<String>,
    /// Names of the drivers that the files in /etc/libibverbs.d name.
    pub(crate) drivers: Vec<String>,
}

/// Device files of the RDMA subsystem.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceFiles {
    /// Names of the links that have a file /dev/infiniband/uverbsN.
    pub(crate) uverbs: Vec<String>,
    /// Paths of files that this user may not open.
    pub(crate) forbidden: Vec<String>,
    /// Whether /dev/infiniband/rdma_cm exists.
    pub(crate) has_rdma_cm: bool,
}

/// Sockets and tunnels that have UDP port 4791.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortUse {
    /// Whether any socket has the port.
    pub(crate) is_bound: bool,
    /// The processes that have such a socket, such as `python3 (PID 12)`.
    pub(crate) processes: Vec<String>,
    /// Whether a tunnel that `ip fou` made has the port.
    pub(crate) has_fou: bool,
}

/// The limit on memory that a process may lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memlock {
    /// The limit in bytes; none if there is no limit.
    pub(crate) limit: Option<u64>,
    /// Whether the limit does not hold, because the process is privileged.
    pub(crate) is_exempt: bool,
}

/// A peer, as far as this host sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The name or address that the user gave.
    pub(crate) name: String,
    /// Its address; none if the name has none.
    pub(crate) address: Option<IpAddr>,
    /// The route to the peer; none if there is no route.
    pub(crate) route: Option<Route>,
    /// Result of pings.
    pub(crate) ping: Ping,
    /// Whether a ping passed that is as long as a packet with a full path MTU.
    pub(crate) long_ping_passed: bool,
    pub(crate) udp: UdpProbe,
    pub(crate) roce: RoceProbe,
}

/// A route to a peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    /// Name of the network device.
    pub(crate) netdev: String,
    /// Source address of the packets.
    pub(crate) source: Option<IpAddr>,
}

/// Numbers of echo requests and responses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ping {
    pub(crate) sent: u32,
    pub(crate) received: u32,
}

/// Result of a datagram to UDP port 4791 of a peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum UdpProbe {
    /// The datagram was not sent.
    #[default]
    NotTried,
    /// There was no response, as RoCE requires.
    Silent,
    /// The peer responded that nothing listens on the port.
    Refused,
    /// A host responded with another error.
    Failed(String),
    /// A rule of this host refused the datagram.
    Forbidden,
}

/// Result of a connection request, which a peer without a listener rejects.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum RoceProbe {
    /// No request was sent.
    #[default]
    NotTried,
    /// The peer responded.
    Answered,
    /// The peer did not respond in time.
    Silent,
    /// Another error, as rping prints it.
    Failed(String),
}
