// SPDX-License-Identifier: GPL-2.0

//! The flush of the QPs of a device that goes away, for applications that poll their CQs.
//!
//! ib_core destroys the objects of processes when a device goes away, and reports that by an event
//! that a process has to read. A process that only polls its CQs would wait for ever. Its rings
//! stay mapped, so before ib_core destroys the objects, the posted WQEs are flushed into the CQs.
//!
//! Processes must not delay the end of the device. Each QP flushes the WQEs that were posted before
//! the first round, and no later ones. The QPs flush in rounds, a part of each QP's WQEs per round,
//! so that QPs with few WQEs are done soon. After [`FLUSH_TIME`], or after [`MIN_FLUSH_TIME`] for a
//! device whose flush begins late, the remaining WQEs are not flushed: from then on no run of the
//! protocol engine of a process's QP begins, whatever its process posts and its peers send.

use kernel::{
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use rdma::{
    device::client::{self, AnyDevice},
    support::sync::{cond_resched, wait_for_readers},
};

use roce::ids::Qpn;

use crate::{
    device::link::{Link, Links},
    limits,
    qp::Qp,
};

/// Time in which the QPs of devices that go away together may flush.
const FLUSH_TIME: Delta = Delta::from_millis(250);
/// Least time that the QPs of each of these devices get for their flush.
const MIN_FLUSH_TIME: Delta = Delta::from_millis(5);
/// Pause between two rounds of a flush.
const PAUSE: Delta = Delta::from_micros(100);

/// End of the time for a flush.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    begun: Instant<Monotonic>,
    limit: Delta,
}

impl Deadline {
    /// Creates the deadline of devices that begin to go away now.
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            limit: FLUSH_TIME,
        }
    }

    /// Returns the deadline for the next of the devices, whose flush begins now. If less time than
    /// [`MIN_FLUSH_TIME`] is left, the deadline is that time from now.
    fn for_next_device(self) -> Self {
        if self.left() >= MIN_FLUSH_TIME {
            return self;
        }
        Self {
            begun: Instant::now(),
            limit: MIN_FLUSH_TIME,
        }
    }

    /// Returns the time that is left; negative after the end.
    fn left(&self) -> Delta {
        self.limit - self.begun.elapsed()
    }

    /// Returns whether the deadline has passed.
    fn is_over(&self) -> bool {
        self.left() <= Delta::ZERO
    }
}

impl client::Observer for Links {
    fn leaving(&self, device: &AnyDevice) {
        if let Some(link) = self.find(|link| link.is_of(device)) {
            link.note_leaving();
            settle_gsi(&link);
            let deadline = link
                .deadline()
                .unwrap_or_else(Deadline::new)
                .for_next_device();
            while flush_round(&link, &deadline) {
                fsleep(PAUSE);
            }
            link.note_flushed();
        }
    }
}

/// Waits until ib_core handles none of the management datagrams that the GSI QP of `link` received.
/// ib_core can still handle only the datagram that it has polled already: runs of the QP drop all
/// further datagrams (`Gsi::check`), and ib_core polls the datagrams in the CQ as flushed.
///
/// ib_core frees its agent and destroys the QP, and only then waits for the work item that handles
/// the datagrams. That work item uses the agent and the QP (`ib_mad_remove_device()`,
/// `ib_mad_port_close()`, mad.c; `agent_send_response()`, agent.c). Process context; sleeps.
fn settle_gsi(link: &Arc<Link>) {
    // A run of the QP may not have seen yet that the device goes away. Runs of in-kernel consumers'
    // QPs are RCU readers.
    wait_for_readers();
    let mut next = 0;
    while let Some(qp) = link.context().qps(Qpn::GSI).find_from(next, |_| true) {
        if Arc::ptr_eq(&qp.device.link, link) {
            qp.recv_cq.iter().for_each(|cq| cq.settle());
        }
        next = qp.index.saturating_add(1);
    }
}

/// Moves the QPs of processes on `link` to the error state and flushes a part of each QP's WQEs.
/// Returns whether another round is needed. QPs of in-kernel consumers are left alone: these
/// consumers learn of the device's end by `remove` of their `struct ib_client`. Process context.
fn flush_round(link: &Arc<Link>, deadline: &Deadline) -> bool {
    let mut next = Qpn::new(*limits::QPN_RANGE.start());
    let mut more = false;
    while let Some(qp) = qp_from(link, next) {
        if deadline.is_over() {
            return false;
        }
        more |= Qp::fail_and_flush(&qp);
        next = Qpn::new(qp.qpn.get().saturating_add(1));
        cond_resched();
    }
    more
}

/// Returns the first QP of a process on `link` that has a number of at least `number`.
fn qp_from(link: &Arc<Link>, number: Qpn) -> Option<Arc<Qp>> {
    link.context().qps(number).find_from(number.get(), |qp| {
        qp.is_of_process() && Arc::ptr_eq(&qp.device.link, link)
    })
}
