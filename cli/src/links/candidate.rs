// SPDX-License-Identifier: GPL-2.0

//! The properties of network devices by which the configuration selects them.

use std::{fs, path::Path};

use serde::Deserialize;

use crate::{
    device,
    tool::{self, Failure},
};

/// Directory of the kernel's network devices.
const SYSFS: &str = "/sys/class/net";

/// A network device that may get a link.
#[derive(Debug)]
pub(super) struct Candidate {
    /// Index that the kernel has given to it.
    pub(super) index: u32,
    /// Its name.
    pub(super) name: String,
    /// Its permanent MAC address if it has one, else its present one. None for a device on top of
    /// other devices, such as a VLAN or a bridge, because it has their MAC address.
    pub(super) mac: Option<String>,
    /// Driver of its hardware. Virtual devices have none.
    pub(super) driver: Option<String>,
}

/// A network device in the output of `ip -j link`.
#[derive(Deserialize)]
struct Line {
    ifindex: u32,
    ifname: String,
    address: Option<String>,
    permaddr: Option<String>,
}

impl Candidate {
    /// Returns the network device with a name.
    ///
    /// # Errors
    ///
    /// If there is no such device, or `ip` fails.
    pub(super) fn read(netdev: &str) -> Result<Self, Failure> {
        if !Path::new(SYSFS).join(netdev).exists() {
            return Err(Failure(format!(
                "There is no network device {netdev}: `ip link` lists all network devices."
            )));
        }
        let lines: Vec<Line> = tool::json("ip", &["-j", "link", "show", "dev", netdev])?;
        let found = lines
            .into_iter()
            .next()
            .map(|line| Self::new(line, Path::new(SYSFS)));
        found.ok_or_else(|| Failure(format!("The network device {netdev} is gone.")))
    }

    /// Returns all network devices of this network namespace but the loopback device, for which
    /// systemd has no device unit.
    ///
    /// # Errors
    ///
    /// If `ip` fails.
    pub(super) fn all() -> Result<Vec<Self>, Failure> {
        let lines: Vec<Line> = tool::json("ip", &["-j", "link"])?;
        let devices = lines.into_iter().filter(|line| line.ifname != "lo");
        Ok(devices
            .map(|line| Self::new(line, Path::new(SYSFS)))
            .collect())
    }

    fn new(line: Line, sysfs: &Path) -> Self {
        let directory = sysfs.join(&line.ifname);
        let is_upper = device::entries(&directory)
            .iter()
            .any(|path| device::file_name(path).starts_with("lower_"));
        let driver = fs::read_link(directory.join("device/driver")).ok();
        Self {
            index: line.ifindex,
            mac: line.permaddr.or(line.address).filter(|_| !is_upper),
            driver: driver.map(|path| device::file_name(&path)),
            name: line.ifname,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn candidate(text: &str, tree: &Tree) -> Candidate {
        Candidate::new(serde_json::from_str(text).unwrap(), &tree.0)
    }

    #[test]
    fn the_permanent_mac_address_precedes_the_present_one() {
        let tree = Tree::new("permanent", &[]);
        let present = r#"{"ifindex": 5, "ifname": "eth0", "address": "02:00:00:00:00:01"}"#;
        assert_eq!(
            candidate(present, &tree).mac.as_deref(),
            Some("02:00:00:00:00:01")
        );
        let both = present.replace('}', r#", "permaddr": "02:00:00:00:00:02"}"#);
        assert_eq!(
            candidate(&both, &tree).mac.as_deref(),
            Some("02:00:00:00:00:02")
        );
    }

    #[test]
    fn a_device_on_top_of_others_has_no_mac_address_of_its_own() {
        let tree = Tree::new("upper", &[("br0/lower_eth0/x", "")]);
        let text = r#"{"ifindex": 5, "ifname": "br0", "address": "02:00:00:00:00:01"}"#;
        assert_eq!(candidate(text, &tree).mac, None);
    }

    #[test]
    fn the_driver_is_that_of_the_hardware() {
        let tree = Tree::new("driver", &[("eth0/device/x", ""), ("dummy0/x", "")]);
        let target = "../../../../bus/virtio/drivers/virtio_net";
        std::os::unix::fs::symlink(target, tree.0.join("eth0/device/driver")).unwrap();
        for (name, driver) in [("eth0", Some("virtio_net")), ("dummy0", None)] {
            let text = format!(r#"{{"ifindex": 5, "ifname": "{name}"}}"#);
            assert_eq!(candidate(&text, &tree).driver.as_deref(), driver, "{name}");
        }
    }
}
