// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs for memory regions (`struct ibv_mr`).

use core::ffi::{c_int, c_void};

use crate::{
    bindings::*,
    object::{give, take, Zeroed},
    system::{code, failed},
};

/// Creates a region by `register`, which fills in the zeroed structure that it is passed. Returns
/// null and sets errno if `register` fails.
///
/// # Safety
///
/// `register` must register the region that it is passed, or return an errno.
pub(crate) unsafe fn make(register: impl FnOnce(*mut verbs_mr) -> c_int) -> *mut ibv_mr {
    let mr = give(verbs_mr::zeroed());
    let code = code(register(mr));
    if code != 0 {
        drop(take(mr));
        return failed(code);
    }
    mr.cast()
}

/// Implements `reg_mr` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn reg(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    let mut request = ibv_reg_mr::zeroed();
    let mut reply = ib_uverbs_reg_mr_resp::zeroed();
    let (request_size, reply_size) = (size_of_val(&request), size_of_val(&reply));
    make(|mr| {
        let request = &mut request;
        let reply = &mut reply;
        ibv_cmd_reg_mr(
            pd,
            addr,
            length,
            iova,
            access,
            mr,
            request,
            request_size,
            reply,
            reply_size,
        )
    })
}

/// Implements `reg_mr_ex` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
#[cfg(has_reg_mr_ex)]
pub(crate) unsafe extern "C" fn reg_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    make(|mr| ibv_cmd_reg_mr_ex(pd, mr, attr))
}

/// Implements `reg_dmabuf_mr` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn reg_dmabuf(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    #[cfg(dmabuf_takes_buffer)]
    let result = make(|mr| {
        let none = core::ptr::null_mut();
        ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr, none)
    });
    #[cfg(not(dmabuf_takes_buffer))]
    let result = make(|mr| ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr));
    result
}

/// Implements `rereg_mr` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn rereg(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let mut request = ibv_rereg_mr::zeroed();
    let mut reply = ib_uverbs_rereg_mr_resp::zeroed();
    let (request_size, reply_size) = (size_of_val(&request), size_of_val(&reply));
    let (flags, iova) = (flags as u32, addr as u64);
    let (request, reply) = (&mut request, &mut reply);
    ibv_cmd_rereg_mr(
        mr,
        flags,
        addr,
        length,
        iova,
        access,
        pd,
        request,
        request_size,
        reply,
        reply_size,
    )
}

/// Implements `dereg_mr` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn dereg(mr: *mut verbs_mr) -> c_int {
    let code = ibv_cmd_dereg_mr(mr);
    if code == 0 {
        drop(take(mr));
    }
    code
}

/// Implements `advise_mr` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn advise(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sges: *mut ibv_sge,
    count: u32,
) -> c_int {
    ibv_cmd_advise_mr(pd, advice, flags, sges, count)
}

/// Implements `import_mr` of `struct verbs_context_ops`: gives access to a region of the process to
/// which the protection domain belongs.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn import(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    make(|mr| ibv_cmd_query_mr(pd, mr, handle))
}

/// Implements `unimport_mr` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn unimport(mr: *mut ibv_mr) {
    drop(take(mr.cast::<verbs_mr>()));
}
