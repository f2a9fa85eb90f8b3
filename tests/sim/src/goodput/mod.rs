// SPDX-License-Identifier: GPL-2.0

//! The measuring mode: goodput of the engine over networks with a rate, queues, delays and losses.
//!
//! A row of the table is the simulation of one operation over one network. Rows have no oracle.
//! They show how fast the engine recovers from losses. Time is virtual, so the figures follow from
//! the row and its seed.

mod bounds;
mod host;
mod impairment;
mod link;
mod options;
mod table;
mod transfer;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use host::Early;
use impairment::Impairment;
use transfer::{Outcome, Setup};

/// Runs the mode with the arguments after `--goodput`.
pub(crate) fn main(arguments: Vec<String>) -> ExitCode {
    if arguments == ["--bounds"] {
        return bounds::main();
    }
    let Some(rows) = options::rows(arguments.into_iter()) else {
        eprintln!("{}", options::USAGE);
        return ExitCode::from(2);
    };
    let begun = Instant::now();
    let results = measure(&rows);
    print!("{}", table::table(rows.iter().zip(&results)));
    println!("# messages of 1 MiB, 16 posted; %: of the row with 0% loss, one QP and 10G");
    println!("# RTT in us; sent, lost, again (sent again): packets with payload");
    println!("# timers: retries because the acknowledgment timer expired; retries: all retries");
    println!("# stall: longest time without new data at a QP, in ms");
    println!(
        "# {} rows in {:.1} s",
        rows.len(),
        begun.elapsed().as_secs_f64()
    );
    if results.iter().all(Result::is_ok) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the row without losses that a row is compared with.
fn base(setup: &Setup) -> Setup {
    Setup {
        qps: 1,
        rate: options::RATE,
        port: None,
        impairment: Impairment::NONE,
        early: Early::Kept,
        ..*setup
    }
}

/// Simulates rows. Returns the outcome of each, and that of the row that it is compared with.
fn measure(rows: &[Setup]) -> Vec<Result<(Outcome, Outcome), String>> {
    let mut setups: Vec<Setup> = Vec::new();
    for row in rows.iter().flat_map(|row| [base(row), *row]) {
        if !setups.contains(&row) {
            setups.push(row);
        }
    }
    let outcomes = simulate(&setups);
    let outcome_of = |setup: &Setup| {
        let at = setups.iter().position(|other| other == setup);
        at.map_or(Err("no such row".into()), |at| outcomes[at].clone())
    };
    rows.iter()
        .map(|row| Ok((outcome_of(row)?, outcome_of(&base(row))?)))
        .collect()
}

/// Simulates rows on all processors.
fn simulate(setups: &[Setup]) -> Vec<Result<Outcome, String>> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(vec![Err("panic".into()); setups.len()]);
    let worker = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(setup) = setups.get(at) else {
            break;
        };
        let outcome = catch_unwind(|| transfer::run(setup));
        if let (Ok(mut outcomes), Ok(outcome)) = (outcomes.lock(), outcome) {
            outcomes[at] = outcome;
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..processors.min(setups.len()) {
            scope.spawn(worker);
        }
    });
    outcomes.into_inner().unwrap_or_default()
}
