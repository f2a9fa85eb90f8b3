// SPDX-License-Identifier: GPL-2.0

//! Limit on the work requests that a run starts, finishes or flushes without sending a packet.
//!
//! A run is a series of polls by one host. The host itself limits the packets of a run.

/// Number of steps that each queue may take in a run.
const STEPS: u32 = 64;

/// Number of steps that may still be taken. One step starts, finishes or flushes one work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps(pub(crate) u32);

impl Steps {
    /// Takes one step. Returns `false` if none was left.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }

    /// Returns whether no step is left.
    #[inline]
    pub(crate) fn are_spent(self) -> bool {
        self.0 == 0
    }
}

/// The steps that are left in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Steps of the send queue: send WQEs that are started, finished or flushed.
    pub(super) sends: Steps,
    /// Steps of the receive queue: receive WQEs that are flushed.
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
