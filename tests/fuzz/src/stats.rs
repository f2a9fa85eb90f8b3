// SPDX-License-Identifier: GPL-2.0

//! Counts of operations, by kind and errno. They are in memory that all processes of the fuzzer
//! share, so the counts of a killed process remain.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::sys;

/// Maximum number of kinds of operations.
const KINDS: usize = 96;
/// Number of errnos that are distinguished. Larger ones count as the last.
const ERRNOS: usize = 134;
/// Maximum number of threads at a time: eight attackers with eight threads each, and the victim.
pub const THREADS: usize = 65;

/// The current operation of a thread, for the supervisor (main.rs).
pub struct Activity {
    /// Thread ID, or zero without a thread.
    pub tid: AtomicU32,
    /// Kind of the operation: its index in the table of operations.
    pub kind: AtomicU32,
    /// Time at which the operation began, in milliseconds, or zero between operations.
    pub since: AtomicU64,
}

/// The counts and states that all processes share.
pub struct Stats {
    counts: [[AtomicU64; ERRNOS]; KINDS],
    /// Current operations of the threads.
    pub activities: [Activity; THREADS],
    /// Number of the victim's transfers with the right data.
    pub transfers: AtomicU64,
    /// Number of times that the victim's QPs had to be connected again.
    pub reconnects: AtomicU64,
    /// Longest time for which a CPU did not run a runnable real-time thread, in milliseconds.
    pub stall: AtomicU64,
    /// Number of netlink responses that contained freed memory.
    pub poison: AtomicU64,
    /// Number of administrator's commands that hung.
    pub failures: AtomicU64,
}

impl Stats {
    /// Allocates the counts in shared memory.
    pub fn new() -> &'static Self {
        // SAFETY: The type consists of atomics, for which all zero bytes are valid.
        unsafe { sys::shared() }.expect("there is memory")
    }

    /// Counts an operation and its errno (zero on success).
    pub fn count(&self, kind: usize, errno: i32) {
        let errno = (errno.max(0) as usize).min(ERRNOS - 1);
        self.counts[kind][errno].fetch_add(1, Relaxed);
    }

    /// Number of all operations.
    pub fn total(&self) -> u64 {
        self.counts
            .iter()
            .flatten()
            .map(|count| count.load(Relaxed))
            .sum()
    }

    /// Returns a line for each kind of operation: its name, its count, and the count of each errno.
    pub fn report(&self, names: &[&str]) -> String {
        let mut lines = String::new();
        for (name, counts) in names.iter().zip(&self.counts) {
            let counts: Vec<u64> = counts.iter().map(|count| count.load(Relaxed)).collect();
            let total: u64 = counts.iter().sum();
            let mut errnos: Vec<(usize, u64)> = counts
                .into_iter()
                .enumerate()
                .filter(|(_, count)| *count > 0)
                .collect();
            errnos.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let errnos: Vec<String> = errnos
                .iter()
                .map(|(errno, count)| format!("{} {count}", errno_name(*errno)))
                .collect();
            lines += &format!("{name:16} {total:9}  {}\n", errnos.join(", "));
        }
        lines
    }
}

/// Milliseconds since the epoch.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_millis() as u64)
}

fn errno_name(errno: usize) -> String {
    let name = match errno {
        0 => "ok",
        1 => "EPERM",
        2 => "ENOENT",
        4 => "EINTR",
        5 => "EIO",
        9 => "EBADF",
        11 => "EAGAIN",
        12 => "ENOMEM",
        13 => "EACCES",
        14 => "EFAULT",
        16 => "EBUSY",
        19 => "ENODEV",
        22 => "EINVAL",
        28 => "ENOSPC",
        34 => "ERANGE",
        38 => "ENOSYS",
        61 => "ENODATA",
        71 => "EPROTO",
        93 => "EPROTONOSUPPORT",
        95 => "EOPNOTSUPP",
        _ => return format!("errno{errno}"),
    };
    name.into()
}
