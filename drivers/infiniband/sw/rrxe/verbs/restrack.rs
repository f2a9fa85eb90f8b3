// SPDX-License-Identifier: GPL-2.0

//! The driver's attributes in the output of `rdma resource show -d`.
//!
//! ib_core lets every user of the host dump them (`nldev_cb_table`, `nldev.c`). So they contain no
//! addresses and no keys.

use kernel::{prelude::*, sync::Arc};
use rdma::device::restrack::DriverAttrs;

use crate::{
    memory::mr::Mr,
    qp::Qp,
    verbs::{cq::Cq, srq::Srq},
};

/// Adds the attributes of a QP: the capacities of its queues, the numbers of posted WQEs, of
/// packets in the inbox and of packets in flight, the path MTU, and the settings of its retries.
///
/// # Errors
///
/// `EINVAL` if the QP was destroyed, `EMSGSIZE`.
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

/// Adds the attributes of a CQ: the number of unread completions, the kind of notification that is
/// armed, and whether the CQ has overflowed.
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

/// Adds the attributes of a shared receive queue: its capacity, the number of posted WQEs and the
/// armed limit. If the queue is in error because of an invalid index in its ring, the attribute
/// `ring` with the value `broken` is added instead. The query's `EINVAL` would end the dump of all
/// queues (`res_get_common_dumpit()`, nldev.c).
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

/// Adds the attribute of a memory region: its rights as `IB_ACCESS_*`. A region for fast
/// registration has none, because its rights change with every registration. Doesn't sleep.
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
