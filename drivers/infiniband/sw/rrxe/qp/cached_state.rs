// SPDX-License-Identifier: GPL-2.0

//! Copy of a QP's state for posters, which do not take the turn lock (`qp/turn.rs`).

use core::sync::atomic::{AtomicU32, Ordering};

use roce::qp::QpState;

/// State of the QP after the last run of its engine or the last `modify_qp`. Any context.
///
/// Uses an atomic of `core`, because each run writes it and the kernel crate's atomics are calls of
/// C functions.
pub(crate) struct CachedState(AtomicU32);

impl CachedState {
    /// Creates the copy for a QP in RESET.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(QpState::Reset as u32))
    }

    /// Stores the present state.
    #[inline]
    pub(crate) fn note(&self, state: QpState) {
        self.0.store(state as u32, Ordering::Relaxed);
    }

    /// Returns the state as a value of `enum ib_qp_state`.
    pub(crate) fn number(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns whether the QP is in `state`.
    pub(crate) fn is(&self, state: QpState) -> bool {
        self.0.load(Ordering::Relaxed) == state as u32
    }

    /// Returns whether send work requests may be posted: the state is RTS or a later one (IBTA 1.x
    /// §10.8.3.1).
    pub(crate) fn takes_sends(&self) -> bool {
        let cached_state = self.0.load(Ordering::Relaxed);
        let early = [QpState::Reset, QpState::Init, QpState::Rtr];
        !early.into_iter().any(|state| cached_state == state as u32)
    }
}
