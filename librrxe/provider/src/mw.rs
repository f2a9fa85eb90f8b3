// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs for memory windows (`struct ibv_mw`).

use core::ffi::c_int;

use rrxe_rings::operation::{Bind, Operation};

use crate::{
    bindings::*,
    object::{give, take, Zeroed},
    post_send,
    system::{code, failed, set_errno, EINVAL},
};

/// Implements `alloc_mw` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn alloc(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    let mut request = ibv_alloc_mw::zeroed();
    let mut reply = ib_uverbs_alloc_mw_resp::zeroed();
    let (request_size, reply_size) = (size_of_val(&request), size_of_val(&reply));
    let mut mw = ibv_mw::zeroed();
    let code = code({
        let (request, reply) = (&mut request, &mut reply);
        ibv_cmd_alloc_mw(pd, kind, &mut mw, request, request_size, reply, reply_size)
    });
    if code != 0 {
        return failed(code);
    }
    give(mw)
}

/// Implements `dealloc_mw` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn dealloc(mw: *mut ibv_mw) -> c_int {
    let code = ibv_cmd_dealloc_mw(mw);
    if code == 0 {
        drop(take(mw));
    }
    code
}

/// Returns the operation that binds `mw` under the key `rkey`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe fn binding(mw: *mut ibv_mw, rkey: u32, bound: &ibv_mw_bind_info) -> Operation {
    Operation::BindWindow(Bind {
        addr: bound.addr,
        length: bound.length,
        // A bind of length 0 unbinds a window of type 1, and needs no region.
        region: bound.mr.as_ref().map_or(0, |mr| mr.lkey),
        window: (*mw).rkey,
        rkey,
        access: bound.mw_access_flags,
    })
}

/// Implements `bind_mw` of `struct verbs_context_ops` for windows of type 1. Their key changes with
/// each bind.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn bind(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    wanted: *mut ibv_mw_bind,
) -> c_int {
    let wanted = &*wanted;
    if wanted.bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 {
        return set_errno(EINVAL);
    }
    let old = (*mw).rkey;
    // The owner of a window chooses the low byte of its key.
    let rkey = old & !0xff | old.wrapping_add(1) & 0xff;
    let operation = binding(mw, rkey, &wanted.bind_info);
    match post_send::post_local(qp, wanted.wr_id, wanted.send_flags, &operation) {
        Ok(()) => {
            (*mw).rkey = rkey;
            0
        }
        Err(code) => set_errno(code),
    }
}
