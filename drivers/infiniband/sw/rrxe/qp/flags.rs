// SPDX-License-Identifier: GPL-2.0

//! Rare conditions of a QP, in one word that each turn reads once.

use core::sync::atomic::{AtomicU8, Ordering};

/// One of its CQs lost a completion: it can't be but in RESET or in error.
const CONDEMNED: u8 = 1 << 0;
/// Frames come to it, not packets.
const FRAMES: u8 = 1 << 1;

/// Whether there is anything, and some of what it is. Any context.
pub(crate) struct QpFlags(AtomicU8);

impl QpFlags {
    /// Nothing, but that it receives `frames`, perhaps.
    pub(crate) fn new(frames: bool) -> Self {
        Self(AtomicU8::new(if frames { FRAMES } else { 0 }))
    }

    /// Whether there is anything.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// It can't be but in RESET or in error any more.
    pub(crate) fn set_error(&self) {
        self.0.fetch_or(CONDEMNED, Ordering::Relaxed);
    }

    /// Whether that is so.
    pub(crate) fn must_fail(&self) -> bool {
        self.0.load(Ordering::Relaxed) & CONDEMNED != 0
    }
}
