// SPDX-License-Identifier: GPL-2.0

//! Faults on memory that isn't resident.
//!
//! Only on-demand regions have such. A turn can't sleep: what needs absent memory is put aside, the
//! QP stops, and a thread of the process whose memory it is faults it in. Then the QP goes on
//! with what was put aside. If the fault can't be served, the same access fails for good.
//!
//! In a state of error the QP flushes meanwhile. A fault maps pages and copies nothing, so WQEs need
//! not wait for its end.

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

/// Peers go on where they are: so many bytes, as other kinds of read-ahead take.
const NEXT: u32 = 1 << 16;

/// An access to memory that isn't resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absent {
    /// The key of a region or window.
    pub(crate) key: u32,
    pub(crate) addr: u64,
    /// Bytes that are needed.
    pub(crate) least: u32,
    /// Bytes that are likely to be needed next, with these.
    pub(crate) ahead: u32,
    pub(crate) access: Access,
}

/// Who came to absent memory, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The QP, to its own memory of a protection domain.
    Local(PdId, LocalAccess),
    /// Its peer.
    Remote(RemoteContext, RemoteAccess),
}

impl Absent {
    /// A peer's access.
    fn remote(range: &RemoteRange) -> Self {
        Self {
            key: range.rkey.0,
            addr: range.va,
            least: range.length,
            ahead: range.length.max(NEXT),
            access: Access::Remote(range.context, range.access),
        }
    }
}

/// What a QP waits for, and with what it goes on then.
#[derive(Default)]
pub(crate) struct Parked {
    /// What is being faulted in: until then the QP stands still.
    wanted: Option<Absent>,
    /// The fault of `wanted`, once it was handed to a thread.
    pending: Option<Pending>,
    /// What could not be faulted in: the access that comes to it fails.
    failed: Option<Absent>,
    /// The QP was reset while `wanted` is faulted in: accesses from then on have faults of their own.
    abandoned: bool,
    /// It stands still, or hasn't gone on since.
    busy: bool,
    /// The packet to send that found it absent. One that came in waits in the inbox.
    transmit: Option<Transmit>,
}

impl Parked {
    /// What is being faulted in.
    pub(crate) fn wanted(&self) -> Option<Absent> {
        self.wanted
    }

    /// Whether the QP stands still.
    #[inline]
    pub(crate) fn stands(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether the QP stands still, or hasn't gone on since with all that was put aside.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// An access came to absent memory: whether it is to be tried again later.
    #[cold]
    fn waits_for(&mut self, absent: &Absent) -> bool {
        if self.failed.as_ref() == Some(absent) {
            return false;
        }
        self.wanted = Some(*absent);
        self.busy = true;
        true
    }

    /// The fault was handed to a thread, which may have ended it already.
    pub(crate) fn note_pending(&mut self, pending: Option<Pending>) {
        self.pending = pending.filter(|_| self.stands());
    }

    /// The fault that may wait for a thread: to be withdrawn by who ends the QP.
    pub(crate) fn take_pending(&mut self) -> Option<Pending> {
        self.pending.take()
    }

    /// The fault was served, or can't be.
    pub(crate) fn end(&mut self, served: bool) {
        self.pending = None;
        let matters = !core::mem::take(&mut self.abandoned);
        self.failed = self.wanted.take().filter(|_| !served && matters);
    }

    /// At the end of a turn: `false` if the QP must stand still. If all that was put aside was tried
    /// again, another access to what could not be faulted in may succeed.
    #[cold]
    pub(crate) fn settle(&mut self) -> bool {
        if self.wanted.is_none() && self.transmit.is_none() {
            self.failed = None;
            self.busy = false;
        }
        !self.stands()
    }

    /// Puts a packet that can't be sent yet aside.
    #[cold]
    pub(crate) fn park_transmit(&mut self, transmit: &Transmit) {
        self.transmit = Some(*transmit);
    }

    /// The packet that was put aside, unless the QP, now in `state`, broke: then nobody waits for it.
    #[cold]
    pub(crate) fn take_transmit(&mut self, state: QpState) -> Option<Transmit> {
        let sends = matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        self.transmit.take().filter(|_| sends)
    }

    /// The QP was reset: nothing that was put aside matters any more, nor how the fault ends that is being
    /// served.
    pub(crate) fn clear(&mut self) {
        self.abandoned = self.wanted.is_some();
        self.failed = None;
        self.transmit = None;
    }

    /// What a peer's access comes to.
    #[inline(always)]
    pub(crate) fn remote<R>(
        &mut self,
        result: Result<R, AccessFault>,
        range: &RemoteRange,
    ) -> Result<R, AccessFault> {
        match result {
            Err(AccessFault::Retry) if !self.waits_for(&Absent::remote(range)) => {
                Err(AccessFault::Denied)
            }
            result => result,
        }
    }

    /// What it comes to that the QP's own memory is absent.
    #[cold]
    pub(crate) fn local(&mut self, absent: &Absent) -> ScatterFault {
        match self.waits_for(absent) {
            true => ScatterFault::Retry,
            false => ScatterFault::Failed(WcStatus::LocProtErr),
        }
    }
}

/// What it comes to that payload can't be gathered for a packet, which is put aside for `Retry`.
#[cold]
pub(crate) fn ungathered(fault: ScatterFault) -> TransmitFault {
    match fault {
        ScatterFault::Failed(status) => TransmitFault::Local(status),
        ScatterFault::Retry => TransmitFault::Remote(AccessFault::Retry),
    }
}

#[kunit_tests(rrxe_fault)]
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
    fn an_access_whose_fault_failed_fails() {
        let mut parked = Parked::default();
        assert!(parked.waits_for(&absent()));
        parked.end(false);
        assert!(!parked.waits_for(&absent()));
        assert!(parked.settle());
        assert!(parked.waits_for(&absent()));
        parked.end(true);
        assert!(parked.waits_for(&absent()));
    }

    #[test]
    fn a_fault_from_before_reset_fails_no_access_after_it() {
        let mut parked = Parked::default();
        assert!(parked.waits_for(&absent()));
        parked.clear();
        parked.end(false);
        assert!(parked.waits_for(&absent()));
        parked.end(false);
        assert!(!parked.waits_for(&absent()));
    }
}
