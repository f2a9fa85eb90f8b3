// SPDX-License-Identifier: GPL-2.0

//! `rrxe add` and `rrxe del`.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    device,
    netdev::{self, Netdev},
    tool::{self, Failure},
};

/// Time in which the port of a new link becomes ACTIVE if its network device is up.
const ACTIVE_WAIT: Duration = Duration::from_secs(3);
/// Time between two looks at the port.
const LOOK: Duration = Duration::from_millis(50);

/// Adds a link, and returns a message about it.
///
/// # Errors
///
/// Those of [`create`].
pub(crate) fn add(name: &str, netdev: &str) -> Result<String, Failure> {
    create(name, netdev)?;
    let state = wait_until_active(name);
    Ok(match state.as_str() {
        "ACTIVE" => format!("Link {name} on {netdev} is ACTIVE.\n"),
        state => format!(
            "Link {name} on {netdev} was added. Its state is {state}: run `rrxe doctor` to see why.\n"
        ),
    })
}

/// Adds a link.
///
/// # Errors
///
/// If the link cannot be added. The message says why, and what to do.
pub(crate) fn create(name: &str, netdev: &str) -> Result<(), Failure> {
    let arguments = ["link", "add", name, "type", "rrxe", "netdev", netdev];
    let Err(failure) = tool::text("rdma", &arguments) else {
        return Ok(());
    };
    let netdevs = netdev::all()?;
    let situation = Situation {
        netdev: netdevs.iter().find(|each| each.name == netdev),
        is_loaded: Path::new("/sys/module/rrxe").exists(),
        is_root: is_root(),
    };
    Err(Failure(explain_add(&failure.0, name, netdev, &situation)))
}

/// Deletes a link, and returns an empty message.
///
/// # Errors
///
/// If there is no such link of rrxe, or it cannot be deleted.
pub(crate) fn delete(name: &str) -> Result<String, Failure> {
    let devices = device::all(&[])?;
    let found = device::named(&devices, name)?;
    if !found.is_rrxe() {
        return Err(Failure(format!(
            "{name} is a device of another driver: `rdma link del {name}` deletes links of rdma_rxe."
        )));
    }
    tool::text("rdma", &["link", "del", name]).map_err(|failure| match is_root() {
        true => failure,
        false => Failure(needs_root()),
    })
}

/// Waits until the port of a link is ACTIVE, and returns its state.
fn wait_until_active(name: &str) -> String {
    let path = format!("/sys/class/infiniband/{name}/ports/1/state");
    let end = Instant::now() + ACTIVE_WAIT;
    loop {
        let text = device::read(Path::new(&path)).unwrap_or_default();
        let state = text
            .split_whitespace()
            .last()
            .unwrap_or("unknown")
            .to_owned();
        if state == "ACTIVE" || Instant::now() >= end {
            return state;
        }
        thread::sleep(LOOK);
    }
}

/// Returns whether the effective user is root.
fn is_root() -> bool {
    let status = device::read(Path::new("/proc/self/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}

/// Returns the message for users other than root.
pub(crate) fn needs_root() -> String {
    "This command needs root: run it with sudo.".to_owned()
}

/// The state of the host when a link was refused.
struct Situation<'a> {
    netdev: Option<&'a Netdev>,
    is_loaded: bool,
    is_root: bool,
}

/// Returns a message for a link that was refused. `error` is the message of `rdma`, which has the
/// text of the errno.
fn explain_add(error: &str, name: &str, netdev: &str, situation: &Situation<'_>) -> String {
    let Some(found) = situation.netdev else {
        return format!(
            "There is no network device {netdev}: `ip link` lists all network devices."
        );
    };
    if !situation.is_root {
        return needs_root();
    }
    if !situation.is_loaded {
        return "The module rrxe is not loaded and cannot be loaded: run `rrxe doctor` to see why."
            .to_owned();
    }
    let has = |text: &str| error.contains(text);
    if has("Operation not permitted") && found.kind() == Some("vlan") {
        let lower = found.link.as_deref().unwrap_or("its lower device");
        return format!(
            "{netdev} is a VLAN: add the link to {lower}, which serves its VLANs, too."
        );
    }
    if has("Address already in use") {
        return "UDP port 4791 is taken: run `rrxe doctor` to see by whom.".to_owned();
    }
    if has("File exists") {
        return format!("{netdev} has a link already: `rrxe status` lists all links.");
    }
    if has("Too many open files") {
        return format!("The name {name} is taken: choose another one.");
    }
    if has("Invalid argument") {
        return format!("{name} is no valid name, or {netdev} is neither an Ethernet nor a raw IP device: `dmesg` has the reason.");
    }
    format!(
        "{}: `dmesg` may have the reason.",
        error.trim_end_matches('.')
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(text: &str) -> Netdev {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn each_refusal_is_explained() {
        let plain = netdev(r#"{"ifname": "eth0"}"#);
        let vlan = netdev(r#"{"ifname": "v5", "link": "eth0", "linkinfo": {"info_kind": "vlan"}}"#);
        for (error, found, is_loaded, is_root, wanted) in [
            ("No such device", None, true, true, "no network device"),
            ("Operation not permitted", Some(&plain), true, false, "sudo"),
            (
                "Operation not permitted",
                Some(&vlan),
                true,
                true,
                "add the link to eth0",
            ),
            ("Invalid argument", Some(&plain), false, true, "not loaded"),
            ("Invalid argument", Some(&plain), true, true, "valid name"),
            ("Address already in use", Some(&plain), true, true, "4791"),
            ("File exists", Some(&plain), true, true, "a link already"),
            (
                "Too many open files in system",
                Some(&plain),
                true,
                true,
                "name rrxe0 is taken",
            ),
            (
                "Cannot allocate memory",
                Some(&plain),
                true,
                true,
                "Cannot allocate memory",
            ),
        ] {
            let situation = Situation {
                netdev: found,
                is_loaded,
                is_root,
            };
            let seen = explain_add(error, "rrxe0", "eth0", &situation);
            assert!(seen.contains(wanted), "{error}: {seen}");
        }
    }
}
