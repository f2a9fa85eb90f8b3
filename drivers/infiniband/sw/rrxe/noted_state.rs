// SPDX-License-Identifier: GPL-2.0

//! A QP's state for those who post: they don't wait for the turn.

use kernel::sync::atomic::{ordering, Atomic};
use roce::qp::QpState;

/// The state that a QP was in after its last turn. Any context.
pub(crate) struct NotedState(Atomic<u32>);

impl NotedState {
    /// RESET.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(QpState::Reset as u32))
    }

    /// Notes the state that the QP is in now.
    #[inline]
    pub(crate) fn note(&self, state: QpState) {
        self.0.store(state as u32, ordering::Relaxed);
    }

    /// Whether it is this one.
    pub(crate) fn is(&self, state: QpState) -> bool {
        self.0.load(ordering::Relaxed) == state as u32
    }

    /// Sends may be posted: from RTS on (IBTA 1.x §10.8.3.1).
    pub(crate) fn takes_sends(&self) -> bool {
        let noted = self.0.load(ordering::Relaxed);
        let early = [QpState::Reset, QpState::Init, QpState::Rtr];
        !early.into_iter().any(|state| noted == state as u32)
    }
}
