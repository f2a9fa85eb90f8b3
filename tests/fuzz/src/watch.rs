// SPDX-License-Identifier: GPL-2.0

//! Detection of threads that hang and of CPUs that do not run real-time threads, and the report of
//! the kernel stacks of a process.

use std::{fs, sync::atomic::Ordering::Relaxed, thread::scope};

use crate::{
    ops::{noise, OPERATIONS},
    profile::Profile,
    stats::{self, Stats},
    sys,
};

/// Prints `why`, and the state and the kernel stack of each thread of a process.
pub fn print_stacks(pid: i32, why: &str) {
    println!("# process {pid}: {why}");
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for task in tasks.flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        println!(
            "# thread {:?} state {}",
            task.file_name(),
            state(&read("stat"))
        );
        for line in read("stack").lines() {
            println!("#   {line}");
        }
    }
}

fn state(stat: &str) -> char {
    let after = stat.rsplit(')').next().unwrap_or_default();
    after.trim_start().chars().next().unwrap_or('?')
}

/// Whether a thread of attacker `pid` sleeps uninterruptibly in an operation that already takes
/// longer than the profile allows. The attacker's threads have the entries of [`Stats::activities`]
/// from `first_thread` on.
pub fn has_hung_thread(profile: &Profile, stats: &Stats, pid: i32, first_thread: usize) -> bool {
    for activity in &stats.activities[first_thread..first_thread + profile.threads as usize] {
        let (tid, since) = (activity.tid.load(Relaxed), activity.since.load(Relaxed));
        if tid == 0 || since == 0 || stats::now() < since.saturating_add(profile.timeout) {
            continue;
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
        if state(&stat) == 'D' {
            let name = OPERATIONS
                .get(activity.kind.load(Relaxed) as usize)
                .map_or("?", |operation| operation.name);
            print_stacks(pid, &format!("thread {tid} hangs in {name}"));
            return true;
        }
    }
    false
}

/// Measures, on each CPU, how late a real-time thread wakes up from a sleep of 5 ms.
pub fn measure_stalls(profile: &Profile, stats: &'static Stats) -> i32 {
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let until = stats::now() + profile.seconds * 1000;
    scope(|scope| {
        for cpu in 0..cpus {
            scope.spawn(move || {
                sys::set_realtime_on(cpu);
                let mut last = stats::now();
                while last < until {
                    noise::pause(5000);
                    let now = stats::now();
                    stats
                        .stall
                        .fetch_max(now.saturating_sub(last).saturating_sub(5), Relaxed);
                    last = now;
                }
            });
        }
    });
    0
}
