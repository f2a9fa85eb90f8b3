// SPDX-License-Identifier: GPL-2.0

//! `rrxe capture`: runs tcpdump with the filter for the packets of a link.
//!
//! tcpdump looks at all network devices of the network namespace (`any`), because the driver shows
//! the packets between QPs of this host only to such programs. The filter selects the network
//! device of the link, where the driver shows these packets, and the VLAN devices on it.

use std::{convert::Infallible, os::unix::process::CommandExt};

use crate::{
    device,
    netdev::{self, Netdev},
    tool::{self, Failure},
};

/// Kilobytes of tcpdump's buffer for packets that it has not read yet.
const BUFFER: &str = "16384";

/// Captures the packets of the link `name` to `file`, and ends after `count` packets, if there is a
/// number. tcpdump takes the place of this program.
///
/// # Errors
///
/// If there is no such link in this network namespace, or tcpdump could not be started.
pub(crate) fn run(name: &str, file: &str, count: Option<u64>) -> Result<Infallible, Failure> {
    let netdevs = netdev::all()?;
    let devices = device::all(&netdevs)?;
    let Some(found) = devices.iter().find(|each| each.name == name) else {
        return Err(Failure(format!(
            "There is no link {name}: `rrxe status` lists all links."
        )));
    };
    let Some(netdev) = &found.netdev else {
        return Err(Failure(format!(
            "The network device of {name} is in another network namespace: run this command there, by `ip netns exec` or `nsenter`."
        )));
    };
    let filter = filter(netdev, &netdevs);
    let mut command = tool::command("tcpdump");
    command.args(["-n", "-U", "-i", "any", "-B", BUFFER, "-w", file]);
    if let Some(count) = count {
        command.args(["-c", &count.to_string()]);
    }
    let error = command.arg(filter).exec();
    Err(tool::missing("tcpdump", &error))
}

/// Returns tcpdump's filter for the packets of a link on `netdev`.
fn filter(netdev: &str, netdevs: &[Netdev]) -> String {
    let of_link = |each: &&Netdev| {
        let is_vlan = each.kind() == Some("vlan") && each.link.as_deref() == Some(netdev);
        each.name == netdev || is_vlan
    };
    let indices: Vec<String> = netdevs
        .iter()
        .filter(of_link)
        .map(|each| format!("ifindex {}", each.index))
        .collect();
    format!("udp port 4791 and ({})", indices.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_has_all_devices_that_packets_of_the_link_pass() {
        let netdevs: Vec<Netdev> = serde_json::from_str(
            r#"[
                {"ifindex": 1, "ifname": "lo"},
                {"ifindex": 2, "ifname": "eth0"},
                {"ifindex": 3, "ifname": "eth1"},
                {"ifindex": 4, "ifname": "v5", "link": "eth0", "linkinfo": {"info_kind": "vlan"}},
                {"ifindex": 5, "ifname": "v6", "link": "eth1", "linkinfo": {"info_kind": "vlan"}},
                {"ifindex": 6, "ifname": "mv", "link": "eth0", "linkinfo": {"info_kind": "macvlan"}}
            ]"#,
        )
        .unwrap();
        assert_eq!(
            filter("eth0", &netdevs),
            "udp port 4791 and (ifindex 2 or ifindex 4)"
        );
        assert_eq!(
            filter("eth1", &netdevs),
            "udp port 4791 and (ifindex 3 or ifindex 5)"
        );
    }
}
