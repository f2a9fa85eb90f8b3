// SPDX-License-Identifier: GPL-2.0

//! Resizes of queues whose new ring cannot be mapped, for lack of address space. librrxe maps the
//! ring later. Stock librxe uses the null address then, so the cases are not for it.

use std::{fs, io};

use rrxe_verbs::buffer::page_size;

use crate::{
    cq::write,
    pair::{ensure, Ends, Outcome, Pair, Plan},
    srq::{errno_of, SrqPairs, ENOMEM},
    tap::Tap,
};

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result(
        "a resized CQ whose ring could not be mapped works once it can be",
        cq(ends),
    );
    tap.result(
        "a resized SRQ whose ring could not be mapped works once it can be",
        srq(ends),
    );
}

/// `struct rlimit`.
#[repr(C)]
struct Limit {
    current: u64,
    most: u64,
}

const RLIMIT_AS: i32 = 9;

extern "C" {
    fn getrlimit(resource: i32, limit: *mut Limit) -> i32;
    fn setrlimit(resource: i32, limit: *const Limit) -> i32;
}

/// Calls `body` while the process can map hardly any memory. The rings of the cases are longer
/// than the rest.
fn without_address_space<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    const REST: u64 = 256 << 10;
    let pages = fs::read_to_string("/proc/self/statm").map_err(|why| why.to_string())?;
    let pages = pages
        .split(' ')
        .next()
        .and_then(|size| size.parse::<u64>().ok());
    let size = pages.ok_or("statm has no size")? * page_size() as u64;
    let mut before = Limit {
        current: 0,
        most: 0,
    };
    // SAFETY: The structure outlives the call.
    ensure(unsafe { getrlimit(RLIMIT_AS, &mut before) } == 0, || {
        "getrlimit".into()
    })?;
    let little = Limit {
        current: size + REST,
        most: before.most,
    };
    // SAFETY: The structure outlives the call.
    ensure(unsafe { setrlimit(RLIMIT_AS, &little) } == 0, || {
        "setrlimit".into()
    })?;
    let result = body();
    // SAFETY: The structure outlives the call.
    ensure(unsafe { setrlimit(RLIMIT_AS, &before) } == 0, || {
        "setrlimit".into()
    })?;
    Ok(result)
}

/// Checks that each of the calls failed with `ENOMEM`.
fn expect_enomem(results: [io::Result<()>; 2]) -> Outcome {
    let errnos = results.each_ref().map(errno_of);
    ensure(errnos == [ENOMEM; 2], || format!("errnos {errnos:?}"))
}

fn cq(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    write(&pair, 0)?;
    pair.a.expect(0, 0)?;
    let queue = &pair.a.cq;
    expect_enomem(without_address_space(|| {
        [queue.resize(32_767), queue.arm(false)]
    })?)?;
    for id in 1..5 {
        write(&pair, id)?;
        pair.a.expect(id, 0)?;
    }
    pair.a.expect_no_completion()
}

fn srq(ends: &Ends) -> Outcome {
    let mut pairs = SrqPairs::new(ends, 1, 31)?;
    pairs.post(0)?;
    let queue = pairs.srq.clone();
    expect_enomem(without_address_space(|| {
        [queue.resize(16_000), queue.post_recv(0, &mut [])]
    })?)?;
    for number in 0..4 {
        pairs.post(number + 1)?;
        pairs.expect_message(0, number, number)?;
    }
    Ok(())
}
