// SPDX-License-Identifier: GPL-2.0

//! The mode `calls`: measures how long each call of the data path's verbs occupies an application,
//! without the time until the operation completes.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use rrxe_verbs::sys::*;

use crate::{
    load::report_median,
    mark::{mark, BEGIN, END},
    own::{SelfConnected, SIZE},
    Fallible,
};

/// Number of calls that are timed together.
const BURST: u32 = 32;
/// Number of bursts of each call.
const ROUNDS: u32 = 64;

/// Makes a burst of calls and returns the mean duration of one. The mark at the end of the burst is
/// the place of the call among the lines that the program prints.
fn time<const MARK: u32>(mut call: impl FnMut() -> io::Result<()>) -> io::Result<Duration> {
    let start = Instant::now();
    mark::<BEGIN>();
    (0..BURST).try_for_each(|_| call())?;
    mark::<MARK>();
    Ok(start.elapsed() / BURST)
}

fn write(connection: &SelfConnected) -> io::Result<()> {
    connection.send(IBV_WR_RDMA_WRITE, 0)
}

/// Posts a burst of WRITEs and yields the CPU until they have completed. The doorbell calls of the
/// burst make rrxe poll the process's doorbell page.
fn keep_busy(connection: &SelfConnected) -> io::Result<()> {
    (0..BURST).try_for_each(|_| write(connection))?;
    (0..BURST).try_for_each(|_| connection.wait_for_completion(thread::yield_now))
}

/// Measures each call and prints the results, a line of JSON each.
pub fn measure(device: &str) -> Fallible<()> {
    let connection = SelfConnected::connect(device, 2 * BURST, BURST * (ROUNDS + 1))?;
    let [mut posts, mut receives, mut arms, mut polls, mut empty_polls] = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        keep_busy(&connection)?;
        posts.push(time::<{ END }>(|| write(&connection))?);
        // Long enough for all WRITEs to complete.
        thread::sleep(Duration::from_millis(2));
        polls.push(time::<{ END + 2 }>(|| connection.take())?);
        empty_polls.push(time::<{ END + 3 }>(|| match connection.take() {
            Err(empty) if empty.kind() == io::ErrorKind::WouldBlock => Ok(()),
            _ => Err(io::Error::other("the CQ is not empty")),
        })?);
        receives.push(time::<{ END + 1 }>(|| connection.receive())?);
        arms.push(time::<{ END + 4 }>(|| connection.cq.arm(false))?);
    }
    report_median("post_send", "call", SIZE, BURST, &mut posts);
    report_median("post_recv", "call", SIZE, BURST, &mut receives);
    report_median("poll_cq", "call", SIZE, BURST, &mut polls);
    report_median("poll_cq, empty", "call", 0, BURST, &mut empty_polls);
    report_median("req_notify_cq", "call", 0, BURST, &mut arms);
    Ok(())
}
