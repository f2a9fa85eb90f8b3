// SPDX-License-Identifier: GPL-2.0

//! What `rdma resource show -d` says of our objects, to every user of the host: ib_core lets
//! everybody dump them (`nldev_cb_table`, `nldev.c`). So there are no addresses and no keys here.

use kernel::{prelude::*, sync::Arc};
use rdma::device::restrack::DriverAttrs;

use crate::{
    memory::mr::Mr,
    qp::Qp,
    verbs::{cq::Cq, srq::Srq},
};

/// Tells of a QP: its queues' capacities and what lies in them, packets on their way out of the
/// host and into the engine, and what governs its retries.
///
/// # Errors
///
/// `EINVAL` once destroyed, `EMSGSIZE`.
pub(crate) fn qp(qp: &Arc<Qp>, details: &mut DriverAttrs<'_>) -> Result {
    let (found, load) = Qp::query_with_load(qp)?;
    details.number(c"sq_size", found.cap.max_send_wr)?;
    details.number(c"sq_posted", load.sends)?;
    details.number(c"rq_size", found.cap.max_recv_wr)?;
    details.number(c"rq_posted", load.receives)?;
    details.number(c"inbox", load.inbox)?;
    details.number(c"in_flight", load.in_flight)?;
    let settings = found.attrs.settings;
    details.number(c"path_mtu", settings.path_mtu.bytes())?;
    details.number(c"timeout", settings.timeout.into())?;
    details.number(c"retry_cnt", settings.retry_cnt.into())?;
    details.number(c"rnr_retry", settings.rnr_retry.into())
}

/// Tells of a CQ: completions that nobody has fetched, what its consumer waits for, and whether it
/// is in error.
///
/// # Errors
///
/// `EMSGSIZE`.
pub(crate) fn cq(cq: &Cq, details: &mut DriverAttrs<'_>) -> Result {
    let load = cq.load();
    details.number(c"unread", load.unread)?;
    details.word(c"armed", load.armed)?;
    details.number(c"overflowed", load.overflowed.into())
}

/// Tells of a shared receive queue: its capacity, what lies in it, and the limit that is armed; or that its process
/// has broken its ring. An error but `EMSGSIZE` would end the dump of all queues (`res_get_common_dumpit()`, nldev.c).
///
/// # Errors
///
/// `EMSGSIZE`.
pub(crate) fn srq(srq: &Srq, details: &mut DriverAttrs<'_>) -> Result {
    let Ok(found) = srq.query() else {
        return details.word(c"ring", c"broken");
    };
    details.number(c"size", found.max_wr)?;
    details.number(c"posted", srq.posted())?;
    details.number(c"limit", found.limit)
}

/// Tells of a memory region: its rights as `IB_ACCESS_*`; of one for fast registration nothing, for
/// they change with every use. Doesn't sleep.
///
/// # Errors
///
/// `EMSGSIZE`.
pub(crate) fn mr(mr: &Mr, details: &mut DriverAttrs<'_>) -> Result {
    match mr.rights() {
        Some(access) => details.hex(c"access", access.bits().into()),
        None => Ok(()),
    }
}
