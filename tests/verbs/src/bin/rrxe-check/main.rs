// SPDX-License-Identifier: GPL-2.0

//! Checks data, completion statuses and errnos of verbs on two RDMA devices, and prints the results
//! as TAP (Test Anything Protocol).
//!
//! Usage: `rrxe-check DEVICE_A DEVICE_B [v4|v6] [TOPIC ...]`
//!
//! This process has QPs on both devices, so it checks the memory and the completion queues of both
//! ends. In most cases device A is the requester and device B the responder. The devices may be the
//! same. `v4` (the default) and `v6` select the IP version.
//!
//! Without a topic the program runs all topics but those that the usage text lists under
//! `by name only`.

mod cq;
mod datagram;
mod errno;
mod group;
mod loss;
mod matrix;
mod pair;
mod query;
mod raw;
mod srq;
mod srq_ring;
mod status;
mod tap;
mod transfer;
mod unmapped;
mod unreliable;
mod windows;
mod xrc;

use std::process::ExitCode;

use tap::Tap;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(a), Some(b)) = (args.next(), args.next()) else {
        eprintln!("usage: rrxe-check DEVICE_A DEVICE_B [v4|v6] [TOPIC ...]");
        eprintln!("topics: transfer status errno cq query srq xrc uc uc-errors ud ud-errors group");
        eprintln!("        group-sender loss; for librrxe: unmapped");
        eprintln!("by name only: windows matrix raw raw-denied");
        eprintln!("        hold-group (a QP of DEVICE_B is attached until the input ends)");
        return ExitCode::from(2);
    };
    let words: Vec<String> = args.collect();
    let v6 = words.iter().any(|word| word == "v6");
    let topics: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .filter(|w| !w.starts_with('v'))
        .collect();
    let wanted = |topic: &str| topics.is_empty() || topics.contains(&topic);

    let mut tap = Tap::new(format!("{a}-{b} {}", if v6 { "IPv6" } else { "IPv4" }));
    let ends = pair::Ends { a: &a, b: &b, v6 };
    if wanted("transfer") {
        transfer::run(&mut tap, &ends);
    }
    if wanted("status") {
        status::run(&mut tap, &ends);
    }
    // Not by default, because not all providers have memory windows.
    if topics.contains(&"windows") {
        windows::run(&mut tap, &ends);
    }
    if wanted("errno") {
        errno::run(&mut tap, &ends);
    }
    if wanted("cq") {
        cq::run(&mut tap, &ends);
    }
    if wanted("query") {
        query::run(&mut tap, &ends);
    }
    if wanted("srq") {
        srq::run(&mut tap, &ends);
        srq_ring::run(&mut tap, &ends);
    }
    if wanted("unmapped") && !pair::is_stock() {
        unmapped::run(&mut tap, &ends);
    }
    if wanted("xrc") {
        xrc::run(&mut tap, &ends);
    }
    if wanted("uc") {
        transfer::run_uc(&mut tap, &ends);
    }
    if wanted("uc-errors") {
        unreliable::run(&mut tap, &ends);
    }
    if wanted("ud") {
        datagram::run(&mut tap, &ends);
    }
    if wanted("ud-errors") {
        datagram::run_errors(&mut tap, &ends);
    }
    if wanted("group") {
        group::run(&mut tap, &ends);
    }
    if wanted("group-sender") {
        group::run_sender(&mut tap, &ends);
    }
    if topics.contains(&"matrix") {
        matrix::run(&mut tap, &ends);
    }
    if topics.contains(&"raw") {
        raw::run(&mut tap, &ends);
    }
    if topics.contains(&"raw-denied") {
        raw::run_denied(&mut tap, &ends);
    }
    if topics.contains(&"hold-group") {
        tap.result(
            "group: an idle attached QP gets nothing and still works",
            group::hold(&ends),
        );
    }
    if wanted("loss") {
        loss::run(&mut tap, &ends);
    }
    tap.verdict()
}
