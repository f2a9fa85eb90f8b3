// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs for XRC domains (`struct ibv_xrcd`).

use core::ffi::c_int;

use crate::{
    bindings::*,
    object::{give, take, Zeroed},
    system::{code, failed},
};

/// Implements `open_xrcd` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn open(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let mut request = ibv_open_xrcd::zeroed();
    let mut reply = ib_uverbs_open_xrcd_resp::zeroed();
    let (request_size, reply_size) = (size_of_val(&request), size_of_val(&reply));
    let mut xrcd = verbs_xrcd::zeroed();
    let size = size_of::<verbs_xrcd>() as c_int;
    let code = code({
        let (request, reply) = (&mut request, &mut reply);
        ibv_cmd_open_xrcd(
            context,
            &mut xrcd,
            size,
            attr,
            request,
            request_size,
            reply,
            reply_size,
        )
    });
    if code != 0 {
        return failed(code);
    }
    give(xrcd).cast()
}

/// Implements `close_xrcd` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn close(xrcd: *mut ibv_xrcd) -> c_int {
    let raw = xrcd.cast::<verbs_xrcd>();
    let code = ibv_cmd_close_xrcd(raw);
    if code == 0 {
        drop(take(raw));
    }
    code
}
