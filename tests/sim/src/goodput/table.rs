// SPDX-License-Identifier: GPL-2.0

//! The figures of a row, and the table of all rows.

use std::fmt::{self, Write};

use super::host::Op;
use super::transfer::{Outcome, Setup};

const NAMES: [&str; 19] = [
    "op",
    "MTU",
    "RTT",
    "timeout",
    "loss",
    "early",
    "QPs",
    "link",
    "MB/s",
    "%",
    "sent",
    "lost",
    "again",
    "again/lost",
    "RTOs",
    "timers",
    "retries",
    "NAKs",
    "stall",
];

/// A number of tenths, shown with one decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tenths(pub(super) u64);

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

impl Outcome {
    /// Adds the measurements of another seed.
    pub(super) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.time += other.time;
        self.sent += other.sent;
        self.again += other.again;
        self.lost += other.lost;
        self.rtos += other.rtos;
        self.timeouts += other.timeouts;
        self.retries += other.retries;
        self.naks += other.naks;
        self.stall = self.stall.max(other.stall);
    }

    /// Returns the goodput in MB/s, which are bytes per microsecond.
    pub(super) fn goodput(&self) -> Tenths {
        Tenths(self.bytes * 10_000 / self.time.max(1))
    }

    /// Returns the goodput in percent of that of another row.
    pub(super) fn percent_of(&self, other: &Self) -> Tenths {
        Tenths(self.goodput().0 * 1000 / other.goodput().0.max(1))
    }

    /// Returns the number of data packets that were sent again for each one that was lost.
    pub(super) fn again_per_lost(&self) -> Option<Tenths> {
        (self.again * 10).checked_div(self.lost).map(Tenths)
    }

    /// Returns the longest stall in milliseconds.
    pub(super) fn stall(&self) -> Tenths {
        Tenths(self.stall / 100_000)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// Returns a description of a row.
pub(super) fn label(setup: &Setup) -> String {
    let (mtu, links) = (setup.mtu.bytes(), links(setup));
    let Setup {
        op,
        rtt,
        timeout,
        impairment,
        early,
        qps,
        ..
    } = setup;
    format!(
        "{op}, MTU {mtu}, RTT {rtt} us, timeout {timeout}, loss {impairment}, early packets {early}, {links}, QPs {qps}"
    )
}

/// Returns the rates of the links, and the queue of the port.
fn links(setup: &Setup) -> String {
    match setup.port {
        None => format!("{}G", setup.rate),
        Some(port) => format!("{}G>{}G:{}", setup.rate, port.rate, port.queue),
    }
}

/// The outcome of a row, and that of the row without losses.
type Measured = Result<(Outcome, Outcome), String>;

/// Returns the cells of a row.
fn cells(setup: &Setup, measured: &Measured) -> Vec<String> {
    let mut cells = vec![
        setup.op.to_string(),
        setup.mtu.bytes().to_string(),
        setup.rtt.to_string(),
        setup.timeout.to_string(),
        setup.impairment.to_string(),
        setup.early.to_string(),
        setup.qps.to_string(),
        links(setup),
    ];
    match measured {
        Ok((outcome, base)) => cells.extend(figures(outcome, base)),
        Err(_) => cells.push("failed".into()),
    }
    cells
}

/// Returns the cells that show an outcome.
fn figures(outcome: &Outcome, base: &Outcome) -> [String; 11] {
    let again_per_lost = outcome.again_per_lost();
    [
        outcome.goodput().to_string(),
        outcome.percent_of(base).to_string(),
        outcome.sent.to_string(),
        outcome.lost.to_string(),
        outcome.again.to_string(),
        again_per_lost.map_or("-".into(), |ratio| ratio.to_string()),
        outcome.rtos.to_string(),
        outcome.timeouts.to_string(),
        outcome.retries.to_string(),
        outcome.naks.to_string(),
        outcome.stall().to_string(),
    ]
}

/// Returns the table: a line of names, one for each row, and one for each row that failed.
pub(super) fn table<'a>(rows: impl Iterator<Item = (&'a Setup, &'a Measured)>) -> String {
    let mut lines = vec![NAMES.map(String::from).to_vec()];
    let mut failures = String::new();
    for (setup, measured) in rows {
        lines.push(cells(setup, measured));
        if let Err(why) = measured {
            let _ = writeln!(failures, "# failed: {}: {why}", label(setup));
        }
    }
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (column, cell) in line.iter().enumerate() {
            let lengths = lines.iter().filter_map(|line| line.get(column));
            let width = lengths.map(String::len).max().unwrap_or(0);
            let _ = match column {
                0 | 4 | 6 => write!(row, "{cell:width$}  "),
                _ => write!(row, "{cell:>width$}  "),
            };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text + &failures
}
