// SPDX-License-Identifier: GPL-2.0

//! The load of `make bench`: one case a call, both ends, one line of JSON.
//!
//! ```text
//! rrxe-bench verbs CLIENT_DEVICE SERVER_DEVICE send|write|read stream|roundtrip|spin SIZE
//! COUNT DEPTH EVERY rrxe-bench calls DEVICE rrxe-bench busy DEVICE rrxe-bench tcp
//! SERVER_ADDRESS stream|roundtrip SIZE COUNT SERVER_COMMAND...
//! ```
//!
//! The client runs here, the server in a child process; both sleep on events, as programs do,
//! but for the client of `spin`, which polls; `calls` takes the time of the calls of verbs
//! themselves. Of DEPTH messages in flight one in EVERY is signaled. The clock is the
//! guest's; under QEMU's `-icount shift=0` its nanoseconds are instructions. A quarter of
//! COUNT warms up.
//!
//! `busy` measures nothing: it makes these calls until its input ends, for others to watch.

mod busy;
mod calls;
mod load;
mod own;
mod tcp;
mod verbs;

use std::{env, error::Error, process::ExitCode};

/// Whatever went wrong.
pub type Fallible<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["verbs", client, server, case @ ..] => verbs::client(client, server, case),
        ["verbs-server", device, case @ ..] => verbs::server(device, case),
        ["calls", device] => calls::measure(device),
        ["busy", device] => busy::run(device),
        ["tcp", address, pattern, size, count, server @ ..] => {
            tcp::client(address, pattern, size, count, server)
        }
        ["tcp-server", pattern, size] => tcp::server(pattern, size),
        _ => Err("wrong arguments; see the head of main.rs".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("rrxe-bench {}: {why}", args.join(" "));
            ExitCode::FAILURE
        }
    }
}
