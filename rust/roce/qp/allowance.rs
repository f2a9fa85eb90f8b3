// SPDX-License-Identifier: GPL-2.0

//! The bound of the work requests that a turn starts, finishes or flushes without sending a packet. The host bounds the
//! packets of a turn.

/// Steps of each queue in a turn.
const STEPS: u32 = 64;

/// Steps that may still be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps(pub(crate) u32);

impl Steps {
    /// Takes a step; `false` if none was left.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }

    /// None is left.
    #[inline]
    pub(crate) fn are_spent(self) -> bool {
        self.0 == 0
    }
}

/// The steps of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Send WQEs that are started, finished or flushed.
    pub(super) sends: Steps,
    /// Receive WQEs that are flushed.
    pub(super) recvs: Steps,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            sends: Steps(STEPS),
            recvs: Steps(STEPS),
        }
    }
}
