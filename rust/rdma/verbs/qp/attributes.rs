// SPDX-License-Identifier: GPL-2.0

//! Attributes of queue pairs: conversion between `struct ib_qp_attr` and the attributes of the
//! protocol engine (`roce::qp::attr`).

use kernel::prelude::*;
use pin_init::Zeroable;
use roce::{
    ids::{Qkey, Qpn},
    mtu::Mtu,
    psn::Psn,
    qp::attr::{Attrs, QpState, RemoteRights},
};

use crate::{
    bindings::{self, ib_qp_attr},
    support::error::unsupported,
    verbs::{
        av::Av,
        qp::{QpCap, QpModify, QpQuery},
    },
};

const SUPPORTED: u32 = bindings::ib_qp_attr_mask_IB_QP_ATTR_STANDARD_BITS;

/// Reads the attributes that `mask` names (`enum ib_qp_attr_mask`).
///
/// # Errors
///
/// `EOPNOTSUPP` for attributes beyond the standard ones, `EINVAL` for invalid values, and the
/// errors of [`Av::from_attr`].
///
/// # Safety
///
/// ib_core must have passed `attr` to an operation that has not returned yet.
pub(crate) unsafe fn read(attr: &ib_qp_attr, mask: u32) -> Result<QpModify> {
    if mask & !SUPPORTED != 0 {
        return Err(unsupported());
    }
    let has = |bit: u32| mask & bit != 0;
    let av = has(bindings::ib_qp_attr_mask_IB_QP_AV)
        // SAFETY: The caller guarantees that `attr` are the attributes of an operation that has not
        // returned yet.
        .then(|| unsafe { Av::from_attr(&attr.ah_attr) })
        .transpose()?;
    let mut attrs = read_plain(attr, has);
    if has(bindings::ib_qp_attr_mask_IB_QP_STATE) {
        attrs.state = Some(state(attr.qp_state)?);
    }
    if has(bindings::ib_qp_attr_mask_IB_QP_CUR_STATE) {
        attrs.cur_state = Some(state(attr.cur_qp_state)?);
    }
    if has(bindings::ib_qp_attr_mask_IB_QP_PATH_MTU) {
        attrs.path_mtu = Some(Mtu::from_raw(attr.path_mtu).ok_or(EINVAL)?);
    }
    if has(bindings::ib_qp_attr_mask_IB_QP_PORT) {
        attrs.port = Some(u8::try_from(attr.port_num).map_err(|_| EINVAL)?);
    }
    attrs.av = av.is_some();
    Ok(QpModify { attrs, av })
}

/// Reads the attributes of which every value can be converted.
fn read_plain(attr: &ib_qp_attr, has: impl Fn(u32) -> bool) -> Attrs {
    use bindings as b;
    Attrs {
        sqd_async_notify: has(b::ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY)
            .then_some(attr.en_sqd_async_notify != 0),
        access: has(b::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS)
            .then(|| rights(attr.qp_access_flags as u32)),
        pkey_index: has(b::ib_qp_attr_mask_IB_QP_PKEY_INDEX).then_some(attr.pkey_index),
        qkey: has(b::ib_qp_attr_mask_IB_QP_QKEY).then_some(Qkey(attr.qkey)),
        timeout: has(b::ib_qp_attr_mask_IB_QP_TIMEOUT).then_some(attr.timeout),
        retry_cnt: has(b::ib_qp_attr_mask_IB_QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(b::ib_qp_attr_mask_IB_QP_RNR_RETRY).then_some(attr.rnr_retry),
        rq_psn: has(b::ib_qp_attr_mask_IB_QP_RQ_PSN).then_some(Psn::new(attr.rq_psn)),
        sq_psn: has(b::ib_qp_attr_mask_IB_QP_SQ_PSN).then_some(Psn::new(attr.sq_psn)),
        max_rd_atomic: has(b::ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: has(b::ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC)
            .then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: has(b::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        dest_qpn: has(b::ib_qp_attr_mask_IB_QP_DEST_QPN).then_some(Qpn::new(attr.dest_qp_num)),
        alt_path: has(b::ib_qp_attr_mask_IB_QP_ALT_PATH),
        path_mig_state: has(b::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE),
        cap: has(b::ib_qp_attr_mask_IB_QP_CAP),
        ..Attrs::default()
    }
}

fn state(raw: bindings::ib_qp_state) -> Result<QpState> {
    Ok(match raw {
        bindings::ib_qp_state_IB_QPS_RESET => QpState::Reset,
        bindings::ib_qp_state_IB_QPS_INIT => QpState::Init,
        bindings::ib_qp_state_IB_QPS_RTR => QpState::Rtr,
        bindings::ib_qp_state_IB_QPS_RTS => QpState::Rts,
        bindings::ib_qp_state_IB_QPS_SQD => QpState::Sqd,
        bindings::ib_qp_state_IB_QPS_SQE => QpState::Sqe,
        bindings::ib_qp_state_IB_QPS_ERR => QpState::Err,
        _ => return Err(EINVAL),
    })
}

fn rights(flags: u32) -> RemoteRights {
    RemoteRights {
        write: flags & bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE != 0,
        read: flags & bindings::ib_access_flags_IB_ACCESS_REMOTE_READ != 0,
        atomic: flags & bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC != 0,
        flush_global: flags & bindings::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL != 0,
        flush_persistent: flags & bindings::ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT != 0,
    }
}

fn rights_to_raw(rights: RemoteRights) -> u32 {
    let bit = |set: bool, flags: u32| if set { flags } else { 0 };
    bit(
        rights.write,
        bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE,
    ) | bit(rights.read, bindings::ib_access_flags_IB_ACCESS_REMOTE_READ)
        | bit(
            rights.atomic,
            bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC,
        )
        | bit(
            rights.flush_global,
            bindings::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL,
        )
        | bit(
            rights.flush_persistent,
            bindings::ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT,
        )
}

/// Returns the attributes that `query_qp` reports. Attributes that RoCE lacks, such as an alternate
/// path, are zero. A PSN is zero unless `mask` (`enum ib_qp_attr_mask`) asks for it: any user can
/// dump the attributes by netlink, with an empty mask, and must not learn the PSNs.
pub(crate) fn report(found: &QpQuery, mask: u32) -> ib_qp_attr {
    let (current, settings) = (&found.attrs, &found.attrs.settings);
    let mut attr = ib_qp_attr::zeroed();
    attr.qp_state = current.state as bindings::ib_qp_state;
    attr.cur_qp_state = attr.qp_state;
    attr.sq_draining = current.sq_draining.into();
    if mask & bindings::ib_qp_attr_mask_IB_QP_RQ_PSN != 0 {
        attr.rq_psn = current.rq_psn.get();
    }
    if mask & bindings::ib_qp_attr_mask_IB_QP_SQ_PSN != 0 {
        attr.sq_psn = current.sq_psn.get();
    }
    attr.path_mtu = settings.path_mtu as bindings::ib_mtu;
    attr.path_mig_state = bindings::ib_mig_state_IB_MIG_MIGRATED;
    attr.qkey = settings.qkey.0;
    attr.dest_qp_num = settings.dest_qpn.get();
    attr.qp_access_flags = rights_to_raw(settings.access) as i32;
    attr.pkey_index = settings.pkey_index;
    attr.port_num = settings.port.into();
    attr.timeout = settings.timeout;
    attr.retry_cnt = settings.retry_cnt;
    attr.rnr_retry = settings.rnr_retry;
    attr.max_rd_atomic = settings.max_rd_atomic;
    attr.max_dest_rd_atomic = settings.max_dest_rd_atomic;
    attr.min_rnr_timer = settings.min_rnr_timer;
    if let Some(av) = found.av {
        attr.ah_attr = av.to_attr();
    }
    write_cap(&found.cap, &mut attr.cap);
    attr
}

/// Reads capacities from a C structure.
pub(crate) fn read_cap(raw: &bindings::ib_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: raw.max_send_wr,
        max_recv_wr: raw.max_recv_wr,
        max_send_sge: raw.max_send_sge,
        max_recv_sge: raw.max_recv_sge,
        max_inline: raw.max_inline_data,
    }
}

/// Stores capacities in a C structure.
pub(crate) fn write_cap(cap: &QpCap, raw: &mut bindings::ib_qp_cap) {
    raw.max_send_wr = cap.max_send_wr;
    raw.max_recv_wr = cap.max_recv_wr;
    raw.max_send_sge = cap.max_send_sge;
    raw.max_recv_sge = cap.max_recv_sge;
    raw.max_inline_data = cap.max_inline;
}
