// SPDX-License-Identifier: GPL-2.0

//! What is counted: each operation by its kind and errno, in memory that all processes share
//! and that survives a process that is killed.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::sys;

/// Kinds of operations, and errnos, at most.
const KINDS: usize = 96;
const ERRNOS: usize = 134;
/// Threads of attackers at a time.
pub const THREADS: usize = 64;

/// What a thread is doing.
pub struct Beat {
    /// Its number, zero for none.
    pub tid: AtomicU32,
    /// Its operation's kind.
    pub kind: AtomicU32,
    /// When that began, in milliseconds; zero between operations.
    pub since: AtomicU64,
}

/// All that is counted.
pub struct Stats {
    counts: [[AtomicU64; ERRNOS]; KINDS],
    /// What the attackers' threads are doing.
    pub beats: [Beat; THREADS],
    /// Transfers of the victim that were right.
    pub transfers: AtomicU64,
    /// Times that the victim had to connect again.
    pub reconnects: AtomicU64,
    /// Longest time that a CPU served no real-time thread, in milliseconds.
    pub stall: AtomicU64,
    /// Dumps over netlink that held freed memory.
    pub poison: AtomicU64,
    /// Failures that an operation found.
    pub failures: AtomicU64,
}

impl Stats {
    /// Zeros.
    pub fn new() -> &'static Self {
        // SAFETY: It consists of atomics.
        unsafe { sys::shared() }.expect("there is memory")
    }

    /// Counts an operation.
    pub fn count(&self, kind: usize, errno: i32) {
        let errno = (errno.max(0) as usize).min(ERRNOS - 1);
        self.counts[kind][errno].fetch_add(1, Relaxed);
    }

    /// All operations.
    pub fn total(&self) -> u64 {
        self.counts
            .iter()
            .flatten()
            .map(|count| count.load(Relaxed))
            .sum()
    }

    /// A line for each kind: how often, and how often each errno.
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

/// Milliseconds of the clock.
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
