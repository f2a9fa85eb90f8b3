// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Posting of receive requests.

use core::{ffi::c_int, slice};

use rrxe_rings::{receive::ReceiveQueue, PostError, Sge};

use crate::{
    bindings::*,
    memory::Mapping,
    qp::Qp,
    srq::Srq,
    system::{EINVAL, ENOMEM},
};

/// Returns the errno for a refused request.
pub(crate) fn errno_of(why: PostError) -> c_int {
    match why {
        PostError::Full => ENOMEM,
        PostError::Invalid => EINVAL,
    }
}

/// Converts an SGE of libibverbs.
pub(crate) fn sge(sge: &ibv_sge) -> Sge {
    Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: sge.lkey,
    }
}

/// Returns the SGEs of a request, of which there may be at most `most`.
///
/// # Errors
///
/// [`PostError::Invalid`] if `count` is negative or more than `most`, or if it is positive and the
/// list is null.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe fn sges<'a>(
    list: *const ibv_sge,
    count: c_int,
    most: usize,
) -> Result<&'a [ibv_sge], PostError> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: The program guarantees that the list has `count` elements.
        Ok(count) if count <= most && !list.is_null() => Ok(slice::from_raw_parts(list, count)),
        _ => Err(PostError::Invalid),
    }
}

/// Implements `post_recv` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn post(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let this = Qp::from_raw(qp);
    match &this.receive {
        Some(queue) if this.state() != IBV_QPS_RESET => {
            queue.with(|queue| post_all(queue, wr, bad_wr))
        }
        _ => {
            *bad_wr = wr;
            EINVAL
        }
    }
}

/// Implements `post_srq_recv` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn post_shared(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    match &Srq::from_raw(srq).queue {
        Some(queue) => queue.with(|queue| match queue.queue() {
            Ok(queue) => post_all(queue, wr, bad_wr),
            Err(code) => {
                *bad_wr = wr;
                code
            }
        }),
        None => {
            *bad_wr = wr;
            EINVAL
        }
    }
}

/// Posts a list of requests, up to the first one that is refused. Returns 0 or an errno.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn post_all(
    queue: &mut ReceiveQueue<Mapping>,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut code = 0;
    while let Some(request) = wr.as_ref() {
        let sges = sges(request.sg_list, request.num_sge, queue.max_sge());
        let staged = sges.and_then(|sges| queue.stage(request.wr_id, sges.iter().map(sge)));
        if let Err(why) = staged {
            *bad_wr = wr;
            code = errno_of(why);
            break;
        }
        wr = request.next;
    }
    queue.publish();
    code
}
