// SPDX-License-Identifier: GPL-2.0

//! Network devices of this network namespace, as `ip -j -d addr` prints them.

use std::net::IpAddr;

use serde::Deserialize;

use crate::tool::{self, Failure};

/// A network device.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Netdev {
    /// Its index in the network namespace.
    #[serde(rename = "ifindex", default)]
    pub(crate) index: u32,
    /// Its name.
    #[serde(rename = "ifname")]
    pub(crate) name: String,
    /// Its flags, such as UP and LOWER_UP.
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    /// Maximum length of an IP packet.
    #[serde(default)]
    pub(crate) mtu: u32,
    /// Name of the bridge or bond of which it is a port.
    #[serde(default)]
    pub(crate) master: Option<String>,
    /// Name of the device below, for example of a VLAN.
    #[serde(default)]
    pub(crate) link: Option<String>,
    #[serde(default)]
    linkinfo: LinkInfo,
    /// Its IP addresses.
    #[serde(rename = "addr_info", default)]
    pub(crate) addresses: Vec<Address>,
}

/// The part of a device's description that depends on its kind.
#[derive(Clone, Debug, Default, Deserialize)]
struct LinkInfo {
    #[serde(default)]
    info_kind: Option<String>,
    #[serde(default)]
    info_data: InfoData,
}

/// Parameters of a device that depend on its kind. Only those of tunnels are read.
#[derive(Clone, Debug, Default, Deserialize)]
struct InfoData {
    /// UDP port on which a tunnel receives. Other kinds may have a parameter of the same name.
    #[serde(default)]
    port: Option<serde_json::Value>,
}

/// An IP address of a network device.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Address {
    /// The address.
    pub(crate) local: IpAddr,
    /// Whether duplicate address detection has not ended yet.
    #[serde(default)]
    pub(crate) tentative: bool,
    /// Whether another host has the address.
    #[serde(default)]
    pub(crate) dadfailed: bool,
}

impl Netdev {
    /// Returns whether the administrator has set the device up.
    pub(crate) fn is_up(&self) -> bool {
        self.has_flag("UP")
    }

    /// Returns whether the device is a loopback device.
    pub(crate) fn is_loopback(&self) -> bool {
        self.has_flag("LOOPBACK")
    }

    /// Returns whether the device has a carrier.
    pub(crate) fn has_carrier(&self) -> bool {
        self.has_flag("LOWER_UP")
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|each| each == flag)
    }

    /// Returns the kind of a virtual device, such as `vlan`.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.linkinfo.info_kind.as_deref()
    }

    /// Returns the UDP port on which the device receives, if it is a tunnel.
    pub(crate) fn tunnel_port(&self) -> Option<u64> {
        let port = self.linkinfo.info_data.port.as_ref()?;
        self.kind()
            .filter(|kind| ["vxlan", "geneve", "bareudp", "amt"].contains(kind))?;
        port.as_u64().or_else(|| port.as_str()?.parse().ok())
    }
}

/// Returns the network devices of this network namespace.
///
/// # Errors
///
/// Those of [`tool::json`].
pub(crate) fn all() -> Result<Vec<Netdev>, Failure> {
    tool::json("ip", &["-j", "-d", "addr"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_parsed_with_its_addresses_and_tunnel_port() {
        let text = r#"{"ifname": "vx", "flags": ["UP", "LOWER_UP"], "mtu": 1450,
            "linkinfo": {"info_kind": "vxlan", "info_data": {"port": 4791}},
            "addr_info": [{"local": "fe80::1", "tentative": true}]}"#;
        let netdev: Netdev = serde_json::from_str(text).unwrap();
        assert!(netdev.is_up() && netdev.has_carrier());
        assert_eq!(netdev.tunnel_port(), Some(4791));
        assert!(netdev.addresses[0].tentative && !netdev.addresses[0].dadfailed);
    }

    #[test]
    fn only_tunnels_have_a_tunnel_port() {
        let text =
            r#"{"ifname": "x", "linkinfo": {"info_kind": "other", "info_data": {"port": 1}}}"#;
        let netdev: Netdev = serde_json::from_str(text).unwrap();
        assert_eq!(netdev.tunnel_port(), None);
    }
}
