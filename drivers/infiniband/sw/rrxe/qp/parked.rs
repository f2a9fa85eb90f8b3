// SPDX-License-Identifier: GPL-2.0

//! Parked QPs: accesses to on-demand memory that is not resident.
//!
//! A run of the engine cannot sleep. An access to absent memory parks the packet that needs it, and
//! the QP stops. A thread of the process that owns the memory serves a page fault. Then the QP
//! continues with the parked packet. If the page fault fails, the same access fails for good.
//!
//! A QP in an error state flushes while it is parked. A page fault maps pages and copies nothing,
//! so the WQEs need not wait for its end.

use kernel::prelude::*;
use rdma::memory::odp::Pending;
use roce::{
    host::{AccessFault, LocalAccess, RemoteAccess, ScatterFault},
    qp::{QpState, TransmitFault},
    transmit::Transmit,
    wc::WcStatus,
};

use crate::{
    memory::{mw::RemoteContext, remote::RemoteRange},
    verbs::pd::PdId,
};

/// Minimum number of bytes that a page fault for a peer's access tries to serve, unless the region
/// ends before. Peers mostly access consecutive addresses. The value is the kernel's default for
/// fault-around (`fault_around_pages`, mm/memory.c).
const MIN_AHEAD: u32 = 1 << 16;

/// An access to memory that is not resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absent {
    /// L_Key or R_Key of a region or window.
    pub(crate) key: u32,
    /// Address of the first byte, as the work request or the peer names it (IOVA).
    pub(crate) addr: u64,
    /// Number of bytes that the access needs.
    pub(crate) least: u32,
    /// Number of bytes that are likely to be needed next, including `least`.
    pub(crate) ahead: u32,
    /// Originator and kind of the access.
    pub(crate) access: Access,
}

/// Originator and kind of an access to absent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The QP accesses memory of its own in a protection domain.
    Local(PdId, LocalAccess),
    /// The peer accesses memory.
    Remote(RemoteContext, RemoteAccess),
}

impl Absent {
    /// Describes an access of a peer.
    fn remote(range: &RemoteRange) -> Self {
        Self {
            key: range.rkey.0,
            addr: range.va,
            least: range.length,
            ahead: range.length.max(MIN_AHEAD),
            access: Access::Remote(range.context, range.access),
        }
    }
}

/// The page fault that a QP waits for, and the packet with which the QP continues.
///
/// Used with the turn lock (`qp/turn.rs`) held.
#[derive(Default)]
pub(crate) struct Parked {
    /// Access whose page fault is being served. The QP is parked while this is set.
    wanted: Option<Absent>,
    /// Job of a thread of the process that serves `wanted`, once it is queued.
    pending: Option<Pending>,
    /// Access whose page fault failed. If the access is tried again, it fails.
    failed: Option<Absent>,
    /// The QP was reset while `wanted` was served. The result of the page fault does not matter to
    /// later accesses.
    abandoned: bool,
    /// The QP is parked, or has not continued yet with all that was parked.
    busy: bool,
    /// Parked packet: a packet to send whose payload is absent. A received packet that is parked
    /// stays in the inbox.
    transmit: Option<Transmit>,
}

impl Parked {
    /// Returns the access whose page fault is being served.
    pub(crate) fn wanted(&self) -> Option<Absent> {
        self.wanted
    }

    /// Returns whether the QP is parked.
    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        self.wanted.is_some()
    }

    /// Returns whether the QP is parked, or has not continued yet with all that was parked.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Parks the QP for an access to absent memory. Returns `false` if the page fault of the same
    /// access has failed: then the access must fail.
    #[cold]
    fn park(&mut self, absent: &Absent) -> bool {
        if self.failed.as_ref() == Some(absent) {
            return false;
        }
        self.wanted = Some(*absent);
        self.busy = true;
        true
    }

    /// Stores the job that serves the page fault, unless the page fault has ended already.
    pub(crate) fn set_pending(&mut self, pending: Option<Pending>) {
        self.pending = pending.filter(|_| self.is_parked());
    }

    /// Takes the job that serves the page fault. For the destruction of the QP, which withdraws the
    /// job from the process's queue.
    pub(crate) fn take_pending(&mut self) -> Option<Pending> {
        self.pending.take()
    }

    /// Ends the page fault. `again` is `false` if the page fault failed.
    pub(crate) fn end(&mut self, again: bool) {
        self.pending = None;
        let matters = !core::mem::take(&mut self.abandoned);
        self.failed = self.wanted.take().filter(|_| !again && matters);
    }

    /// Called at the end of a run. Returns `false` if the QP is parked. If all that was parked has
    /// been tried again, this forgets the failed page fault, so that another access to the same
    /// memory may succeed.
    #[cold]
    pub(crate) fn finish_run(&mut self) -> bool {
        if self.wanted.is_none() && self.transmit.is_none() {
            self.failed = None;
            self.busy = false;
        }
        !self.is_parked()
    }

    /// Parks a packet that cannot be sent yet.
    #[cold]
    pub(crate) fn park_transmit(&mut self, transmit: &Transmit) {
        self.transmit = Some(*transmit);
    }

    /// Takes the parked packet to send. Returns `None` and drops the packet if the QP's present
    /// `state` does not send.
    #[cold]
    pub(crate) fn take_transmit(&mut self, state: QpState) -> Option<Transmit> {
        let sends = matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        self.transmit.take().filter(|_| sends)
    }

    /// Handles a reset of the QP. Drops the parked packet. The result of a page fault that is being
    /// served no longer matters.
    pub(crate) fn clear(&mut self) {
        self.abandoned = self.wanted.is_some();
        self.failed = None;
        self.transmit = None;
    }

    /// Returns the result of a peer's access. Parks the QP if the memory is absent, or denies the
    /// access if its page fault has failed.
    #[inline(always)]
    pub(crate) fn remote<R>(
        &mut self,
        result: Result<R, AccessFault>,
        range: &RemoteRange,
    ) -> Result<R, AccessFault> {
        match result {
            Err(AccessFault::Retry) if !self.park(&Absent::remote(range)) => {
                Err(AccessFault::Denied)
            }
            result => result,
        }
    }

    /// Returns the error for an access to absent memory of the QP's own. Parks the QP, or reports a
    /// protection error if the page fault of the access has failed.
    #[cold]
    pub(crate) fn local(&mut self, absent: &Absent) -> ScatterFault {
        match self.park(absent) {
            true => ScatterFault::Retry,
            false => ScatterFault::Failed(WcStatus::LocProtErr),
        }
    }
}

/// Converts the error of gathering payload for a packet. `Retry` parks the packet.
#[cold]
pub(crate) fn gather_error(fault: ScatterFault) -> TransmitFault {
    match fault {
        ScatterFault::Failed(status) => TransmitFault::Local(status),
        ScatterFault::Retry => TransmitFault::Remote(AccessFault::Retry),
    }
}

#[kunit_tests(rrxe_parked)]
mod tests {
    use super::*;

    fn absent() -> Absent {
        Absent {
            key: 0x1234_5678,
            addr: 0x7000,
            least: 8,
            ahead: 8,
            access: Access::Local(PdId::from_raw(1), LocalAccess::Write),
        }
    }

    #[test]
    fn an_access_fails_after_its_page_fault_failed() {
        let mut parked = Parked::default();
        assert!(parked.park(&absent()));
        parked.end(false);
        assert!(!parked.park(&absent()));
        assert!(parked.finish_run());
        assert!(parked.park(&absent()));
        parked.end(true);
        assert!(parked.park(&absent()));
    }

    #[test]
    fn a_fault_from_before_reset_fails_no_access_after_it() {
        let mut parked = Parked::default();
        assert!(parked.park(&absent()));
        parked.clear();
        parked.end(false);
        assert!(parked.park(&absent()));
        parked.end(false);
        assert!(!parked.park(&absent()));
    }
}
