// SPDX-License-Identifier: GPL-2.0

//! A fuzzer of the driver's user interface: `rrxe-fuzz [--seed N] [--seconds N] …` (see
//! [`Profile`]), as root, in the virtual machine.
//!
//! The program keeps a number of attackers running. An attacker is a process, mostly unprivileged,
//! that makes uverbs calls in any order, writes to the rings and doorbell pages that it shares with
//! the kernel, and unmaps or changes memory that the driver uses. Attackers end at any moment, most
//! of them by SIGKILL. Meanwhile a victim, a process that makes no invalid request, transfers data
//! between two QPs.
//!
//! A run fails
//!
//! - when the victim's data is wrong or its transfers stop,
//! - when an attacker or the victim cannot be set up,
//! - when a system call, a command of the administrator or the end of a process hangs,
//! - when netlink shows freed memory,
//! - when a CPU lets a ready real-time thread wait for too long.
//!
//! The script that starts the program (fuzz.sh) checks the kernel's log. The random choices of each
//! thread follow from the seed. The interleaving of threads does not.

mod attacker;
mod chaos;
mod ops;
mod profile;
mod rng;
mod stats;
mod sys;
mod thread;
mod uverbs;
mod victim;
mod watch;
mod world;

use std::{env, fs, process::ExitCode, sync::atomic::Ordering::Relaxed};

use ops::{noise, OPERATIONS};
use profile::Profile;
use rng::Rng;
use stats::{now, Stats};

/// A running attacker.
struct Attacker {
    pid: i32,
    number: u64,
    /// Index of its first thread in [`Stats::activities`].
    first_thread: usize,
    /// Time at which the supervisor kills it, in milliseconds.
    end: u64,
    /// Whether the supervisor has killed it.
    killed: bool,
}

/// The supervisor of a run.
struct Run {
    profile: Profile,
    stats: &'static Stats,
    attackers: Vec<Attacker>,
    started: u64,
    /// Number of attackers that ended by themselves, by SIGKILL, and by another signal.
    exit_counts: [u64; 3],
    failures: Vec<String>,
    victim: Option<i32>,
    /// Processes that end by themselves at the end of the run.
    helpers: Vec<i32>,
    /// Number of the victim's transfers, and the time at which it last changed, in milliseconds.
    progress: (u64, u64),
}

impl Run {
    fn fail(&mut self, why: String) {
        println!("# failure: {why}");
        let _ = fs::write("/dev/kmsg", format!("rrxe-fuzz: failure: {why}\n"));
        self.failures.push(why);
    }

    /// Starts the processes that are not attackers.
    ///
    /// # Errors
    ///
    /// An errno.
    fn start_helpers(&mut self) -> Result<(), i32> {
        let (profile, stats) = (&self.profile, self.stats);
        self.helpers
            .push(sys::child(|| watch::measure_stalls(profile, stats))?);
        if profile.chaos {
            self.helpers
                .push(sys::child(|| chaos::run(profile, stats, OPERATIONS.len()))?);
        }
        if profile.victims.len() == 2 {
            self.victim = Some(sys::child(|| victim::run(profile, stats))?);
        }
        Ok(())
    }

    /// Starts attackers until as many run as the profile says.
    fn start(&mut self) {
        while self.attackers.len() < self.profile.attackers as usize {
            let threads = self.profile.threads as usize;
            let used: Vec<usize> = self
                .attackers
                .iter()
                .map(|attacker| attacker.first_thread)
                .collect();
            let first_thread = (0..)
                .map(|index| index * threads)
                .find(|first_thread| !used.contains(first_thread))
                .unwrap_or(0);
            let number = self.started;
            self.started += 1;
            for activity in &self.stats.activities[first_thread..first_thread + threads] {
                activity.tid.store(0, Relaxed);
                activity.since.store(0, Relaxed);
            }
            let mut rng = Rng::new(self.profile.seed, &[number, u64::MAX]);
            // One in four gets 10 s more until it is killed, so that it ends by itself.
            let lifetime = self.profile.slow * (2000 + rng.below(20_000));
            let end = now() + lifetime + if rng.one_in(4) { 10_000 } else { 0 };
            let (profile, stats) = (&self.profile, self.stats);
            match sys::child(|| attacker::run(profile, stats, number, first_thread, lifetime)) {
                Ok(pid) => self.attackers.push(Attacker {
                    pid,
                    number,
                    first_thread,
                    end,
                    killed: false,
                }),
                Err(errno) => {
                    return self.fail(format!("an attacker cannot be started: errno {errno}"))
                }
            }
        }
    }

    /// Reaps the processes that have ended. Checks the status of the attackers and of the victim.
    fn reap(&mut self) {
        while let Some((pid, status)) = sys::reap(-1) {
            if let Some(at) = self
                .attackers
                .iter()
                .position(|attacker| attacker.pid == pid)
            {
                let attacker = self.attackers.swap_remove(at);
                let how = match status & 0x7f {
                    0 => 0,
                    9 => 1,
                    _ => 2,
                };
                self.exit_counts[how] += 1;
                if status >> 8 & 0xff == 2 && how == 0 {
                    self.fail(format!("attacker {} could not be set up", attacker.number));
                }
            } else if let Some(at) = self.helpers.iter().position(|helper| *helper == pid) {
                self.helpers.swap_remove(at);
            } else if self.victim == Some(pid) {
                self.victim = None;
                match (status & 0x7f, status >> 8 & 0xff) {
                    (0, 0) => {}
                    (0, victim::CORRUPT) => self.fail("the victim's data is wrong".into()),
                    (0, victim::UNABLE) => self.fail("the victim cannot connect".into()),
                    _ => self.fail(format!("the victim ended with status {status:#x}")),
                }
            }
        }
    }

    /// Kills attackers at their time, and finds processes that hang.
    fn watch(&mut self) {
        let mut failures = Vec::new();
        for attacker in &mut self.attackers {
            if !attacker.killed && now() >= attacker.end {
                let _ = sys::call(sys::nr::KILL, &[attacker.pid.into(), 9]);
                attacker.killed = true;
            }
            if attacker.killed && now() > attacker.end + self.profile.timeout {
                watch::print_stacks(attacker.pid, "the process still exists after SIGKILL");
                failures.push(format!(
                    "attacker {} does not end after SIGKILL",
                    attacker.number
                ));
            } else if !attacker.killed
                && watch::has_hung_thread(
                    &self.profile,
                    self.stats,
                    attacker.pid,
                    attacker.first_thread,
                )
            {
                failures.push(format!(
                    "attacker {} hangs in a system call",
                    attacker.number
                ));
            }
        }
        let transfers = self.stats.transfers.load(Relaxed);
        if transfers != self.progress.0 {
            self.progress = (transfers, now());
        } else if let Some(pid) = self
            .victim
            .filter(|_| now() > self.progress.1 + self.profile.timeout)
        {
            watch::print_stacks(pid, "the victim's transfers have stopped");
            failures.push("the victim makes no progress".into());
        }
        failures.into_iter().for_each(|why| self.fail(why));
    }

    /// Ends the run: kills the attackers and waits for the other processes, which end by
    /// themselves. All must have ended within the timeout of the profile. After a failure it
    /// does not wait, and kills only the other processes.
    fn finish(&mut self) {
        for attacker in &mut self.attackers {
            attacker.end = attacker.end.min(now());
        }
        let until = now() + self.profile.timeout;
        let busy = |run: &Self| {
            !run.attackers.is_empty() || !run.helpers.is_empty() || run.victim.is_some()
        };
        while busy(self) && self.failures.is_empty() {
            self.watch();
            self.reap();
            noise::pause(20_000);
            if now() > until {
                self.fail("a process did not end with the run".into());
            }
        }
        for pid in self.helpers.iter().chain(&self.victim) {
            let _ = sys::call(sys::nr::KILL, &[i64::from(*pid), 9]);
        }
    }

    fn report(&mut self) {
        let mut names = ops::names();
        names.extend(chaos::ACTIONS);
        println!("{}", self.stats.report(&names).trim_end());
        let Run {
            profile,
            stats,
            exit_counts,
            started,
            ..
        } = self;
        println!(
            "seed {}: {} operations by {started} attackers in {} s; {} ended, {} killed, {} by other signals; \
             {} transfers, {} reconnects; longest stall of a CPU {} ms",
            profile.seed,
            stats.total(),
            profile.seconds,
            exit_counts[0],
            exit_counts[1],
            exit_counts[2],
            stats.transfers.load(Relaxed),
            stats.reconnects.load(Relaxed),
            stats.stall.load(Relaxed),
        );
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let profile = match Profile::parse(&arguments) {
        Ok(profile) => profile,
        Err(error) => {
            eprintln!("rrxe-fuzz: {error}");
            return ExitCode::from(2);
        }
    };
    let begin = format!("rrxe-fuzz: {} (seed {})", arguments.join(" "), profile.seed);
    println!("# {begin}");
    let _ = fs::write("/dev/kmsg", format!("{begin}\n"));
    let stats = Stats::new();
    let until = now() + profile.seconds * 1000;
    let mut run = Run {
        profile,
        stats,
        attackers: Vec::new(),
        started: 0,
        exit_counts: [0; 3],
        failures: Vec::new(),
        victim: None,
        helpers: Vec::new(),
        progress: (0, now()),
    };
    if let Err(errno) = run.start_helpers() {
        run.fail(format!("a process cannot be started: errno {errno}"));
    }
    while now() < until && run.failures.is_empty() {
        run.start();
        noise::pause(50_000);
        run.watch();
        run.reap();
    }
    run.finish();
    run.report();
    if stats.poison.load(Relaxed) > 0 {
        run.fail(format!(
            "{} netlink dumps held freed memory",
            stats.poison.load(Relaxed)
        ));
    }
    if stats.stall.load(Relaxed) > run.profile.stall {
        run.fail(format!(
            "a CPU did not run its real-time thread for {} ms",
            stats.stall.load(Relaxed)
        ));
    }
    if stats.failures.load(Relaxed) > 0 {
        run.fail("an administrator's command hangs".into());
    }
    ExitCode::from(u8::from(!run.failures.is_empty()))
}
