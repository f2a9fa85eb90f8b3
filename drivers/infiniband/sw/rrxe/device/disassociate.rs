// SPDX-License-Identifier: GPL-2.0

//! The end of a device under applications that only look at their memory.
//!
//! ib_core destroys the objects of processes when a device goes away, and tells them so by an event
//! that a process must ask for. One that polls would wait for ever. Its rings stay mapped; so before
//! ib_core destroys the objects, the posted WQEs are flushed into the CQs.
//!
//! Processes must not hold the device up. Each QP flushes the WQEs that were posted when its turn came
//! first, and no later ones. The QPs take turns, so that those with few WQEs are done soon. After
//! [`FLUSH`] the rest is not flushed: no turn of a process's QP begins any more, whatever its process
//! posts and its peers send.

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

/// How long the QPs of devices that go away together may take to flush.
const FLUSH: Delta = Delta::from_millis(250);
/// How long those of each of the devices may take at least.
const FLUSH_EACH: Delta = Delta::from_millis(5);
/// Between two rounds.
const NAP: Delta = Delta::from_micros(100);

/// When to end a flush.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    begun: Instant<Monotonic>,
    limit: Delta,
}

impl Deadline {
    /// For devices that begin to go away now.
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            limit: FLUSH,
        }
    }

    /// For the next of the devices, which begins now.
    fn of_next(self) -> Self {
        if self.left() >= FLUSH_EACH {
            return self;
        }
        Self {
            begun: Instant::now(),
            limit: FLUSH_EACH,
        }
    }

    fn left(&self) -> Delta {
        self.limit - self.begun.elapsed()
    }

    fn is_over(&self) -> bool {
        self.left() <= Delta::ZERO
    }
}

impl client::Observer for Links {
    fn leaving(&self, device: &AnyDevice) {
        if let Some(link) = self.find(|link| link.is_of(device)) {
            link.note_leaving();
            settle_gsi(&link);
            let deadline = link.deadline().unwrap_or_else(Deadline::new).of_next();
            while flush_round(&link, &deadline) {
                fsleep(NAP);
            }
            link.note_flushed();
        }
    }
}

/// Waits until ib_core handles no management datagram any more of those that the GSI QP of `link` took: the one that it has
/// polled. Turns of the QP drop all that come (`Gsi::check`), and those that lie in the CQ are polled as flushed.
///
/// ib_core frees its agent, and destroys the QP, before it waits for the work item that handles them, and that uses both
/// (`ib_mad_remove_device()`, `ib_mad_port_close()`, mad.c; `agent_send_response()`, agent.c). Process context; sleeps.
fn settle_gsi(link: &Arc<Link>) {
    // A turn of the QP may not have seen yet that the device leaves. Turns of the kernel's QPs are readers.
    wait_for_readers();
    let mut next = 0;
    while let Some(qp) = link.context().qps(Qpn::GSI).find_from(next, |_| true) {
        if Arc::ptr_eq(&qp.device.link, link) {
            qp.recv_cq.iter().for_each(|cq| cq.settle());
        }
        next = qp.place.saturating_add(1);
    }
}

/// Puts the QPs of processes on `link` in error and flushes some of each. Returns whether another round
/// is to follow. The kernel's users hear of the end themselves. Process context.
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

/// The first QP of a process on `link` with a number of at least `number`.
fn qp_from(link: &Arc<Link>, number: Qpn) -> Option<Arc<Qp>> {
    link.context().qps(number).find_from(number.get(), |qp| {
        qp.is_of_process() && Arc::ptr_eq(&qp.device.link, link)
    })
}
