// SPDX-License-Identifier: GPL-2.0

//! Rare conditions of a QP, in one word that each run of the engine (`qp/run.rs`) reads once.

use core::sync::atomic::{AtomicU8, Ordering};

/// A CQ of the QP lost a completion. The QP may only be in RESET or in the error state.
const MUST_FAIL: u8 = 1 << 0;
/// The QP receives frames, not packets: it is a raw packet QP.
const FRAMES: u8 = 1 << 1;

/// Flags of the conditions that a run has to handle. Any context.
pub(crate) struct QpFlags(AtomicU8);

impl QpFlags {
    /// Creates the flags of a raw packet QP if `frames` is set, else an empty set.
    pub(crate) fn new(frames: bool) -> Self {
        Self(AtomicU8::new(if frames { FRAMES } else { 0 }))
    }

    /// Returns whether any flag is set.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Requires the QP to be in RESET or in the error state from now on.
    pub(crate) fn set_error(&self) {
        self.0.fetch_or(MUST_FAIL, Ordering::Relaxed);
    }

    /// Returns whether the QP has to be in RESET or in the error state.
    pub(crate) fn must_fail(&self) -> bool {
        self.0.load(Ordering::Relaxed) & MUST_FAIL != 0
    }
}
