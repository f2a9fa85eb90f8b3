// SPDX-License-Identifier: GPL-2.0

//! The mode `busy`: an application that posts, arms and polls without a pause. Each iteration posts
//! a receive, arms the CQ, posts a SEND and polls for both completions.

use std::{
    hint,
    io::{self, Read},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rrxe_verbs::sys::*;

use crate::{
    own::{SelfConnected, SIZE},
    Fallible,
};

/// Longest wait for the expected event, in milliseconds.
const EVENT_TIMEOUT_MS: i32 = 10_000;

/// Whether the standard input has ended.
static INPUT_ENDED: AtomicBool = AtomicBool::new(false);

/// Runs iterations until the standard input ends. The CQ is armed for solicited completions. Only
/// the last message is solicited, so only that one may cause an event. Prints "attached" after the
/// set-up, as `rrxe-check hold-group` does, because the function `start_holder` of guest.sh waits
/// for that word.
pub fn run(device: &str) -> Fallible<()> {
    let mut connection = SelfConnected::connect(device, 16, 16)?;
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        INPUT_ENDED.store(true, Ordering::Relaxed);
    });
    println!("attached");
    let mut iterations = 0;
    while !INPUT_ENDED.load(Ordering::Relaxed) {
        iterations += 1;
        iteration(&mut connection, iterations, 0)?;
    }
    if connection.cq.event_within(0) {
        return Err("an event of a message that isn't solicited".into());
    }
    iteration(&mut connection, iterations + 1, IBV_SEND_SOLICITED)?;
    if !connection.cq.event_within(EVENT_TIMEOUT_MS) {
        return Err("no event of the solicited message".into());
    }
    connection.cq.wait()?;
    println!("{iterations} iterations");
    Ok(())
}

fn iteration(connection: &mut SelfConnected, number: u64, flags: u32) -> Fallible<()> {
    connection.mr.buffer.set_word(0, number);
    connection.receive()?;
    connection.cq.arm(true)?;
    connection.send(IBV_WR_SEND, flags)?;
    (0..2).try_for_each(|_| connection.wait_for_completion(hint::spin_loop))?;
    match connection.mr.buffer.word(SIZE) {
        received if received == number => Ok(()),
        received => Err(format!("message {received} instead of {number}").into()),
    }
}
