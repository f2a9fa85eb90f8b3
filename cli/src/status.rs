// SPDX-License-Identifier: GPL-2.0

//! `rrxe status`.

use comfy_table::{presets, Table};
use serde_json::json;

use crate::{
    device::{self, Device},
    netdev,
    tool::Failure,
};

/// Returns the state of all RDMA devices, as a table or as JSON.
///
/// # Errors
///
/// If iproute2 is missing or fails.
pub(crate) fn run(as_json: bool) -> Result<String, Failure> {
    let devices = device::all(&netdev::all()?)?;
    Ok(if as_json {
        format!("{}\n", json!({ "links": devices }))
    } else if devices.is_empty() {
        "There is no link: `rrxe add NAME NETDEV` adds one.\n".to_owned()
    } else {
        table(&devices)
    })
}

/// Returns the table for people.
fn table(devices: &[Device]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "LINK", "DRIVER", "NETDEV", "STATE", "MTU", "QPS", "GIDS", "TROUBLE",
    ]);
    for device in devices {
        table.add_row(row(device));
    }
    let lines = table.lines().map(|line| line.trim().to_owned() + "\n");
    lines.collect()
}

/// Returns the cells of a device.
fn row(device: &Device) -> [String; 8] {
    let gids = device
        .gids
        .iter()
        .map(|gid| format!("{}: {}", gid.index, gid.address));
    let troubles = device
        .troubles()
        .map(|(name, count)| format!("{name} {count}"));
    [
        device.name.clone(),
        device
            .firmware
            .clone()
            .unwrap_or_else(|| "other".to_owned()),
        device
            .netdev
            .clone()
            .unwrap_or_else(|| "(other netns)".to_owned()),
        device.state.clone(),
        device.mtu.map(|mtu| mtu.to_string()).unwrap_or_default(),
        device.objects.qp.to_string(),
        gids.collect::<Vec<_>>().join("\n"),
        troubles.collect::<Vec<_>>().join("\n"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Gid;

    #[test]
    fn the_table_has_a_row_of_all_facts_for_each_device() {
        let gid: std::net::Ipv6Addr = "::ffff:10.77.0.1".parse().unwrap();
        let device = Device {
            name: "rrxe0".to_owned(),
            firmware: Some("rrxe 0.1.0".to_owned()),
            netdev: Some("eth0".to_owned()),
            state: "ACTIVE".to_owned(),
            mtu: Some(1024),
            gids: vec![Gid {
                index: 1,
                gid,
                address: "10.77.0.1".parse().unwrap(),
            }],
            counters: [("drop_icrc".to_owned(), 3)].into(),
            ..Device::default()
        };
        let text = table(&[device]);
        let words: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            words,
            [
                "rrxe0",
                "rrxe",
                "0.1.0",
                "eth0",
                "ACTIVE",
                "1024",
                "0",
                "1:",
                "10.77.0.1",
                "drop_icrc",
                "3"
            ]
        );
    }
}
