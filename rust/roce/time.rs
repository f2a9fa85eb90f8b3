// SPDX-License-Identifier: GPL-2.0

//! Time as the engine sees it: a monotonic clock in nanoseconds, read by the host.

/// A point of the host's monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub u64);

impl Instant {
    /// The instant `span` later; the clock's end if that would pass it.
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}
