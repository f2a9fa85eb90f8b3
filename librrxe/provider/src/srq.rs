// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs for shared receive queues (`struct ibv_srq`), basic ones and those for XRC.

use core::{ffi::c_int, ptr::addr_of_mut};

use rrxe_rings::receive::ReceiveQueue;

use crate::{
    bindings::*,
    guarded::{Guarded, Threads},
    memory::Mapping,
    object::{give, take, Extended, Zeroed},
    pd::Pd,
    resizable::Resizable,
    system::{code, failed, EINVAL, EOPNOTSUPP},
};

/// Shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    verbs: verbs_srq,
    /// Ring of the queue. `None` only during the creation.
    pub(crate) queue: Option<Guarded<Resizable<ReceiveQueue<Mapping>>>>,
}

impl Srq {
    /// Returns the queue that programs know by the pointer `srq`.
    ///
    /// # Safety
    ///
    /// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see
    /// the crate's documentation).
    pub(crate) unsafe fn from_raw<'a>(srq: *mut ibv_srq) -> &'a Self {
        &*srq.cast::<Self>()
    }

    /// Allocates a queue without a ring.
    fn unfinished() -> *mut Self {
        give(Self {
            verbs: verbs_srq::zeroed(),
            queue: None,
        })
    }

    /// Completes the creation: maps the ring of a queue that the kernel created. Returns the queue.
    /// If the command or the mapping failed, destroys the queue, sets errno and returns null.
    ///
    /// # Safety
    ///
    /// `srq` must come from [`unfinished`](Self::unfinished). The command that created it must have
    /// ended with `code`.
    unsafe fn finish(
        srq: *mut Self,
        code: c_int,
        ring: &mminfo,
        max_sge: u32,
        threads: Threads,
    ) -> *mut ibv_srq {
        if code != 0 {
            drop(take(srq));
            return failed(code);
        }
        let context = (*srq).verbs.srq.context;
        match Mapping::ring((*context).cmd_fd, ring) {
            Ok(ring) => {
                let queue = Resizable::new(ReceiveQueue::new(ring, max_sge));
                (*srq).queue = Some(Guarded::new(threads, queue));
                srq.cast()
            }
            Err(code) => {
                ibv_cmd_destroy_srq(srq.cast());
                drop(take(srq));
                failed(code)
            }
        }
    }
}

type Reply = Extended<ib_uverbs_create_srq_resp, rxe_create_srq_resp>;

/// Implements `create_srq` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn create(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    let srq = Srq::unfinished();
    let mut request = ibv_create_srq::zeroed();
    let mut reply = Reply::new();
    let code = code({
        let (request_size, request) = (size_of_val(&request), &mut request);
        let verbs = addr_of_mut!((*srq).verbs.srq);
        ibv_cmd_create_srq(
            pd,
            verbs,
            attr,
            request,
            request_size,
            reply.core(),
            Reply::SIZE,
        )
    });
    let max_sge = (*attr).attr.max_sge;
    Srq::finish(srq, code, &reply.driver.mi, max_sge, Pd::threads(pd))
}

/// Implements `create_srq_ex` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const KNOWN: u32 = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ;
    let (mask, kind, pd) = ((*attr).comp_mask, (*attr).srq_type, (*attr).pd);
    let typed = mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
    let known = !typed || kind == IBV_SRQT_BASIC || kind == IBV_SRQT_XRC;
    if mask & !KNOWN != 0 || !known {
        return failed(EOPNOTSUPP);
    }
    if mask & IBV_SRQ_INIT_ATTR_PD == 0 {
        return failed(EINVAL);
    }
    let srq = Srq::unfinished();
    let mut request = ibv_create_xsrq::zeroed();
    let mut reply = Reply::new();
    let code = code({
        let (request_size, request) = (size_of_val(&request), &mut request);
        let verbs = addr_of_mut!((*srq).verbs);
        let response = reply.core();
        ibv_cmd_create_srq_ex(
            context,
            verbs,
            attr,
            request,
            request_size,
            response,
            Reply::SIZE,
        )
    });
    let max_sge = (*attr).attr.max_sge;
    Srq::finish(srq, code, &reply.driver.mi, max_sge, Pd::threads(pd))
}

/// Implements `modify_srq` of `struct verbs_context_ops`. If the size changes, the kernel creates a
/// new ring and moves the requests there. If the new ring cannot be mapped, this fails, and the
/// queue is unusable until a later call has mapped it.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn modify(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let Some(queue) = &Srq::from_raw(srq).queue else {
        return EINVAL;
    };
    if mask & IBV_SRQ_MAX_WR as c_int == 0 {
        return command(srq, attr, mask).map_or_else(|code| code, |_| 0);
    }
    let fd = (*(*srq).context).cmd_fd;
    queue.with(|queue| {
        let place = command(srq, attr, mask);
        let moved = place.and_then(|place| queue.move_to(fd, place));
        moved.map_or_else(|code| code, |_| 0)
    })
}

/// Executes the command that changes a queue. Returns the offset and the size of its new ring, zero
/// if it has none.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn command(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> Result<mminfo, c_int> {
    type Request = Extended<ibv_modify_srq, rxe_modify_srq_cmd>;
    let mut place = mminfo::zeroed();
    let mut request = Request::new();
    request.driver.mmap_info_addr = (&raw mut place) as u64;
    match code(ibv_cmd_modify_srq(
        srq,
        attr,
        mask,
        request.core(),
        Request::SIZE,
    )) {
        0 => Ok(place),
        code => Err(code),
    }
}

/// Implements `query_srq` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn query(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let mut request = ibv_query_srq::zeroed();
    ibv_cmd_query_srq(srq, attr, &mut request, size_of_val(&request))
}

/// Implements `get_srq_num` of `struct verbs_context_ops`. XRC initiators refer to a shared receive
/// queue by this number.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn number(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    let verbs = &Srq::from_raw(srq).verbs;
    if verbs.srq_type != IBV_SRQT_XRC {
        return EOPNOTSUPP;
    }
    (*number = verbs.srq_num);
    0
}

/// Implements `destroy_srq` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn destroy(srq: *mut ibv_srq) -> c_int {
    let code = ibv_cmd_destroy_srq(srq);
    if code == 0 {
        drop(take(srq.cast::<Srq>()));
    }
    code
}
