// SPDX-License-Identifier: GPL-2.0

//! A deterministic simulator of the engine: QPs that communicate over a faulty network, and an
//! oracle that knows at every step which actions are allowed.
//!
//! One seed determines everything: sizes, operations, faults and their times. Each packet passes
//! through the engine's codec, with its ICRC. The oracle ([`requester`], [`responses`],
//! [`responder`], [`answers`]) keeps a model of both directions of each connection, and a shadow
//! copy of all memory. The model forecasts the effects of each packet.
//!
//! The mode `--goodput` ([`goodput`]) has neither codec nor oracle: it measures.

mod agenda;
mod answers;
mod datagram;
mod forged;
mod goodput;
mod host;
mod lifecycle;
mod memory;
mod message;
mod recv;
mod requester;
mod responder;
mod responses;
mod rng;
mod side;
mod stats;
mod swarm;
mod trace;
mod traffic;
mod unreliable;
mod wire;
mod workload;
mod world;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use stats::Stats;
use world::World;

const USAGE: &str =
    "usage: roce-sim [--seeds N] [--start N] | --seed N [--trace] | --goodput [--help]";

/// One of this many seeds runs twice, to show that the run is reproducible.
const REPEAT_EVERY: u64 = 32;

/// One of this many seeds simulates datagrams. The others simulate connections.
const DATAGRAMS_EVERY: u64 = 10;

/// Number of failures of one thread after which no thread starts another seed.
const MOST_FAILURES: usize = 5;

struct Options {
    start: u64,
    seeds: u64,
    trace: bool,
}

fn options() -> Option<Options> {
    let mut options = Options {
        start: 0,
        seeds: 10_000,
        trace: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--trace" => options.trace = true,
            "--seeds" => options.seeds = args.next()?.parse().ok()?,
            "--start" => options.start = args.next()?.parse().ok()?,
            "--seed" => {
                options.start = args.next()?.parse().ok()?;
                options.seeds = 1;
            }
            _ => return None,
        }
    }
    (!options.trace || options.seeds == 1).then_some(options)
}

/// Simulates a seed. An error says what went wrong and when.
fn run(seed: u64, trace: bool) -> Result<(Stats, u64), String> {
    if seed % DATAGRAMS_EVERY == 1 {
        let mut world = datagram::World::new(seed, trace);
        let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
        return judge(ended, world.now).map(|()| (world.stats, world.trace.hash()));
    }
    let mut world = World::new(seed, trace);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    judge(ended, world.now).map(|()| (world.stats, world.trace.hash()))
}

fn judge(ended: std::thread::Result<Result<(), String>>, now: u64) -> Result<(), String> {
    let why = match ended {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(why)) => why,
        Err(_) => "panic".into(),
    };
    Err(format!("at {now} ns: {why}"))
}

fn check(seed: u64, trace: bool) -> Result<Stats, String> {
    let (stats, hash) = run(seed, trace)?;
    if seed % REPEAT_EVERY == 0 && !trace {
        let (_, again) = run(seed, false)?;
        if again != hash {
            return Err(format!("the trace hash was {hash:#x}, then {again:#x}"));
        }
    }
    if trace {
        println!("trace hash {hash:#018x}");
    }
    Ok(stats)
}

/// Simulates all seeds, on all processors.
fn campaign(options: &Options) -> (Stats, Vec<(u64, String)>) {
    let next = AtomicU64::new(options.start);
    let end = options.start + options.seeds;
    let total = Mutex::new((Stats::default(), Vec::new()));
    let worker = || {
        let mut stats = Stats::default();
        let mut failures = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                break;
            }
            match check(seed, options.trace) {
                Ok(more) => stats.add(&more),
                Err(why) => {
                    failures.push((seed, why));
                    if failures.len() >= MOST_FAILURES {
                        next.store(end, Ordering::Relaxed);
                    }
                }
            }
        }
        if let Ok(mut total) = total.lock() {
            total.0.add(&stats);
            total.1.append(&mut failures);
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = (processors as u64).min(options.seeds).max(1);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(worker);
        }
    });
    let (stats, mut failures) = total.into_inner().unwrap_or_default();
    failures.sort();
    (stats, failures)
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("--goodput") {
        return goodput::main(args.collect());
    }
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let begun = Instant::now();
    let (stats, failures) = campaign(&options);
    println!("{stats}");
    println!(
        "# {} seeds from {} in {:.1} s",
        options.seeds,
        options.start,
        begun.elapsed().as_secs_f64()
    );
    for (seed, why) in &failures {
        println!("not ok - simulator: seed {seed}");
        println!("# {why}");
        println!("# reproduce: cargo run --release -p roce-sim -- --seed {seed} --trace");
    }
    if failures.is_empty() {
        println!(
            "ok - simulator: {} seeds from {}",
            options.seeds, options.start
        );
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
