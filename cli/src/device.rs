// SPDX-License-Identifier: GPL-2.0

//! RDMA devices, as `rdma -j` and sysfs show them.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    netdev::Netdev,
    tool::{self, Failure},
};

/// Bytes around the payload of a packet with the longest headers: IPv6, UDP, BTH, XRCETH, RETH,
/// immediate data, ICRC. The driver subtracts the same number from the MTU of the netdev.
pub(crate) const OVERHEAD: u32 = 88;

/// A port of an RDMA device, which the command `rdma` calls a link. A device of rrxe has one port.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Device {
    /// Index of the device, which the kernel gives to no later device.
    #[serde(skip)]
    pub(crate) index: u32,
    /// Name of the device.
    pub(crate) name: String,
    /// Firmware version that the driver reports; none if it reports none. rrxe reports its own name
    /// and version.
    pub(crate) firmware: Option<String>,
    /// Whether the device is hardware.
    pub(crate) hardware: bool,
    /// Name of the network device; none if it is in another network namespace.
    pub(crate) netdev: Option<String>,
    /// State of the port, such as ACTIVE.
    pub(crate) state: String,
    /// Largest payload of a packet, in bytes.
    pub(crate) mtu: Option<u32>,
    /// Speed, as sysfs shows it.
    pub(crate) rate: Option<String>,
    /// The GIDs that are in use.
    pub(crate) gids: Vec<Gid>,
    /// Numbers of objects.
    pub(crate) objects: Objects,
    /// All counters of the port.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Gid {
    /// Index of the entry.
    pub(crate) index: u32,
    /// The GID.
    pub(crate) gid: Ipv6Addr,
    /// The IP address that the GID stands for.
    pub(crate) address: IpAddr,
}

/// Numbers of objects of a device.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Objects {
    pub(crate) qp: u64,
    pub(crate) cq: u64,
    pub(crate) srq: u64,
    pub(crate) pd: u64,
    pub(crate) mr: u64,
    pub(crate) cm_id: u64,
}

/// A port in the output of `rdma -j link`.
#[derive(Deserialize)]
struct LinkLine {
    ifindex: u32,
    ifname: String,
    #[serde(default)]
    state: String,
    netdev: Option<String>,
}

/// A device in the output of `rdma -j dev`.
#[derive(Deserialize)]
struct DeviceLine {
    ifname: String,
    fw: Option<String>,
}

/// A device in the output of `rdma -j resource`.
#[derive(Deserialize)]
struct ResourceLine {
    ifname: String,
    #[serde(flatten)]
    objects: Objects,
}

/// A port in the output of `rdma -j statistic show link`. sysfs shows counters in the initial
/// network namespace only.
#[derive(Deserialize)]
struct StatisticLine {
    ifname: String,
    /// Number of the port. It is no counter.
    #[serde(rename = "port")]
    _port: u64,
    #[serde(flatten)]
    fields: BTreeMap<String, serde_json::Value>,
}

impl StatisticLine {
    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = self
            .fields
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), value.as_u64()?)));
        counters.collect()
    }
}

impl Device {
    /// Returns whether rrxe drives the device.
    pub(crate) fn is_rrxe(&self) -> bool {
        self.driver() == Some("rrxe")
    }

    fn driver(&self) -> Option<&str> {
        self.firmware.as_deref()?.split_whitespace().next()
    }

    /// Returns whether the device is a software device whose driver receives by UDP port 4791 of
    /// this network namespace.
    pub(crate) fn has_port(&self) -> bool {
        !self.hardware && self.netdev.is_some()
    }

    /// Returns a counter, or 0 if the device lacks it.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns the number of retransmissions. A retransmission sends one or more packets again.
    pub(crate) fn retransmissions(&self) -> u64 {
        self.counter("completer_retry_err") + self.counter("rto_resends")
    }

    /// Returns the number of dropped packets.
    pub(crate) fn drops(&self) -> u64 {
        let drops = self
            .counters
            .iter()
            .filter(|(name, _)| name.starts_with("drop_"));
        drops.map(|(_, count)| count).sum()
    }

    /// Returns the counters of drops, errors and retransmissions that are above 0, with their
    /// values.
    pub(crate) fn troubles(&self) -> impl Iterator<Item = (&str, u64)> {
        let counters = self
            .counters
            .iter()
            .map(|(name, count)| (name.as_str(), *count));
        counters.filter(|(name, count)| *count > 0 && hints_at_trouble(name))
    }
}

/// Returns whether a counter is one of drops, errors or retransmissions.
fn hints_at_trouble(name: &str) -> bool {
    name.starts_with("drop_") || name.ends_with("_err") || name == "rto_resends"
}

/// Returns the largest path MTU for which a network device has room, or 256, the least path MTU, if
/// it has room for none.
pub(crate) fn path_mtu(netdev_mtu: u32) -> u32 {
    let room = netdev_mtu.saturating_sub(OVERHEAD);
    let fitting = [4096, 2048, 1024, 512].into_iter().find(|mtu| *mtu <= room);
    fitting.unwrap_or(256)
}

/// Returns the device with the name `name`.
///
/// # Errors
///
/// If there is none.
pub(crate) fn named<'a>(devices: &'a [Device], name: &str) -> Result<&'a Device, Failure> {
    let found = devices.iter().find(|each| each.name == name);
    found.ok_or_else(|| {
        Failure(format!(
            "There is no link {name}: `rrxe status` lists all links."
        ))
    })
}

/// Returns all RDMA devices that this network namespace shows: none if the kernel has no RDMA core.
/// `netdevs` are the network devices of this namespace.
///
/// # Errors
///
/// Those of [`tool::json`].
pub(crate) fn all(netdevs: &[Netdev]) -> Result<Vec<Device>, Failure> {
    let lines: Vec<LinkLine> = match tool::json("rdma", &["-j", "link"]) {
        Err(failure) if failure.is_of_absent_core() => return Ok(Vec::new()),
        lines => lines?,
    };
    let versions: Vec<DeviceLine> = tool::json("rdma", &["-j", "-d", "dev"])?;
    let resources: Vec<ResourceLine> = tool::json("rdma", &["-j", "resource"])?;
    let statistics: Vec<StatisticLine> = tool::json("rdma", &["-j", "statistic", "show", "link"])?;
    let sysfs = Path::new("/sys/class/infiniband");
    let devices = lines.into_iter().map(|line| {
        let port = sysfs.join(&line.ifname).join("ports/1");
        let version = versions.iter().find(|each| each.ifname == line.ifname);
        let statistic = statistics.iter().find(|each| each.ifname == line.ifname);
        let resource = resources.iter().find(|each| each.ifname == line.ifname);
        Device {
            hardware: is_hardware(&sysfs.join(&line.ifname)),
            firmware: version.and_then(|each| each.fw.clone()),
            mtu: line.netdev.as_ref().and_then(|name| {
                let netdev = netdevs.iter().find(|each| each.name == *name)?;
                Some(path_mtu(netdev.mtu))
            }),
            rate: read(&port.join("rate")),
            gids: gids(&port),
            objects: resource.map(|each| each.objects).unwrap_or_default(),
            counters: statistic.map(StatisticLine::counters).unwrap_or_default(),
            index: line.ifindex,
            name: line.ifname,
            state: line.state,
            netdev: line.netdev,
        }
    });
    Ok(devices.collect())
}

/// Returns the text of a file without blanks at its ends.
pub(crate) fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the files of a directory. An absent directory has none.
pub(crate) fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the last part of a path.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Returns whether the directory of a device in sysfs is outside of /sys/devices/virtual, where the
/// software devices are.
fn is_hardware(directory: &Path) -> bool {
    let target = fs::read_link(directory).unwrap_or_default();
    !target.iter().any(|part| part == "virtual")
}

/// Returns the used entries of the GID table below a port's directory.
fn gids(port: &Path) -> Vec<Gid> {
    let read_one = |path: PathBuf| {
        let gid: Ipv6Addr = read(&path)?.parse().ok()?;
        let index = file_name(&path).parse().ok()?;
        let address = gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4);
        (!gid.is_unspecified()).then_some(Gid {
            index,
            gid,
            address,
        })
    };
    let mut gids: Vec<_> = entries(&port.join("gids"))
        .into_iter()
        .filter_map(read_one)
        .collect();
    gids.sort_by_key(|gid| gid.index);
    gids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn the_path_mtu_leaves_room_for_the_longest_headers() {
        for (netdev, path) in [
            (576, 256),
            (1111, 512),
            (1112, 1024),
            (1500, 1024),
            (4184, 4096),
        ] {
            assert_eq!(path_mtu(netdev), path, "{netdev}");
        }
    }

    #[test]
    fn devices_outside_the_virtual_directory_are_hardware() {
        let tree = Tree::new("hardware", &[("gids/0", "")]);
        for (name, target, expected) in [
            ("rrxe0", "../../devices/virtual/infiniband/rrxe0", false),
            (
                "mlx5_0",
                "../../devices/pci0000:00/0000:00:03.0/infiniband/mlx5_0",
                true,
            ),
        ] {
            let path = tree.0.join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            assert_eq!(is_hardware(&path), expected, "{name}");
        }
    }

    #[test]
    fn unused_gids_are_left_out() {
        let tree = Tree::new(
            "gids",
            &[
                ("gids/0", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n"),
                ("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
                ("gids/10", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ],
        );
        let seen: Vec<_> = gids(&tree.0)
            .into_iter()
            .map(|gid| (gid.index, gid.address.to_string()))
            .collect();
        assert_eq!(
            seen,
            [(0, "10.77.0.1".to_owned()), (10, "fe80::1".to_owned())]
        );
    }

    #[test]
    fn counters_are_read_by_name() {
        let text = r#"{"ifname": "rrxe0", "port": 1, "drop_icrc": 3, "other": "x"}"#;
        let line: StatisticLine = serde_json::from_str(text).unwrap();
        assert_eq!(line.counters(), [("drop_icrc".to_owned(), 3)].into());
    }

    #[test]
    fn troubles_are_errors_drops_and_retransmissions_above_zero() {
        let counts = [
            ("sent_pkts", 9),
            ("drop_icrc", 2),
            ("drop_pad", 0),
            ("send_err", 1),
            ("rto_resends", 4),
        ];
        let device = Device {
            counters: counts.map(|(name, count)| (name.to_owned(), count)).into(),
            ..Device::default()
        };
        let seen: Vec<_> = device.troubles().collect();
        assert_eq!(
            seen,
            [("drop_icrc", 2), ("rto_resends", 4), ("send_err", 1)]
        );
        assert_eq!((device.drops(), device.retransmissions()), (2, 4));
    }

    #[test]
    fn the_firmware_text_names_the_driver() {
        for (firmware, is_rrxe) in [
            (Some("rrxe 0.1.0"), true),
            (Some("1.0"), false),
            (None, false),
        ] {
            let device = Device {
                firmware: firmware.map(str::to_owned),
                ..Device::default()
            };
            assert_eq!(device.is_rrxe(), is_rrxe, "{firmware:?}");
        }
    }
}
