// SPDX-License-Identifier: GPL-2.0

//! Collects the users of UDP port 4791.

use std::{collections::BTreeSet, fs, path::Path};

use serde::Deserialize;

use super::{collect::sockets, facts::PortUse, ROCE_PORT};
use crate::{
    device::{entries, file_name, read},
    tool,
};

/// A tunnel in the output of `ip -j fou show`.
#[derive(Deserialize)]
struct Fou {
    port: u16,
}

/// Returns the users of the port in this network namespace.
pub(super) fn collect() -> PortUse {
    let mut bound = BTreeSet::new();
    for file in ["/proc/net/udp", "/proc/net/udp6"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        bound.extend(sockets(&text, ROCE_PORT));
    }
    PortUse {
        is_bound: !bound.is_empty(),
        processes: if bound.is_empty() {
            Vec::new()
        } else {
            owners(&bound)
        },
        has_fou: has_fou(),
    }
}

fn has_fou() -> bool {
    let tunnels: Vec<Fou> = tool::json("ip", &["-j", "fou", "show"]).unwrap_or_default();
    tunnels.iter().any(|each| each.port == ROCE_PORT)
}

/// Returns the processes that have one of these sockets open.
fn owners(sockets: &BTreeSet<u64>) -> Vec<String> {
    let targets: Vec<_> = sockets
        .iter()
        .map(|number| format!("socket:[{number}]"))
        .collect();
    let has_one = |process: &Path| {
        let files = entries(&process.join("fd"));
        files.iter().any(|file| {
            let target = fs::read_link(file).unwrap_or_default();
            targets.iter().any(|each| Path::new(each) == target)
        })
    };
    let is_process = |path: &Path| file_name(path).parse::<u32>().is_ok();
    let processes = entries(Path::new("/proc"));
    let found = processes
        .iter()
        .filter(|path| is_process(path) && has_one(path));
    found
        .map(|path| {
            let name = read(&path.join("comm")).unwrap_or_default();
            format!("{name} (PID {})", file_name(path))
        })
        .collect()
}
