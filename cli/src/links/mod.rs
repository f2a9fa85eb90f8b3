// SPDX-License-Identifier: GPL-2.0

//! Links that last: `rrxe up` and `rrxe down`, which the systemd unit `rrxe@NETDEV.service` runs,
//! `rrxe apply` for administrators who have changed the configuration, and `rrxe udev`.
//!
//! `packaging/` has the units and udev's rules.

mod candidate;
mod config;
mod plan;
mod records;

use std::path::Path;

use crate::{
    device, manage,
    tool::{self, Failure},
};
use candidate::Candidate;
use config::{Config, Wanted};
use plan::Action;
use records::{Record, Records};

/// Directory of the configuration.
const CONFIG: &str = "/etc/rrxe";
/// Directory of the records.
const RECORDS: &str = "/run/rrxe";
/// Service that fails if the configuration is wrong.
const APPLY_SERVICE: &str = "rrxe-links.service";
/// Template of the services of network devices.
const SERVICE: &str = "--template=rrxe@.service";

/// Adds the link that a network device is to have, and returns a message about it.
///
/// # Errors
///
/// If the configuration is wrong, or the link cannot be added.
pub(crate) fn up(netdev: &str) -> Result<String, Failure> {
    check_name(netdev)?;
    let config = Config::read(Path::new(CONFIG))?;
    let candidate = Candidate::read(netdev)?;
    let Wanted { name, configured } = config.wanted(&candidate)?;
    let records = Records::open(Path::new(RECORDS))?;
    let action = plan::up(netdev, &name, &device::all(&[])?, &records.all()?)?;
    if let Action::Replace(old) = &action {
        tool::text("rdma", &["link", "del", old])?;
    }
    if action != Action::Keep {
        manage::create(&name, netdev)?;
    }
    let link = device::all(&[])?.into_iter().find(|link| link.name == name);
    let Some(index) = link.map(|link| link.index) else {
        return Err(Failure(format!("The link {name} is gone.")));
    };
    let message = format!("{netdev} has the link {name}.\n");
    records.write(&Record {
        netdev: candidate.name,
        netdev_index: candidate.index,
        name,
        index,
        configured,
    })?;
    Ok(message)
}

/// Deletes the link that [`up`] added for a network device, and returns a message about it. The
/// network device may be gone, or have another name. With `again`, its service starts again if
/// another network device has the name now.
///
/// # Errors
///
/// If the link cannot be deleted.
pub(crate) fn down(netdev: &str, again: bool) -> Result<String, Failure> {
    check_name(netdev)?;
    let records = Records::open(Path::new(RECORDS))?;
    let all = records.all()?;
    let Some(record) = all.iter().find(|record| record.netdev == netdev) else {
        return Ok(format!("{netdev} has no link of `rrxe up`.\n"));
    };
    if let Some(link) = plan::recorded(record, &device::all(&[])?) {
        tool::text("rdma", &["link", "del", &link.name])?;
    }
    records.remove(netdev)?;
    // systemd does not start a service that is about to stop, even if a network device appears that
    // wants it.
    let present = Candidate::read(netdev).ok();
    if again && present.is_some_and(|present| present.index != record.netdev_index) {
        let service = services(&[netdev.to_owned()])?.concat();
        tool::text("systemctl", &["start", "--no-block", &service])?;
    }
    Ok(format!("The link {} is gone.\n", record.name))
}

/// Starts and stops services until the links are those of the configuration, and returns a message
/// for each service.
///
/// # Errors
///
/// If the configuration is wrong, or a service fails.
pub(crate) fn apply() -> Result<String, Failure> {
    let config = Config::read(Path::new(CONFIG))?;
    let wanted: Vec<_> = Candidate::all()?
        .into_iter()
        .map(|netdev| Ok((netdev.name.clone(), config.wanted(&netdev)?)))
        .collect::<Result<_, Failure>>()?;
    let records = Records::open(Path::new(RECORDS))?.all()?;
    let changes = plan::changes(&wanted, &device::all(&[])?, &records);
    let mut messages = String::new();
    for (verb, netdevs) in [("stop", &changes.stop), ("restart", &changes.restart)] {
        if netdevs.is_empty() {
            continue;
        }
        let services = services(netdevs)?;
        let mut arguments = vec![verb];
        arguments.extend(services.iter().map(String::as_str));
        tool::text("systemctl", &arguments)?;
        messages.extend(services.iter().map(|service| format!("{verb} {service}\n")));
    }
    // udev notes which services the network devices want from now on.
    tool::text(
        "udevadm",
        &["trigger", "--action=change", "--subsystem-match=net"],
    )?;
    Ok(messages)
}

/// Returns the property of udev that names the service of a network device, or nothing if the
/// configuration has no entry for it. A wrong configuration has a service of its own, which fails
/// and says why. `kernel_name` is the present name of the device, and `name` the one that udev is
/// about to give it.
///
/// # Errors
///
/// If the network device is gone.
pub(crate) fn udev(kernel_name: &str, name: &str) -> Result<String, Failure> {
    let wants = match Config::read(Path::new(CONFIG)) {
        Ok(config) => {
            let mut netdev = Candidate::read(kernel_name)?;
            name.clone_into(&mut netdev.name);
            if !config.matches(&netdev) {
                return Ok(String::new());
            }
            services(&[netdev.name])?.concat()
        }
        Err(failure) => {
            eprintln!("rrxe: {failure}");
            APPLY_SERVICE.to_owned()
        }
    };
    Ok(format!("RRXE_WANTS={wants}\n"))
}

/// Returns the names of the services of network devices.
fn services(netdevs: &[String]) -> Result<Vec<String>, Failure> {
    let mut arguments = vec![SERVICE, "--"];
    arguments.extend(netdevs.iter().map(String::as_str));
    let text = tool::text("systemd-escape", &arguments)?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Refuses a name that no network device can have. Names of network devices are file names.
fn check_name(netdev: &str) -> Result<(), Failure> {
    if netdev.contains('/') || [".", "..", ""].contains(&netdev) {
        return Err(Failure(format!(
            "'{netdev}' is no name of a network device."
        )));
    }
    Ok(())
}
