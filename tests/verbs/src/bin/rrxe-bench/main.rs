// SPDX-License-Identifier: GPL-2.0

//! The load of `make bench`. The program runs one case, with both ends, and prints the result as a
//! line of JSON. `calls` prints a line for each kind of call.
//!
//! ```text
//! rrxe-bench verbs CLIENT_DEVICE SERVER_DEVICE send|write|read PATTERN SIZE COUNT DEPTH EVERY
//! rrxe-bench calls DEVICE
//! rrxe-bench busy DEVICE
//! rrxe-bench tcp SERVER_ADDRESS stream|roundtrip SIZE COUNT SERVER_COMMAND...
//! ```
//!
//! PATTERN is `stream`, `roundtrip` or `spin`.
//!
//! `verbs` and `tcp` run the client in this process and the server in a child process. Both sleep
//! while they wait, as applications do, except for the client of `spin`, which polls. In a `stream`
//! at most DEPTH messages are in flight, and one in EVERY is signaled. COUNT messages are measured,
//! after at least a quarter as many that are not (warm-up).
//!
//! The pages of a region may be contiguous in physical memory or not, depending on which memory is
//! free. With `RRXE_BENCH_SCATTER` in the environment, the pages of a region of three or more are
//! never all contiguous. `RRXE_BENCH_TIMEOUT` in the environment is the Local ACK Timeout of the
//! QPs (an exponent).
//!
//! `calls` measures the duration of each verbs call of the data path: the median of the means of 64
//! bursts of 32 calls.
//!
//! `busy` measures nothing: it makes the verbs calls until its standard input ends, so that a
//! script can count its system calls (tests/vm/programs/calls.sh).
//!
//! The clock is the guest's. Under QEMU's `-icount shift=0` a nanosecond is one instruction. Marks
//! (mark.rs) tell QEMU's plugin tools/bench/count.c where a measured interval begins and ends.

mod busy;
mod calls;
mod load;
mod mark;
mod own;
mod tcp;
mod verbs;

use std::{env, error::Error, process::ExitCode};

/// A result with any error.
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
