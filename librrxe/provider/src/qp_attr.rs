// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs that change and query the attributes of queue pairs (`struct ibv_qp_attr`).

use core::ffi::c_int;

use crate::{bindings::*, cq, object::Zeroed, qp::Qp};

/// Implements `modify_qp` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn modify(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let mut request = ibv_modify_qp::zeroed();
    let code = ibv_cmd_modify_qp(qp, attr, mask, &mut request, size_of_val(&request));
    let moves = mask & IBV_QP_STATE as c_int != 0;
    if code == 0 && moves && (*attr).qp_state == IBV_QPS_RESET {
        // The kernel has emptied the rings. Completions from before the reset must not be polled
        // any more.
        cq::forget([(*qp).send_cq, (*qp).recv_cq], (*qp).qp_num);
        let this = Qp::from_raw(qp);
        if let Some(send) = &this.send {
            send.with(|queue| queue.reset());
        }
        if let Some(receive) = &this.receive {
            receive.with(|queue| queue.reset());
        }
    }
    code
}

/// Implements `query_qp` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn query(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let mut request = ibv_query_qp::zeroed();
    let size = size_of_val(&request);
    ibv_cmd_query_qp(qp, attr, mask, init, &mut request, size)
}
