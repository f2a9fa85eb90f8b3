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
    own::{Own, SIZE},
    Fallible,
};

/// Longest wait for the expected event, in milliseconds.
const PATIENCE: i32 = 10_000;

/// Whether the standard input has ended.
static ENOUGH: AtomicBool = AtomicBool::new(false);

/// Runs iterations until the standard input ends. The CQ is armed for solicited completions. Only
/// the last message is solicited, so only that one may cause an event. Prints "attached" after the
/// set-up, as `rrxe-check hold-group` does, because the function `hold` of guest.sh waits for that
/// word.
pub fn run(device: &str) -> Fallible<()> {
    let mut own = Own::connect(device, 16, 16)?;
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        ENOUGH.store(true, Ordering::Relaxed);
    });
    println!("attached");
    let mut laps = 0;
    while !ENOUGH.load(Ordering::Relaxed) {
        laps += 1;
        lap(&mut own, laps, 0)?;
    }
    if own.cq.event_within(0) {
        return Err("an event of a message that isn't solicited".into());
    }
    lap(&mut own, laps + 1, IBV_SEND_SOLICITED)?;
    if !own.cq.event_within(PATIENCE) {
        return Err("no event of the solicited message".into());
    }
    own.cq.wait()?;
    println!("{laps} laps");
    Ok(())
}

fn lap(own: &mut Own, number: u64, flags: u32) -> Fallible<()> {
    own.mr.buffer.set_word(0, number);
    own.receive()?;
    own.cq.arm(true)?;
    own.send(IBV_WR_SEND, flags)?;
    (0..2).try_for_each(|_| own.await_one(hint::spin_loop))?;
    match own.mr.buffer.word(SIZE) {
        received if received == number => Ok(()),
        received => Err(format!("message {received} instead of {number}").into()),
    }
}
