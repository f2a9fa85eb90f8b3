// SPDX-License-Identifier: GPL-2.0

//! How long a QP sends nothing after its own host dropped a packet.

use crate::time::{Duration, Instant};

/// Nanoseconds after the first drop: a queue that is full has room again soon.
const FIRST: u64 = 100_000;
/// How often the pause doubles at most: to 102 ms, so that a host that drops everything is asked ten
/// times a second.
const DOUBLINGS: u32 = 10;

/// The pause of a QP, if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    end: Option<Instant>,
    /// Drops without a packet between them that left.
    drops: u32,
}

impl Pause {
    /// The host dropped a packet.
    pub(super) fn begin(&mut self, now: Instant) {
        let span = FIRST.wrapping_shl(self.drops.min(DOUBLINGS));
        self.end = Some(now.after(Duration(span)));
        self.drops = self.drops.saturating_add(1);
    }

    /// When it ends.
    pub(super) fn end(&self) -> Option<Instant> {
        self.end
    }

    /// Whether packets may be sent. To be asked before each: when it is asked for the next one, the
    /// last one has left.
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
        // One leaves; the one after it is dropped.
        assert!(pause.is_over(now));
        assert_eq!(pause.end(), None);
        assert!(pause.is_over(now));
        pause.begin(now);
        assert_eq!(pause.end(), Some(now.after(Duration(100_000))));
    }
}
