// SPDX-License-Identifier: GPL-2.0

//! Decisions about links, which depend on the configuration, the records and the present links.

use super::{config::Wanted, records::Record};
use crate::{device::Device, tool::Failure};

/// Action of `rrxe up` on the link of a network device.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Keeps the link, which the network device has already.
    Keep,
    /// Adds the link.
    Add,
    /// Deletes the link of this name, and then adds the new one.
    Replace(String),
}

/// Services of network devices that `rrxe apply` changes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    /// Network devices whose services it starts again.
    pub(super) restart: Vec<String>,
    /// Network devices whose services it stops.
    pub(super) stop: Vec<String>,
}

/// Returns the action of `rrxe up` on a network device that is to have a link named `wanted`.
///
/// It replaces a link that the network device had under another name. The service of that name may
/// delete its link before or after this one is added. The result is the same.
///
/// # Errors
///
/// If somebody else has added a link with another name, or another driver has one.
pub(super) fn up(
    netdev: &str,
    wanted: &str,
    links: &[Device],
    records: &[Record],
) -> Result<Action, Failure> {
    let Some(link) = links
        .iter()
        .find(|link| link.netdev.as_deref() == Some(netdev))
    else {
        return Ok(Action::Add);
    };
    let name = &link.name;
    if !link.is_rrxe() {
        return Err(Failure(format!(
            "{netdev} has the link {name} of another driver: `rdma link del {name}` deletes it."
        )));
    }
    match records.iter().find(|record| record.index == link.index) {
        Some(record) if record.netdev == netdev && name == wanted => Ok(Action::Keep),
        Some(_) => Ok(Action::Replace(name.clone())),
        None if name == wanted => Ok(Action::Keep),
        None => Err(Failure(format!(
            "{netdev} has the link {name}, which is to be {wanted}: `rrxe del {name}` deletes it."
        ))),
    }
}

/// Returns the link of a record, if it was not deleted.
pub(super) fn recorded<'a>(record: &Record, links: &'a [Device]) -> Option<&'a Device> {
    let is_its = |link: &&Device| link.index == record.index && link.is_rrxe();
    links.iter().find(is_its)
}

/// Returns the changes that `rrxe apply` makes. `wanted` has all network devices with their links.
pub(super) fn changes(
    wanted: &[(String, Wanted)],
    links: &[Device],
    records: &[Record],
) -> Changes {
    let configured = || wanted.iter().filter(|(_, link)| link.configured);
    let is_up = |netdev: &str, link: &Wanted| {
        records.iter().any(|record| {
            record.netdev == netdev && record.name == link.name && recorded(record, links).is_some()
        })
    };
    let restart = configured().filter(|(netdev, link)| !is_up(netdev, link));
    let is_left = |record: &&Record| {
        record.configured && !configured().any(|(netdev, _)| *netdev == record.netdev)
    };
    Changes {
        restart: restart.map(|(netdev, _)| netdev.clone()).collect(),
        stop: records
            .iter()
            .filter(is_left)
            .map(|record| record.netdev.clone())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, netdev: &str) -> Device {
        Device {
            index,
            name: name.to_owned(),
            netdev: Some(netdev.to_owned()),
            firmware: Some("rrxe 0.1.0".to_owned()),
            ..Device::default()
        }
    }

    fn record(index: u32, name: &str, netdev: &str) -> Record {
        Record {
            index,
            name: name.to_owned(),
            netdev: netdev.to_owned(),
            netdev_index: 5,
            configured: true,
        }
    }

    fn wanted(netdev: &str, name: &str, configured: bool) -> (String, Wanted) {
        let name = name.to_owned();
        (netdev.to_owned(), Wanted { name, configured })
    }

    fn action(links: &[Device], records: &[Record]) -> Action {
        up("eth0", "rrxe0", links, records).unwrap()
    }

    #[test]
    fn up_adds_a_link_to_a_network_device_without_one() {
        assert_eq!(action(&[link(1, "rrxe1", "eth1")], &[]), Action::Add);
    }

    #[test]
    fn up_keeps_the_link_that_it_added_and_that_of_the_administrator() {
        let links = [link(1, "rrxe0", "eth0")];
        assert_eq!(action(&links, &[record(1, "rrxe0", "eth0")]), Action::Keep);
        assert_eq!(action(&links, &[]), Action::Keep);
    }

    #[test]
    fn up_replaces_its_link_if_the_configuration_has_another_name() {
        let replaced = Action::Replace("old".to_owned());
        let links = [link(1, "old", "eth0")];
        assert_eq!(action(&links, &[record(1, "old", "eth0")]), replaced);
    }

    #[test]
    fn up_replaces_the_link_of_a_renamed_network_device() {
        let replaced = Action::Replace("rrxe0".to_owned());
        let links = [link(1, "rrxe0", "eth0")];
        assert_eq!(action(&links, &[record(1, "rrxe0", "lan0")]), replaced);
    }

    #[test]
    fn up_refuses_to_replace_links_of_others() {
        let foreign = Device {
            firmware: None,
            ..link(1, "rrxe0", "eth0")
        };
        for (present, text) in [
            (foreign, "another driver"),
            (link(1, "mine", "eth0"), "`rrxe del mine`"),
        ] {
            let failure = up("eth0", "rrxe0", &[present], &[]).unwrap_err();
            assert!(failure.0.contains(text), "{failure}");
        }
    }

    #[test]
    fn a_record_means_its_link_only_while_that_exists() {
        let kept = record(1, "rrxe0", "eth0");
        assert!(recorded(&kept, &[link(1, "rrxe0", "lan0")]).is_some());
        assert!(recorded(&kept, &[link(2, "rrxe0", "eth0")]).is_none());
    }

    #[test]
    fn apply_starts_services_of_links_that_are_absent_or_have_another_name() {
        let links = [link(1, "a", "eth0"), link(2, "b", "eth1")];
        let records = [
            record(1, "a", "eth0"),
            record(2, "b", "eth1"),
            record(7, "c", "eth2"),
        ];
        let entries = [
            wanted("eth0", "a", true),
            wanted("eth1", "new", true),
            wanted("eth2", "c", true),
            wanted("eth3", "d", true),
            wanted("eth4", "rrxe_eth4", false),
        ];
        let seen = changes(&entries, &links, &records);
        assert_eq!(seen.restart, ["eth1", "eth2", "eth3"]);
        assert!(seen.stop.is_empty());
    }

    #[test]
    fn apply_stops_services_of_network_devices_that_have_no_entry_now() {
        let enabled = Record {
            configured: false,
            ..record(2, "rrxe_eth1", "eth1")
        };
        let records = [record(1, "a", "eth0"), enabled];
        let entries = [
            wanted("eth0", "rrxe_eth0", false),
            wanted("eth1", "rrxe_eth1", false),
        ];
        let stop = vec!["eth0".to_owned()];
        let expected = Changes {
            stop,
            ..Changes::default()
        };
        assert_eq!(changes(&entries, &[], &records), expected);
    }
}
