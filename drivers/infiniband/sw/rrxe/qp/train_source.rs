// SPDX-License-Identifier: GPL-2.0

//! The permission to read the memory of a QP's work requests for trains (`net/train.rs`).
//!
//! A train refers to its sender's memory. The receiver reads that memory later, with its own turn
//! lock held and not the sender's. Meanwhile a work request of the sender may end in error, or the
//! sender may leave the states in which its peer may READ. From then on its owner may use the
//! memory for something else. So before the owner learns of it, the sender ends its session
//! ([`TrainSource::end_session`]). The receiver drops trains of ended sessions.

use core::sync::atomic::{AtomicU64, Ordering};

use kernel::{new_spinlock, prelude::*, sync::SpinLock};
use rdma::support::sync::bottom_halves_off;

/// Number of the next session. Numbers are not used again, not even by other QPs.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The session of a QP in which its trains may be received.
///
/// # Context
///
/// Any context up to softirq. The lock is held while the payload of one train is copied, so
/// [`Self::end_session`] waits for the copy of at most one train. Bottom halves are off while the
/// lock is held. The lock itself doesn't disable and enable them, because its taker may have
/// interrupts off.
#[pin_data]
pub(crate) struct TrainSource {
    /// Number of the session.
    #[pin]
    session: SpinLock<u64>,
}

impl TrainSource {
    /// Creates a source with a session of its own.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            session <- new_spinlock!(next(), "rrxe_train_source"),
        })
    }

    /// Returns the number of the session, for a train that the QP sends. Bottom halves must be off.
    pub(crate) fn session(&self) -> u64 {
        *self.session.lock()
    }

    /// Ends the session. After the return no payload of its trains is read. Interrupts must be
    /// enabled.
    pub(crate) fn end_session(&self) {
        let _off = bottom_halves_off();
        *self.session.lock() = next();
    }

    /// Calls `copy` unless session `session` has ended. Returns `None` if it has. Bottom halves
    /// must be off.
    pub(crate) fn within<R>(&self, session: u64, copy: impl FnOnce() -> R) -> Option<R> {
        let current = self.session.lock();
        (*current == session).then(copy)
    }
}

/// Returns a number that no session has had.
fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[kunit_tests(rrxe_train_source)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    #[test]
    fn an_ended_session_admits_nothing() -> Result {
        let one = Arc::pin_init(TrainSource::new(), GFP_KERNEL)?;
        let other = Arc::pin_init(TrainSource::new(), GFP_KERNEL)?;
        let _off = bottom_halves_off();
        let session = one.session();
        assert_eq!(one.within(session, || 7), Some(7));
        assert_eq!(other.within(session, || 7), None);
        one.end_session();
        assert_eq!(one.within(session, || 7), None);
        assert_eq!(one.within(one.session(), || 7), Some(7));
        Ok(())
    }
}
