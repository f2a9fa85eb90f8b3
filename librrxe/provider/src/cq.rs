// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs for completion queues (`struct ibv_cq`).

use core::{ffi::c_int, mem::transmute, ptr::addr_of_mut};

use rrxe_rings::completion::{Armed, CompletionQueue};

use crate::{
    bindings::*,
    context::Context,
    cq_ex,
    guarded::{Guarded, Threads},
    memory::Mapping,
    object::{give, take, Extended, Zeroed},
    pd::Pd,
    resizable::Resizable,
    system::{code, failed, EINVAL, EOPNOTSUPP},
};

/// Completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) verbs: verbs_cq,
    /// Ring of the queue. It is `None` only until the kernel has created the ring. The object must
    /// exist before the ring: the command that creates the ring passes the object's address to the
    /// kernel, for events.
    pub(crate) queue: Option<Guarded<Resizable<CompletionQueue<Mapping>>>>,
    /// Whether `req_notify` may arm the queue in its ring, without a system call.
    armed_in_ring: bool,
}

impl Cq {
    /// Returns the queue that programs know by the pointer `cq`.
    ///
    /// # Safety
    ///
    /// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see
    /// the crate's documentation).
    unsafe fn from_raw<'a>(cq: *mut ibv_cq) -> &'a Self {
        &*cq.cast::<Self>()
    }
}

/// Removes the completions of a QP that was reset or destroyed from `queues`. Another QP may get
/// the same number, and its completions must not be mixed up with these. If the ring of a queue
/// cannot be mapped, its completions stay.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). The queues may be null.
pub(crate) unsafe fn forget(queues: [*mut ibv_cq; 2], qp_num: u32) {
    for cq in queues {
        let cq = cq.cast::<Cq>().as_ref();
        if let Some(queue) = cq.and_then(|cq| cq.queue.as_ref()) {
            let _ = queue.with(|queue| queue.queue().map(|queue| queue.forget(qp_num)));
        }
    }
}

/// Implements `create_cq` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn create(
    context: *mut ibv_context,
    entries: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let Ok(cqe) = u32::try_from(entries) else {
        return failed(EINVAL);
    };
    let attr = ibv_cq_init_attr_ex {
        cqe,
        channel,
        comp_vector: vector as u32,
        ..Default::default()
    };
    make(context, &attr, Threads::Many).cast()
}

/// Implements `create_cq_ex` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const KNOWN_FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    const KNOWN_FIELDS: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    let attr = &*attr;
    let has = |field| attr.comp_mask & field != 0;
    let flags = if has(IBV_CQ_INIT_ATTR_MASK_FLAGS) {
        attr.flags
    } else {
        0
    };
    let unknown = attr.comp_mask & !KNOWN_FIELDS | flags & !KNOWN_FLAGS;
    if unknown != 0 || attr.wc_flags & !cq_ex::FIELDS != 0 {
        return failed(EOPNOTSUPP);
    }
    let mut threads = Threads::Many;
    if has(IBV_CQ_INIT_ATTR_MASK_PD) {
        if attr.parent_domain.is_null() {
            return failed(EINVAL);
        }
        threads = Pd::threads(attr.parent_domain);
    }
    if flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
        threads = Threads::One;
    }
    let cq = make(context, attr, threads);
    if let Some(cq) = cq.as_mut() {
        cq_ex::set_functions(&mut cq.verbs.__bindgen_anon_1.cq_ex, attr.wc_flags);
    }
    cq.cast()
}

/// Creates a queue. Returns null and sets errno if it fails.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn make(context: *mut ibv_context, attr: &ibv_cq_init_attr_ex, threads: Threads) -> *mut Cq {
    let cq = give(Cq {
        verbs: verbs_cq::zeroed(),
        queue: None,
        armed_in_ring: Context::granted(context).arms_cqs,
    });
    let mut reply = Extended::<ib_uverbs_ex_create_cq_resp, rxe_create_cq_resp>::new();
    let code = code(command(context, attr, cq, &mut reply));
    if code != 0 {
        drop(take(cq));
        return failed(code);
    }
    match Mapping::ring((*context).cmd_fd, &reply.driver.mi) {
        Ok(ring) => {
            let queue = Guarded::new(threads, Resizable::new(CompletionQueue::new(ring)));
            (*cq).queue = Some(queue);
            cq
        }
        Err(code) => {
            ibv_cmd_destroy_cq(cq.cast());
            drop(take(cq));
            failed(code)
        }
    }
}

/// Executes the command that creates a queue. Returns libibverbs' result.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). `cq` must be valid.
unsafe fn command(
    context: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
    cq: *mut Cq,
    reply: &mut Extended<ib_uverbs_ex_create_cq_resp, rxe_create_cq_resp>,
) -> c_int {
    type Reply = Extended<ib_uverbs_ex_create_cq_resp, rxe_create_cq_resp>;
    let mut request = ibv_create_cq_ex::zeroed();
    let (request_size, request) = (size_of_val(&request), &mut request);
    let (reply_size, reply) = (Reply::SIZE, reply.core());
    let cq = addr_of_mut!((*cq).verbs);
    #[cfg(cq_takes_buffer)]
    let result = {
        let buffer = core::ptr::null_mut();
        ibv_cmd_create_cq_ex(
            context,
            attr,
            buffer,
            cq,
            request,
            request_size,
            reply,
            reply_size,
            0,
        )
    };
    #[cfg(not(cq_takes_buffer))]
    let result = ibv_cmd_create_cq_ex(
        context,
        attr,
        cq,
        request,
        request_size,
        reply,
        reply_size,
        0,
    );
    result
}

/// Implements `modify_cq` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn modify(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    let mut request = ibv_modify_cq::zeroed();
    ibv_cmd_modify_cq(cq, attr, &mut request, size_of_val(&request))
}

/// Implements `resize_cq` of `struct verbs_context_ops`. The kernel creates a new ring and moves
/// the unread completions there. If the new ring cannot be mapped, this fails, and the queue is
/// unusable until a later call has mapped it.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn resize(cq: *mut ibv_cq, entries: c_int) -> c_int {
    type Reply = Extended<ib_uverbs_resize_cq_resp, rxe_resize_cq_resp>;
    let Some(queue) = &Cq::from_raw(cq).queue else {
        return EINVAL;
    };
    queue.with(|queue| {
        let mut request = ibv_resize_cq::zeroed();
        let mut reply = Reply::new();
        let code = code({
            let (request_size, request) = (size_of_val(&request), &mut request);
            ibv_cmd_resize_cq(
                cq,
                entries,
                request,
                request_size,
                reply.core(),
                Reply::SIZE,
            )
        });
        if code != 0 {
            return code;
        }
        let moved = queue.move_to((*(*cq).context).cmd_fd, reply.driver.mi);
        moved.map_or_else(|code| code, |_| 0)
    })
}

/// Implements `destroy_cq` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn destroy(cq: *mut ibv_cq) -> c_int {
    let code = ibv_cmd_destroy_cq(cq);
    if code == 0 {
        drop(take(cq.cast::<Cq>()));
    }
    code
}

/// Implements `poll_cq` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn poll(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let Some(queue) = &Cq::from_raw(cq).queue else {
        return -EINVAL;
    };
    let room = usize::try_from(room).unwrap_or(0);
    let count = queue.with(|queue| {
        let queue = queue.queue()?;
        Ok(queue.poll(room, |at, completion| {
            // SAFETY: The program has room for `room` entries. Both types have the same size, as
            // `bindings` checks, and all fields of a completion are integers.
            unsafe {
                wc.add(at)
                    .write(transmute::<[u64; 6], ibv_wc>(completion.0))
            };
        }))
    });
    count.map_or_else(|code: c_int| -code, |count| count as c_int)
}

/// Implements `req_notify_cq` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn req_notify(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let this = Cq::from_raw(cq);
    match &this.queue {
        Some(queue) if this.armed_in_ring => {
            // The lock keeps another thread from replacing the ring (`resize`) meanwhile.
            match queue.with(|queue| Ok(queue.queue()?.arm(solicited_only != 0))) {
                Ok(Armed::Done) => 0,
                Ok(Armed::NeedsCall) => ibv_cmd_req_notify_cq(cq, solicited_only),
                Err(code) => code,
            }
        }
        _ => ibv_cmd_req_notify_cq(cq, solicited_only),
    }
}
