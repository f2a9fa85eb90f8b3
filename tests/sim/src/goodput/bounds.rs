// SPDX-License-Identifier: GPL-2.0

//! Bounds of some rows, by which a test notices that the engine recovers more slowly from losses.

use std::process::ExitCode;

use super::impairment::Impairment;
use super::transfer::{Outcome, Setup};
use super::{options, simulate, table};

/// The rows, with their bounds: the least goodput in MB/s, the most packets that are sent again for
/// each lost one, and the longest stall in milliseconds. A bound `-` is none.
///
/// A row is the sum of several seeds. Most bounds leave the engine a margin of a fifth. A change
/// that improves the figures may raise them.
const BOUNDS: &str = "
op     MTU   RTT  timeout  loss           early    QPs  port   MB/s  again/lost  stall
write  4096  500  14       0%             kept     1    none   1220  -           1
write  1024  20   14       0%             kept     1    none   1150  -           1
write  4096  100  17       0.1%           kept     1    none   1150  2           5
write  4096  500  17       0.1%           kept     1    none   1000  2           5
write  4096  500  17       1%             kept     1    none   720   3           10
write  4096  20   17       1%             kept     1    none   1100  3           10
write  1024  100  17       1%             kept     1    none   720   3           10
write  4096  100  14       5%             kept     1    none   800   3           10
write  4096  100  17       burst:15/1500  kept     1    none   1100  2           10
write  4096  500  17       burst:15/1500  kept     1    none   950   2           10
write  4096  500  17       once:15@100    kept     1    none   1215  2           1
write  4096  100  14       reorder:5%@20  kept     1    none   1000  -           1
write  4096  100  14       0%             kept     1    10:64  750   2           10
write  4096  500  14       0%             kept     1    10:64  320   2           10
write  4096  100  14       0%             kept     16   10:64  1000  3           -
read   4096  500  14       0%             kept     1    none   1220  -           1
read   1024  20   14       0%             kept     1    none   1150  -           1
read   4096  100  17       0.1%           kept     1    none   1150  3           10
read   4096  500  17       0.1%           kept     1    none   950   3           10
read   4096  500  17       1%             kept     1    none   850   3           10
read   4096  20   17       1%             kept     1    none   950   3           10
read   1024  100  17       1%             kept     1    none   820   3           10
read   4096  100  14       5%             kept     1    none   650   5           50
read   4096  100  17       burst:15/1500  kept     1    none   1000  3           10
read   4096  500  17       burst:15/1500  kept     1    none   950   3           10
read   4096  500  17       once:15@100    kept     1    none   1200  3           1
read   4096  100  14       reorder:5%@20  kept     1    none   900   -           1
read   4096  100  14       0%             kept     1    10:64  900   2           10
read   4096  500  14       0%             kept     1    10:64  350   2           10
read   4096  100  14       0%             kept     4    10:64  950   3           -
write  1024  100  17       1%             refused  1    none   310    -     10
write  1024  100  17       1%             off      1    none   65     -     10
read   1024  100  17       0.5%           refused  1    none   210    -     10
read   1024  100  17       1%             refused  1    none   90     -     10
read   4096  100  17       2%             refused  1    none   180    -     20
read   1024  100  17       1%             off      1    none   55     -     10
read   4096  100  17       5%             off      1    none   9      -     -
";

/// Number of seeds of each row, from 1 on, and the duration of each in milliseconds.
const SEEDS: usize = 3;
const DURATION: u32 = 600;

/// A row with its bounds.
#[derive(Debug)]
struct Bound {
    setup: Setup,
    least_goodput: u64,
    most_again: Option<u64>,
    most_stall: Option<u64>,
}

/// Parses a line of the table.
fn bound(line: &str) -> Option<Bound> {
    let cells: Vec<&str> = line.split_whitespace().collect();
    let [op, mtu, rtt, timeout, loss, early, qps, port, goodput, again, stall] = cells[..] else {
        return None;
    };
    let limit = |text: &str| match text {
        "-" => Some(None),
        _ => text.parse().ok().map(Some),
    };
    let port = options::port(port)?;
    Some(Bound {
        setup: Setup {
            op: options::op(op)?,
            mtu: options::mtu(mtu)?,
            rtt: rtt.parse().ok()?,
            timeout: timeout.parse().ok()?,
            qps: qps.parse().ok()?,
            rate: port.map_or(options::RATE, |_| options::PORT_RATE),
            port,
            impairment: Impairment::parse(loss)?,
            early: options::early(early)?,
            duration: DURATION,
            seed: 1,
        },
        least_goodput: goodput.parse().ok()?,
        most_again: limit(again)?,
        most_stall: limit(stall)?,
    })
}

/// Returns the table, or the line that is malformed.
fn bounds() -> Result<Vec<Bound>, String> {
    let lines = BOUNDS.trim().lines().skip(1);
    let parsed = lines.map(|line| bound(line).ok_or(format!("malformed bound: {line}")));
    parsed.collect()
}

impl Bound {
    /// Returns a description of each bound that the outcome violates.
    fn violations(&self, outcome: &Outcome) -> Vec<String> {
        let mut violations = Vec::new();
        let goodput = outcome.goodput();
        if goodput < table::Tenths(self.least_goodput * 10) {
            let least = self.least_goodput;
            violations.push(format!(
                "the goodput is {goodput} MB/s, not {least} or more"
            ));
        }
        let again = outcome.again_per_lost();
        if let (Some(again), Some(most)) = (again, self.most_again) {
            if again > table::Tenths(most * 10) {
                violations.push(format!(
                    "{again} packets are sent again for each lost one, not {most} or fewer"
                ));
            }
        }
        let stall = outcome.stall();
        if let Some(most) = self
            .most_stall
            .filter(|most| stall > table::Tenths(most * 10))
        {
            violations.push(format!("a stall takes {stall} ms, not {most} or less"));
        }
        violations
    }
}

/// Simulates the rows, and prints whether each keeps its bounds.
pub(super) fn main() -> ExitCode {
    let bounds = match bounds() {
        Ok(bounds) => bounds,
        Err(why) => {
            println!("not ok - goodput: {why}");
            return ExitCode::FAILURE;
        }
    };
    let setups: Vec<Setup> = bounds
        .iter()
        .flat_map(|bound| {
            (1..=SEEDS as u64).map(|seed| Setup {
                seed,
                ..bound.setup
            })
        })
        .collect();
    let outcomes = simulate(&setups);
    let mut code = ExitCode::SUCCESS;
    for (bound, outcomes) in bounds.iter().zip(outcomes.chunks(SEEDS)) {
        let mut total = Outcome::default();
        let mut violations = Vec::new();
        for outcome in outcomes {
            match outcome {
                Ok(outcome) => total.add(outcome),
                Err(why) => violations.push(why.clone()),
            }
        }
        if violations.is_empty() {
            violations = bound.violations(&total);
        }
        let verdict = if violations.is_empty() {
            "ok"
        } else {
            "not ok"
        };
        println!("{verdict} - goodput: {}", table::label(&bound.setup));
        let again = total.again_per_lost();
        println!(
            "# {} MB/s, {} packets sent again for each lost one, stalls of up to {} ms",
            total.goodput(),
            again.map_or("-".into(), |again| again.to_string()),
            total.stall()
        );
        for violation in &violations {
            println!("# {violation}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::super::host::Op;
    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        let bounds = bounds().unwrap();
        assert!(bounds.iter().any(|bound| bound.setup.op == Op::Read));
        assert!(bounds.iter().any(|bound| bound.setup.port.is_some()));
    }

    #[test]
    fn each_bound_can_be_violated() {
        let line = "write 4096 500 14 1% kept 1 none 100 12 7";
        let bound = bound(line).unwrap();
        let good = Outcome {
            bytes: 100_000_000,
            time: 1_000_000_000,
            lost: 10,
            again: 120,
            stall: 7_000_000,
            ..Outcome::default()
        };
        assert_eq!(bound.violations(&good), [""; 0]);
        let bad = [
            Outcome {
                bytes: 99_000_000,
                ..good
            },
            Outcome { again: 121, ..good },
            Outcome {
                stall: 7_100_000,
                ..good
            },
        ];
        for bad in bad {
            assert_eq!(bound.violations(&bad).len(), 1, "{bad:?}");
        }
    }
}
