// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs for flow steering rules (`struct ibv_flow`).

use core::{ffi::c_int, ptr::null_mut};

use crate::{
    bindings::*,
    object::{give, take, Zeroed},
    system::{code, failed},
};

/// Implements `create_flow` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn create(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    let mut flow = ibv_flow::zeroed();
    let code = code(ibv_cmd_create_flow(qp, &mut flow, attr, null_mut(), 0));
    if code != 0 {
        return failed(code);
    }
    give(flow)
}

/// Implements `destroy_flow` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn destroy(flow: *mut ibv_flow) -> c_int {
    let code = ibv_cmd_destroy_flow(flow);
    if code == 0 {
        drop(take(flow));
    }
    code
}
