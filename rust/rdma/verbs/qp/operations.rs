// SPDX-License-Identifier: GPL-2.0

//! Operations on queue pairs.

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};
use pin_init::Zeroable;
use roce::qp::attr::QpKind;

use super::attributes;
use crate::{
    abi::post::{RecvList, SendList},
    bindings,
    device::of as device_of,
    provider::Provider,
    support::error::unsupported,
    verbs::{
        cq,
        object::{Object, Raising},
        qp::{QpCreated, QpInit, QpQuery, RingReply},
        srq,
        udata::{refuse_payload, UserCall},
        upcall::{QpUpcall, Upcall},
        xrcd,
    },
};

const BLOCK_LOOPBACK: u32 =
    bindings::ib_qp_create_flags_IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK as u32;

/// The flag of an address vector with a GID.
const GRH: u8 = bindings::ib_ah_flags_IB_AH_GRH as u8;

type QpObject<P> = Object<P, Raising<bindings::ib_qp>>;

/// Bytes that ib_core is to allocate for a QP of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    QpObject::<P>::SIZE
}

/// The driver's QP.
///
/// # Safety
///
/// `qp` must be a QP of `P` that exists for ib_core during all of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(qp: *mut bindings::ib_qp) -> &'a Arc<P::Qp> {
    // SAFETY: As the caller promises.
    unsafe { QpObject::<P>::get(qp.cast()) }
}

/// Implements `create_qp`.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create<P: Provider>(
    qp: *mut bindings::ib_qp,
    init: *mut bindings::ib_qp_init_attr,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::of_creation(payload) }?;
        if let Some(call) = &call {
            call.udata.refuse_request()?;
            call.udata.require_response(2 * RingReply::SIZE)?;
        }
        // SAFETY: ib_core passes valid attributes.
        let init = unsafe { &mut *init };
        // SAFETY: `qp` is valid until `destroy`, which revokes the upcall, or until this fails,
        // which does so too.
        let upcall = unsafe { Upcall::new(qp) }?;
        // SAFETY: As the caller promises.
        let created = unsafe { make::<P>(qp, init, call.as_ref(), upcall.clone()) }
            .inspect_err(|_| upcall.revoke())?;
        attributes::write_cap(&created.cap, &mut init.cap);
        // SAFETY: During creation nobody else accesses the object.
        unsafe { (*qp).qp_num = created.qpn.get() };
        // SAFETY: As above; ib_core allocated as much as `size` says.
        unsafe { QpObject::<P>::store_raising(qp, upcall, created.qp) };
        Ok(0)
    })
}

/// Makes the driver's QP. A process's library is told of it; undone if that fails.
///
/// # Safety
///
/// The arguments must be ib_core's, of a creation.
unsafe fn make<P: Provider>(
    qp: *mut bindings::ib_qp,
    init: &bindings::ib_qp_init_attr,
    call: Option<&UserCall<'_, P>>,
    upcall: QpUpcall,
) -> Result<QpCreated<P::Qp>> {
    // SAFETY: As the caller promises.
    let init = unsafe { convert_init::<P>(qp, init, upcall) }?;
    // SAFETY: The device is alive while ib_core calls its operations.
    let device = unsafe { device_of::<P>((*qp).device) };
    let Some(call) = call else {
        return P::create_kernel_qp(device, init);
    };
    let created = P::create_user_qp(device, init, call)?;
    if let Err(error) = call.udata.respond(created.reply.to_bytes().as_flattened()) {
        P::destroy_qp(&created.qp);
        return Err(error);
    }
    Ok(created)
}

/// Converts the attributes of a creation.
///
/// # Safety
///
/// The arguments must be ib_core's, of a creation.
unsafe fn convert_init<P: Provider>(
    qp: *mut bindings::ib_qp,
    init: &bindings::ib_qp_init_attr,
    upcall: QpUpcall,
) -> Result<QpInit<P>> {
    let kind = kind(init.qp_type).ok_or_else(unsupported)?;
    let block_loopback = init.create_flags & BLOCK_LOOPBACK != 0;
    if init.create_flags & !BLOCK_LOOPBACK != 0 {
        return Err(unsupported());
    }
    // SAFETY: ib_core sets it before it calls.
    let pd = unsafe { (*qp).pd };
    // SAFETY: Null, or held by ib_core during the call.
    let cq = |cq: *mut bindings::ib_cq| (!cq.is_null()).then(|| unsafe { cq::of::<P>(cq) }.clone());
    let (send_cq, recv_cq) = (cq(init.send_cq), cq(init.recv_cq));
    let target = kind == QpKind::XrcTgt;
    let complete = match target {
        true => !init.xrcd.is_null(),
        false => !pd.is_null() && send_cq.is_some() && recv_cq.is_some() == kind.has_receives(),
    };
    if !complete {
        return Err(EINVAL);
    }
    // Requests to a target name their queues. The ioctl passes one on nevertheless; the command and ib_core ignore it.
    let (pd, srq) = match target {
        true => (None, None),
        false => {
            // SAFETY: ib_core holds the protection domain during the call.
            let pd = unsafe { Object::<P, _>::get(pd) };
            // SAFETY: Null, or held by ib_core during the call.
            let srq = unsafe { srq::of::<P>(init.srq) };
            (Some(pd.clone()), srq.cloned())
        }
    };
    Ok(QpInit {
        kind,
        pd,
        send_cq,
        recv_cq,
        // SAFETY: Null, or held by ib_core during the call.
        xrcd: unsafe { xrcd::of::<P>(init.xrcd) }.cloned(),
        srq,
        cap: attributes::read_cap(&init.cap),
        signal_all: init.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
        block_loopback,
        upcall,
    })
}

fn kind(raw: bindings::ib_qp_type) -> Option<QpKind> {
    Some(match raw {
        bindings::ib_qp_type_IB_QPT_RC => QpKind::Rc,
        bindings::ib_qp_type_IB_QPT_UC => QpKind::Uc,
        bindings::ib_qp_type_IB_QPT_UD => QpKind::Ud,
        bindings::ib_qp_type_IB_QPT_GSI => QpKind::Gsi,
        bindings::ib_qp_type_IB_QPT_RAW_PACKET => QpKind::RawPacket,
        bindings::ib_qp_type_IB_QPT_XRC_INI => QpKind::XrcIni,
        bindings::ib_qp_type_IB_QPT_XRC_TGT => QpKind::XrcTgt,
        _ => return None,
    })
}

/// Implements `modify_qp`.
///
/// # Safety
///
/// To be called by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    mask: c_int,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // ib_core holds a count of a bond's port, whose removal waits for it (`_ib_modify_qp()`, verbs.c).
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { refuse_payload(payload) }?;
        // SAFETY: ib_core passes valid attributes.
        let attr = unsafe { &mut *attr };
        // SAFETY: They are those of this operation.
        let change = unsafe { attributes::read(attr, mask as u32) }?;
        // SAFETY: The QP is alive while ib_core calls its operations.
        P::modify_qp(unsafe { of::<P>(qp) }, &change)?;
        if !payload.is_null() {
            // ib_core holds no lock while it replaces the reference to a GID in `ib_qp.av_sgid_attr`, so two threads of a
            // process would put the same one (`rdma_update_sgid_attr()`, drivers/infiniband/core/verbs.c). Without the flag
            // it keeps none. uverbs frees these attributes after the call.
            attr.ah_attr.ah_flags &= !GRH;
        }
        Ok(0)
    })
}

/// Implements `query_qp`. All attributes but the PSNs are reported, whatever the mask asks for.
///
/// Any user can dump the attributes of all QPs by netlink (`fill_res_qp_entry_query()`, nldev.c). Whoever can send with the address of a
/// connected QP's peer breaks the connection by one packet with its PSN. That dump asks for nothing; users who own a QP ask.
///
/// ib_uverbs_query_qp() copies attributes to the process out of memory that it doesn't initialise,
/// and fill_res_qp_entry_query() out of its stack: both structures are written as a whole.
///
/// # Safety
///
/// To be called by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn query<P: Provider>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    mask: c_int,
    init: *mut bindings::ib_qp_init_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: The QP is alive while ib_core calls its operations.
        let found = P::query_qp(unsafe { of::<P>(qp) })?;
        // SAFETY: ib_core passes attributes to fill.
        unsafe { attr.write(attributes::report(&found, mask as u32)) };
        // SAFETY: The QP is alive while ib_core calls its operations.
        let reported = unsafe { report_init(qp, &found) };
        // SAFETY: ib_core passes attributes to fill.
        unsafe { init.write(reported) };
        Ok(0)
    })
}

/// The attributes of the QP's creation.
///
/// # Safety
///
/// `qp` must be valid.
unsafe fn report_init(qp: *const bindings::ib_qp, found: &QpQuery) -> bindings::ib_qp_init_attr {
    // SAFETY: As the caller promises.
    let qp = unsafe { &*qp };
    let mut init = bindings::ib_qp_init_attr::zeroed();
    init.event_handler = qp.event_handler;
    init.qp_context = qp.qp_context;
    init.send_cq = qp.send_cq;
    init.recv_cq = qp.recv_cq;
    init.srq = qp.srq;
    init.qp_type = qp.qp_type;
    attributes::write_cap(&found.cap, &mut init.cap);
    init.sq_sig_type = if found.signal_all {
        bindings::ib_sig_type_IB_SIGNAL_ALL_WR
    } else {
        bindings::ib_sig_type_IB_SIGNAL_REQ_WR
    };
    init
}

/// Implements `destroy_qp`.
///
/// # Safety
///
/// To be called by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(
    qp: *mut bindings::ib_qp,
    _payload: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: This is the destruction, past the point where it can fail.
    unsafe { QpObject::<P>::destroy_raising(qp, P::destroy_qp) }
}

/// Implements `post_send`: a list of the kernel or, without any, the doorbell of a process, which has
/// put its work requests into its ring.
///
/// # Safety
///
/// To be called by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn post_send<P: Provider>(
    qp: *mut bindings::ib_qp,
    requests: *const bindings::ib_send_wr,
    failed: *mut *const bindings::ib_send_wr,
) -> c_int {
    from_result(|| {
        // SAFETY: The QP is alive while ib_core calls its operations.
        let kind = unsafe { (*qp).qp_type };
        // SAFETY: As above.
        let qp = unsafe { of::<P>(qp) };
        if requests.is_null() {
            P::doorbell(qp)?;
            return Ok(0);
        }
        let datagrams = matches!(
            kind,
            bindings::ib_qp_type_IB_QPT_UD | bindings::ib_qp_type_IB_QPT_GSI
        );
        // SAFETY: ib_core's list is valid during the call.
        let mut list = unsafe { SendList::<P>::new(requests, datagrams) };
        P::post_send(qp, &mut list).inspect_err(|_| {
            // SAFETY: ib_core passes a place to fill along with requests.
            unsafe { failed.write(list.current()) };
        })?;
        Ok(0)
    })
}

/// Implements `post_recv`, for the kernel. Any context.
///
/// # Safety
///
/// To be called by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn post_recv<P: Provider>(
    qp: *mut bindings::ib_qp,
    requests: *const bindings::ib_recv_wr,
    failed: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: The QP is alive while ib_core calls its operations.
    let qp = unsafe { of::<P>(qp) };
    // SAFETY: ib_core's list is valid during the call, and it passes a place to fill along with it.
    unsafe { RecvList::post(requests, failed, |list| P::post_recv(qp, list)) }
}
