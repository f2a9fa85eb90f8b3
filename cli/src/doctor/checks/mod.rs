// SPDX-License-Identifier: GPL-2.0

//! The doctor's checks: pure functions of the collected facts.

use super::{facts::Facts, finding::Finding};

mod counters;
mod links;
mod network;
mod peer;
mod software;
#[cfg(test)]
mod tests;

/// A check returns the faults that it finds in the facts.
type Check = fn(&Facts) -> Vec<Finding>;

/// All checks, in the order in which their findings are shown.
const CHECKS: [Check; 18] = [
    software::kernel,
    software::module,
    software::module_version,
    software::provider,
    software::device_files,
    software::memlock,
    links::existence,
    links::other_driver,
    links::foreign,
    links::state,
    links::addresses,
    links::mtu,
    network::port,
    network::firewall,
    counters::retransmissions,
    counters::failures,
    counters::drops,
    peer::peer,
];

/// Returns the findings of all checks.
pub(crate) fn run(facts: &Facts) -> Vec<Finding> {
    CHECKS.iter().flat_map(|check| check(facts)).collect()
}
