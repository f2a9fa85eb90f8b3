// SPDX-License-Identifier: GPL-2.0

//! Operations with random contents, and pauses.

use std::fs;

use super::Done;
use crate::{
    sys::{self, nr},
    thread::Thread,
    uverbs::{Bytes, Value},
};

/// Sleeps for `micros` microseconds.
pub fn pause(micros: u64) {
    let time = [0u64, micros * 1000];
    let _ = sys::call(nr::NANOSLEEP, &[sys::address(&time), 0]);
}

/// Sleeps for up to 3 ms.
pub fn sleep(thread: &mut Thread<'_>) -> Done {
    pause(thread.rng.below(3000));
    Ok(())
}

/// Makes a random write command with a random body.
pub fn command(thread: &mut Thread<'_>) -> Done {
    let (context, number) = (thread.context(), thread.rng.below(42) as u32);
    let length = thread.rng.index(20) * 4;
    let mut body = thread.random_bytes(length);
    // Makes about half of the words small, because small numbers are likely to be handles of
    // objects.
    for word in body.chunks_exact_mut(4) {
        if word[0] & 1 == 0 {
            word[1..].fill(0);
            word[0] &= 31;
        }
    }
    thread.command(context, number, Bytes(body), 64).map(|_| ())
}

/// Makes a random extended command with a random body.
pub fn extended(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let number = thread
        .rng
        .pick(&[1, 18, 24, 26, 50, 51, 52, 53, 54, 55, 56, 57]);
    let length = thread.rng.index(16) * 8;
    let mut body = thread.random_bytes(length);
    for word in body.chunks_exact_mut(4) {
        if word[0] & 3 != 0 {
            word[1..].fill(0);
            word[0] &= 15;
        }
    }
    let response = thread.rng.index(8) * 8;
    thread
        .extended(context, number, Bytes(body), response)
        .map(|_| ())
}

/// Makes a random ioctl with random attributes.
pub fn ioctl(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let object = if thread.rng.one_in(8) {
        thread.rng.edge_value() as u16
    } else {
        thread.rng.below(20) as u16
    };
    let method = if thread.rng.one_in(16) {
        thread.rng.edge_value() as u16
    } else {
        thread.rng.below(9) as u16
    };
    let noise = thread.random_bytes(64);
    let mut attributes = Vec::new();
    let mut number = 0;
    for _ in 0..thread.rng.below(12) {
        number = match thread.rng.below(16) {
            0 => 0x1000 + thread.rng.below(3) as u16,
            1 => thread.rng.edge_value() as u16,
            2 => number,
            _ => number + 1,
        };
        let value = match thread.rng.below(4) {
            0 => Value::Inline(thread.rng.below(32), 0),
            1 => Value::Inline(thread.rng.edge_value(), thread.rng.pick(&[4, 8])),
            2 => Value::In(&noise[..thread.rng.index(64)]),
            _ => Value::Out(thread.rng.pick(&[4, 8, 16, 64, 256])),
        };
        attributes.push((number, value));
    }
    thread
        .ioctl(context, object, method, &attributes)
        .map(|_| ())
}

/// Reads a sysfs attribute of a device.
pub fn sysfs(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let device = thread.world.device(context).ok_or(19)?;
    let name = thread.rng.pick(&[
        "node_type",
        "fw_ver",
        "ports/1/state",
        "ports/1/rate",
        "ports/1/gids/1",
        "ports/1/hw_counters/rcvd_pkts",
        "hw_counters/lifespan",
        "ports/1/gid_attrs/types/1",
        "ports/1/gid_attrs/ndevs/1",
    ]);
    let path = format!("/sys/class/infiniband/{}/{name}", device.name);
    fs::read(path)
        .map(|_| ())
        .map_err(|error| error.raw_os_error().unwrap_or(5))
}
