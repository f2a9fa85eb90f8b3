// SPDX-License-Identifier: GPL-2.0

//! `rrxe capture`: runs tcpdump with the filter for the packets of a link.
//!
//! tcpdump looks at all network devices of the network namespace (`any`), because the driver shows
//! the packets between QPs of this host only to such programs. The filter selects the network
//! device of the link, where the driver shows these packets.

use std::{convert::Infallible, os::unix::process::CommandExt};

use crate::{
    device,
    doctor::ROCE_PORT,
    netdev,
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
    let found = device::named(&devices, name)?;
    let netdev = netdevs
        .iter()
        .find(|each| Some(&each.name) == found.netdev.as_ref());
    let Some(netdev) = netdev else {
        return Err(Failure(format!(
            "The network device of {name} is in another network namespace: run this command there, by `ip netns exec` or `nsenter`."
        )));
    };
    if netdev.is_loopback() {
        return Err(Failure(
            "tcpdump does not show the packets that the loopback device sends: add the link to another network device."
                .to_owned(),
        ));
    }
    let mut command = tool::command("tcpdump");
    command.args(["-n", "-U", "-i", "any", "-B", BUFFER, "-w", file]);
    if let Some(count) = count {
        command.args(["-c", &count.to_string()]);
    }
    let error = command.arg(filter(netdev.index)).exec();
    Err(tool::missing("tcpdump", &error))
}

/// Returns tcpdump's filter for the packets of the network device with this index. Those with a
/// VLAN tag match if the tag is beside the packet's bytes, as for network devices that insert tags.
fn filter(index: u32) -> String {
    format!("udp port {ROCE_PORT} and ifindex {index}")
}
