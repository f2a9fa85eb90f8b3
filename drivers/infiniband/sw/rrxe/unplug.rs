// SPDX-License-Identifier: GPL-2.0

//! The end of a device under applications that only look at their memory.
//!
//! ib_core destroys the objects of processes when a device goes away, and tells them so by an event
//! that a process must ask for. One that polls would wait for ever. Its rings stay mapped; so before
//! ib_core comes, all that is posted is flushed into them.

use kernel::sync::Arc;
use rdma::{client, device::IbDevice};

use roce::ids::Qpn;

use crate::{
    limits,
    link::{Link, Links},
    qp::Qp,
};

impl client::Observer for Links {
    fn leaving(&self, device: &IbDevice) {
        if let Some(link) = self.find(|link| link.is_of(device)) {
            flush_all(&link);
        }
    }
}

/// Puts all QPs of processes on `link` in error, and flushes their queues. The kernel's users hear of
/// the end themselves. Process context.
fn flush_all(link: &Arc<Link>) {
    let mut next = Qpn::new(*limits::QPN_RANGE.start());
    while let Some(qp) = qp_from(link, next) {
        Qp::fail_and_flush(&qp);
        next = Qpn::new(qp.qpn.get().saturating_add(1));
    }
}

/// The first QP of a process on `link` with a number of at least `number`.
fn qp_from(link: &Arc<Link>, number: Qpn) -> Option<Arc<Qp>> {
    link.context().qps(number).find_from(number.get(), |qp| {
        qp.is_of_process() && Arc::ptr_eq(&qp.device.link, link)
    })
}
