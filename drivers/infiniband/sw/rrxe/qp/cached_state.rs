// SPDX-License-Identifier: GPL-2.0

//! A QP's state for those who post: they don't wait for the turn.

use core::sync::atomic::{AtomicU32, Ordering};

use roce::qp::QpState;

/// The state that a QP was in after its last turn. Any context. One of `core`'s atomics: it is written
/// every turn, and the kernel's are calls of C.
pub(crate) struct CachedState(AtomicU32);

impl CachedState {
    /// RESET.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(QpState::Reset as u32))
    }

    /// Notes the state that the QP is in now.
    #[inline]
    pub(crate) fn note(&self, state: QpState) {
        self.0.store(state as u32, Ordering::Relaxed);
    }

    /// The state, as in `enum ib_qp_state`.
    pub(crate) fn number(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether it is this one.
    pub(crate) fn is(&self, state: QpState) -> bool {
        self.0.load(Ordering::Relaxed) == state as u32
    }

    /// Sends may be posted: from RTS on (IBTA 1.x §10.8.3.1).
    pub(crate) fn takes_sends(&self) -> bool {
        let cached_state = self.0.load(Ordering::Relaxed);
        let early = [QpState::Reset, QpState::Init, QpState::Rtr];
        !early.into_iter().any(|state| cached_state == state as u32)
    }
}
