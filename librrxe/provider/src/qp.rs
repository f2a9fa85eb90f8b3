// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs that create, open and destroy queue pairs (`struct ibv_qp`).

use core::{ffi::c_int, ptr::addr_of_mut};

use rrxe_rings::{doorbell::Slot, operation::Transport, receive::ReceiveQueue, send::SendQueue};

use crate::{
    bindings::*,
    cq,
    guarded::{Guarded, Threads},
    memory::Mapping,
    object::{give, take, Extended, Zeroed},
    pd::Pd,
    system::{code, failed, EOPNOTSUPP},
    wr,
};

/// Queue pair.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) verbs: verbs_qp,
    /// Send queue. `None` if the QP cannot send.
    pub(crate) send: Option<Guarded<SendQueue<Mapping>>>,
    /// Receive queue. `None` if the QP cannot receive, or has a shared receive queue.
    pub(crate) receive: Option<Guarded<ReceiveQueue<Mapping>>>,
    /// Slot of the send queue in the doorbell page, if it has one.
    pub(crate) slot: Option<Slot>,
}

impl Qp {
    /// Returns the QP that programs know by the pointer `qp`.
    ///
    /// # Safety
    ///
    /// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see
    /// the crate's documentation).
    pub(crate) unsafe fn from_raw<'a>(qp: *mut ibv_qp) -> &'a Self {
        &*qp.cast::<Self>()
    }

    /// Returns the state to which the program moved the QP.
    pub(crate) fn state(&self) -> ibv_qp_state {
        // SAFETY: Both members of the union begin with a `struct ibv_qp`.
        unsafe { self.verbs.__bindgen_anon_1.qp.state }
    }

    /// Allocates a QP without rings.
    fn unfinished() -> *mut Self {
        give(Self {
            verbs: verbs_qp::zeroed(),
            send: None,
            receive: None,
            slot: None,
        })
    }

    /// Maps the rings that the kernel created.
    ///
    /// # Errors
    ///
    /// errno.
    fn map(
        &mut self,
        fd: c_int,
        reply: &Rings,
        attr: &ibv_qp_init_attr_ex,
        threads: Threads,
    ) -> Result<(), c_int> {
        if reply.rings.rq_mi.size != 0 {
            let ring = Mapping::ring(fd, &reply.rings.rq_mi)?;
            let queue = ReceiveQueue::new(ring, attr.cap.max_recv_sge);
            self.receive = Some(Guarded::new(threads, queue));
        }
        let transport = transport(attr.qp_type).filter(|_| reply.rings.sq_mi.size != 0);
        if let Some(transport) = transport {
            let ring = Mapping::ring(fd, &reply.rings.sq_mi)?;
            let (sges, inline) = (attr.cap.max_send_sge, attr.cap.max_inline_data);
            let queue = SendQueue::new(ring, transport, sges, inline);
            self.send = Some(Guarded::new(threads, queue));
            self.slot = Slot::new(reply.own.slot);
        }
        Ok(())
    }
}

/// Part of the driver in the response: offsets and sizes of the rings as from C rxe, followed by
/// rrxe's additions.
#[repr(C)]
struct Rings {
    rings: rxe_create_qp_resp,
    own: rrxe_create_qp_resp,
}

// SAFETY: The structure consists of integers.
unsafe impl Zeroed for Rings {}

type Reply = Extended<ib_uverbs_ex_create_qp_resp, Rings>;

/// Returns the type of the send queue, or `None` if QPs of this type have none.
fn transport(kind: ibv_qp_type) -> Option<Transport> {
    match kind {
        IBV_QPT_RC => Some(Transport::Rc),
        IBV_QPT_UC => Some(Transport::Uc),
        IBV_QPT_UD => Some(Transport::Ud),
        IBV_QPT_XRC_SEND => Some(Transport::XrcSend),
        IBV_QPT_RAW_PACKET => Some(Transport::RawPacket),
        _ => None,
    }
}

/// Implements `create_qp` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn create(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    let attr = &mut *attr;
    let mut whole = ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        ..ibv_qp_init_attr_ex::zeroed()
    };
    let qp = make((*pd).context, &mut whole);
    if !qp.is_null() {
        attr.cap = whole.cap;
    }
    qp.cast()
}

/// Implements `create_qp_ex` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let attr = &mut *attr;
    let builds = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let offered = transport(attr.qp_type).map_or(0, wr::offered);
    let refused = builds && attr.send_ops_flags & !offered != 0;
    if attr.comp_mask & !KNOWN != 0 || refused {
        return failed(EOPNOTSUPP);
    }
    let qp = make(context, attr);
    if let Some(qp) = qp.as_mut().filter(|_| builds) {
        wr::set_functions(&mut qp.verbs.__bindgen_anon_1.qp_ex, attr.send_ops_flags);
        qp.verbs.comp_mask |= VERBS_QP_EX;
    }
    qp.cast()
}

/// Creates a QP. Returns null and sets errno if it fails.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn make(context: *mut ibv_context, attr: &mut ibv_qp_init_attr_ex) -> *mut Qp {
    let has_pd = attr.comp_mask & IBV_QP_INIT_ATTR_PD != 0;
    let threads = match has_pd {
        true => Pd::threads(attr.pd),
        false => Threads::Many,
    };
    let qp = Qp::unfinished();
    let mut reply = Reply::new();
    reply.driver.own.slot = RRXE_NO_SLOT;
    let code = code(command(context, attr, qp, &mut reply));
    if code != 0 {
        drop(take(qp));
        return failed(code);
    }
    let mapped = (*qp).map((*context).cmd_fd, &reply.driver, attr, threads);
    if let Err(code) = mapped {
        ibv_cmd_destroy_qp(qp.cast());
        drop(take(qp));
        return failed(code);
    }
    qp
}

/// Executes the command that creates a QP. Returns libibverbs' result.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). `qp` must be valid.
unsafe fn command(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    qp: *mut Qp,
    reply: &mut Reply,
) -> c_int {
    let mut request = ibv_create_qp_ex::zeroed();
    let (request_size, request) = (size_of_val(&request), &mut request);
    let (reply_size, reply) = (Reply::SIZE, reply.core());
    let qp = addr_of_mut!((*qp).verbs);
    #[cfg(qp_takes_attributes)]
    let result = {
        let none = core::ptr::null_mut();
        ibv_cmd_create_qp_ex2(
            context,
            qp,
            attr,
            request,
            request_size,
            reply,
            reply_size,
            none,
        )
    };
    #[cfg(not(qp_takes_attributes))]
    let result = ibv_cmd_create_qp_ex2(context, qp, attr, request, request_size, reply, reply_size);
    result
}

/// Implements `open_qp` of `struct verbs_context_ops`: opens an XRC target QP that another process
/// created.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn open(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    let qp = Qp::unfinished();
    let mut request = ibv_open_qp::zeroed();
    let mut reply = ib_uverbs_create_qp_resp::zeroed();
    let (request_size, reply_size) = (size_of_val(&request), size_of_val(&reply));
    let code = code({
        let verbs = addr_of_mut!((*qp).verbs);
        let size = size_of::<verbs_qp>() as c_int;
        let (request, reply) = (&mut request, &mut reply);
        ibv_cmd_open_qp(
            context,
            verbs,
            size,
            attr,
            request,
            request_size,
            reply,
            reply_size,
        )
    });
    if code != 0 {
        drop(take(qp));
        return failed(code);
    }
    qp.cast()
}

/// Implements `destroy_qp` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn destroy(qp: *mut ibv_qp) -> c_int {
    let code = ibv_cmd_destroy_qp(qp);
    if code == 0 {
        cq::forget([(*qp).send_cq, (*qp).recv_cq], (*qp).qp_num);
        drop(take(qp.cast::<Qp>()));
    }
    code
}
