// SPDX-License-Identifier: GPL-2.0

//! Resizing of completion queues, and their moderation.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rrxe_verbs::{
    object::{Context, Cq},
    sys::*,
};

use crate::{
    errno::EOPNOTSUPP,
    pair::{ensure, is_stock, Ends, Outcome, Pair, Plan, Send, COMPLETION_TIMEOUT},
    srq::{errno_of, EINVAL},
    tap::Tap,
};

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("a resized CQ keeps its entries in order", resize(ends));
    tap.result("a CQ is resized while requests complete", resize_busy(ends));
    tap.result(
        "modify_cq sets the moderation, or stock librxe refuses",
        moderate(ends),
    );
}

/// Count, period and mask of `ibv_modify_cq`. The last two fail with librrxe, too, because their
/// masks are not `IBV_CQ_ATTR_MODERATE`.
const MODERATIONS: [(u16, u16, u32); 4] = [(4, 100, 1), (0, 0, 1), (1, 1, 0), (1, 1, 2)];

fn moderate(ends: &Ends) -> Outcome {
    let context = Context::open(ends.a).map_err(|e| e.to_string())?;
    let cq = Cq::new(&context, 16).map_err(|e| e.to_string())?;
    let errnos =
        MODERATIONS.map(|(count, period, mask)| errno_of(&cq.moderate(count, period, mask)));
    let expected = match is_stock() {
        true => [EOPNOTSUPP; 4],
        false => [0, 0, EINVAL, EINVAL],
    };
    ensure(errnos == expected, || {
        format!("{errnos:?} for {MODERATIONS:?}")
    })
}

pub fn write(pair: &Pair, id: u64) -> Outcome {
    let write = Send::new(id, IBV_WR_RDMA_WRITE, vec![pair.a.mr.sge(0, 64)]);
    pair.a.send(write.at(&pair.b, 0))
}

fn resized(pair: &Pair, entries: i32) -> Result<i32, String> {
    let why = |e: io::Error| format!("resize to {entries}: {e}");
    pair.a.cq.resize(entries).map_err(why)?;
    Ok(pair.a.cq.entries())
}

fn resize(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    let limit = Context::open(ends.a).and_then(|context| context.max_cqe());
    let limit = limit.map_err(|e| e.to_string())?;
    let granted = resized(&pair, 7)?;
    ensure(granted == 7, || format!("{granted} entries for 7"))?;
    let mut next = 0;
    // The rounds place the 6 entries at several indices of the ring.
    for round in 0..8 {
        for id in 0..6 {
            write(&pair, next + id)?;
        }
        // The completions are not polled. Once all 6 are in the ring, a resize to 5 entries fails.
        let begin = Instant::now();
        while errno_of(&pair.a.cq.resize(5)) == 0 && begin.elapsed() < COMPLETION_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
        for entries in [0, -1, 1, 5, limit + 1] {
            let refused = pair.a.cq.resize(entries);
            let errno = errno_of(&refused);
            ensure(errno == EINVAL, || {
                format!("errno {errno} for {entries} in round {round}")
            })?;
        }
        for (entries, wanted) in [(1000, 1023), (32_767, 32_767), (6, 7)] {
            let granted = resized(&pair, entries)?;
            ensure(granted == wanted, || {
                format!("{granted} entries for {entries}")
            })?;
        }
        for _ in 0..6 {
            pair.a.expect(next, IBV_WC_SUCCESS)?;
            next += 1;
        }
        pair.a.expect_no_completion()?;
        // Moves the index at which the next round begins.
        for _ in 0..round {
            write(&pair, next)?;
            pair.a.expect(next, IBV_WC_SUCCESS)?;
            next += 1;
        }
    }
    Ok(())
}

fn resize_busy(ends: &Ends) -> Outcome {
    const WRITES: u64 = 600;
    const WINDOW: u64 = 32;
    const RESIZES: u64 = 2;
    let pair = Pair::new(ends, Plan::default())?;
    let queue = pair.a.cq.raw as usize;
    let (stop, resized) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let count = resized.load(Ordering::Relaxed);
                let entries = if count % 2 == 0 { 63 } else { 2000 };
                // SAFETY: The CQ outlives the scope, and the library takes its lock.
                let errno = unsafe { ibv_resize_cq(queue as *mut ibv_cq, entries) };
                if errno != 0 {
                    return Err(format!("resize {count}: errno {errno}"));
                }
                resized.store(count + 1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
            Ok(())
        });
        let mut exchanged = exchange(&pair, WRITES, WINDOW);
        // A busy host may start the thread late.
        let too_few = || resized.load(Ordering::Relaxed) < RESIZES && !resizer.is_finished();
        while exchanged.is_ok() && too_few() {
            exchanged = exchange(&pair, WRITES, WINDOW);
        }
        stop.store(true, Ordering::Relaxed);
        let resized = resizer.join().map_err(|_| "the resizer panicked")?;
        exchanged.and(resized)
    })
}

/// Keeps `window` WRITEs in flight, and checks that they complete in order and that completion
/// events wake the thread that waits for completions.
fn exchange(pair: &Pair, writes: u64, window: u64) -> Outcome {
    let mut wcs = [ibv_wc::default(); 16];
    let (mut posted, mut done) = (0, 0);
    while done < writes {
        while posted < writes && posted < done + window {
            write(pair, posted)?;
            posted += 1;
        }
        let polled = pair
            .a
            .cq
            .poll_or_wait(&mut wcs)
            .map_err(|e| e.to_string())?;
        for wc in &wcs[..polled] {
            ensure((wc.wr_id, wc.status) == (done, IBV_WC_SUCCESS), || {
                format!(
                    "completion {} with {}, expected {done}",
                    wc.wr_id, wc.status
                )
            })?;
            done += 1;
        }
    }
    pair.a.expect_no_completion()
}
