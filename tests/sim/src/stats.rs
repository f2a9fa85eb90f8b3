// SPDX-License-Identifier: GPL-2.0

//! Statistics of the cases that the seeds have exercised.

use std::fmt;

use roce::wc::WcStatus;

use crate::swarm::Kind;

/// Counters of one seed or of several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) packets: u64,
    pub(crate) resent: u64,
    pub(crate) dropped: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) no_memory: u64,
    pub(crate) rnr: u64,
    pub(crate) wraps: u64,
    pub(crate) connections: u64,
    pub(crate) resets: u64,
    pub(crate) ops: [u64; Kind::ALL.len()],
    /// Number of successes by kind.
    pub(crate) done: [u64; Kind::ALL.len()],
    /// Number of completions by status.
    pub(crate) statuses: [u64; 32],
}

impl Stats {
    pub(crate) fn completed(&mut self, status: WcStatus) {
        self.statuses[status as usize] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.resent += other.resent;
        self.dropped += other.dropped;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.no_memory += other.no_memory;
        self.rnr += other.rnr;
        self.wraps += other.wraps;
        self.connections += other.connections;
        self.resets += other.resets;
        for (sum, more) in self.ops.iter_mut().zip(other.ops) {
            *sum += more;
        }
        for (sum, more) in self.done.iter_mut().zip(other.done) {
            *sum += more;
        }
        for (sum, more) in self.statuses.iter_mut().zip(other.statuses) {
            *sum += more;
        }
    }
}

const STATUSES: [WcStatus; 15] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::LocAccessErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
    WcStatus::RemInvRdReqErr,
    WcStatus::GeneralErr,
];

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# packets {} (resent {}): dropped {}, duplicated {}, reordered {}, corrupted {}, \
             no memory {}",
            self.packets,
            self.resent,
            self.dropped,
            self.duplicated,
            self.reordered,
            self.corrupted,
            self.no_memory
        )?;
        writeln!(
            f,
            "# connections {}, resets {}, PSN wraps {}, RNR NAKs {}",
            self.connections, self.resets, self.wraps, self.rnr
        )?;
        write!(f, "# posted/succeeded:")?;
        for ((kind, posted), done) in Kind::ALL.iter().zip(self.ops).zip(self.done) {
            write!(f, " {kind:?} {posted}/{done}")?;
        }
        write!(f, "\n# completions:")?;
        for status in STATUSES {
            write!(f, " {status:?} {}", self.statuses[status as usize])?;
        }
        Ok(())
    }
}
