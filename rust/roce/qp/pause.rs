// SPDX-License-Identifier: GPL-2.0

//! The pause: the time in which a QP sends nothing after its own host dropped a packet.

use crate::time::{Duration, Instant};

/// Nanoseconds of the pause after the first drop. A full queue has room again soon.
const FIRST: u64 = 100_000;
/// How often the pause doubles at most: 10 times, to 102 ms. A host that drops everything is then
/// polled ten times a second.
const DOUBLINGS: u32 = 10;

/// The pause of a QP, if one is in force.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    end: Option<Instant>,
    /// Number of drops since a packet last left the host.
    drops: u32,
}

impl Pause {
    /// Begins a pause, because the host dropped a packet.
    pub(super) fn begin(&mut self, now: Instant) {
        let span = FIRST.wrapping_shl(self.drops.min(DOUBLINGS));
        self.end = Some(now.after(Duration(span)));
        self.drops = self.drops.saturating_add(1);
    }

    /// Returns the end of the pause, or `None` without a pause.
    pub(super) fn end(&self) -> Option<Instant> {
        self.end
    }

    /// Returns whether packets may be sent. The caller asks before each packet: a call for the next
    /// packet implies that the last one has left.
    #[inline]
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        match self.end {
            Some(end) if now < end => return false,
            Some(_) => self.end = None,
            None => self.drops = 0,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_a_packet_leaves() {
        let mut pause = Pause::default();
        let mut now = Instant(7);
        for doublings in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10] {
            assert!(pause.is_over(now));
            pause.begin(now);
            let end = now.after(Duration(100_000 << doublings));
            assert_eq!(pause.end(), Some(end));
            assert!(!pause.is_over(Instant(end.0 - 1)));
            now = end;
        }
        // The first packet leaves; the one after it is dropped.
        assert!(pause.is_over(now));
        assert_eq!(pause.end(), None);
        assert!(pause.is_over(now));
        pause.begin(now);
        assert_eq!(pause.end(), Some(now.after(Duration(100_000))));
    }
}
