// SPDX-License-Identifier: GPL-2.0

//! Checks of counters, which count since a link was added.

use crate::{
    device::Device,
    doctor::{
        facts::Facts,
        finding::{warning, Finding},
    },
};

/// Least value of a counter that the checks of retransmissions and of drops report.
const FEW: u64 = 10;

/// Counters of failed requests, with the fault and the remedy.
const FAILURES: [(&str, &str, &str); 2] = [
    (
        "retry_exceeded_err",
        "requests failed because the peer did not respond",
        "Run `rrxe doctor PEER` with the address of the peer, and give the QPs a longer timeout if its host is busy.",
    ),
    (
        "retry_rnr_exceeded_err",
        "requests failed because the peer had posted no receives",
        "Have the program at the peer post its receives earlier, or set rnr_retry to 7 (no limit).",
    ),
];

/// Counters of packets that were dropped or could not be sent, with the fault and the remedy.
const DROPS: [(&str, &str, &str); 5] = [
    (
        "drop_icrc",
        "packets had a wrong ICRC, because they were damaged or a host on the path has changed them",
        "Remove NAT between the hosts, and turn off the offloads of the netdev by `ethtool -K`.",
    ),
    (
        "drop_overflow",
        "packets arrived faster than this host could process them",
        "Give this host more CPU time, or limit the peers' rate, for example by `tc`.",
    ),
    (
        "drop_peer",
        "packets did not come from the address of their QP's peer",
        "Have the peer use the source address with which its QP was connected, and remove NAT between the hosts.",
    ),
    (
        "drop_interface",
        "packets came in by a network device that does not have the address of their link",
        "Correct the routes of the peer, so that its packets arrive by the network device of the link.",
    ),
    (
        "send_err",
        "packets could not be sent",
        "Check the route to the peer by `ip route get`, and the firewall's rules for outgoing packets.",
    ),
];

/// Returns the links whose network device is in this network namespace.
fn links(facts: &Facts) -> impl Iterator<Item = &Device> {
    facts
        .devices
        .iter()
        .filter(|each| each.is_rrxe() && each.netdev.is_some())
}

/// Checks whether the number of retransmissions is at least a hundredth of the number of packets.
pub(super) fn retransmissions(facts: &Facts) -> Vec<Finding> {
    let lossy = links(facts).filter(|link| {
        let resent = link.retransmissions();
        resent >= FEW && resent.saturating_mul(100) >= link.counter("sent_pkts")
    });
    lossy
        .map(|link| {
            warning(
                "loss",
                format!(
                    "Link {} retransmitted lost packets {} times while it sent {} packets.",
                    link.name,
                    link.retransmissions(),
                    link.counter("sent_pkts")
                ),
                format!(
                    "Find the place of the loss by `ip -s link show {0}`, `tc -s qdisc show dev {0}` and the switch's counters.",
                    link.netdev.as_deref().unwrap_or_default()
                ),
            )
        })
        .collect()
}

/// Checks whether requests have failed.
pub(super) fn failures(facts: &Facts) -> Vec<Finding> {
    let found = links(facts).flat_map(|link| exceeding(link, "failures", &FAILURES, 1));
    found.collect()
}

/// Checks whether packets were dropped or could not be sent, for a reason that an administrator can
/// remove.
pub(super) fn drops(facts: &Facts) -> Vec<Finding> {
    let found = links(facts).flat_map(|link| exceeding(link, "drops", &DROPS, FEW));
    found.collect()
}

/// Returns a finding for each counter of `table` that is at least `least`.
fn exceeding(
    link: &Device,
    check: &'static str,
    table: &[(&str, &str, &str)],
    least: u64,
) -> Vec<Finding> {
    let counts = table.iter().map(|row| (row, link.counter(row.0)));
    counts
        .filter(|(_, count)| *count >= least)
        .map(|((counter, problem, remedy), count)| {
            let name = &link.name;
            warning(
                check,
                format!("Link {name}: {count} {problem} (counter {counter})."),
                *remedy,
            )
        })
        .collect()
}
