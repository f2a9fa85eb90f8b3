// SPDX-License-Identifier: GPL-2.0

//! Time in the protocol engine. The engine has no clock: its host (the driver, or a test) reads a
//! monotonic clock and passes the time to the engine.

/// A time of the host's monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub u64);

impl Instant {
    /// Returns the instant `span` later, at most the last one that fits 64 bits.
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns the time since `earlier`, or zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}
