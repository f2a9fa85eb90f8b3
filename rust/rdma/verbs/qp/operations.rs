// SPDX-License-Identifier: GPL-2.0

//! Operations on queue pairs (`struct ib_qp`).

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
    abi::{
        post::{RecvList, SendList},
        replies::RingReply,
    },
    bindings,
    device::of as device_of,
    provider::Provider,
    support::error::unsupported,
    verbs::{
        cq,
        object::{Object, WithUpcall},
        qp::{QpCreated, QpInit, QpQuery},
        srq,
        udata::{require_no_udata, UserCall},
        upcall::{QpUpcall, Upcall},
        xrcd,
    },
};

const BLOCK_LOOPBACK: u32 =
    bindings::ib_qp_create_flags_IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK as u32;

/// Flag of an address vector that contains a GID (`IB_AH_GRH`).
const GRH: u8 = bindings::ib_ah_flags_IB_AH_GRH as u8;

type QpObject<P> = Object<P, WithUpcall<bindings::ib_qp>>;

/// Number of bytes that ib_core must allocate for a QP of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    QpObject::<P>::SIZE
}

/// Returns the driver's QP behind `qp`.
///
/// # Safety
///
/// `qp` must be a QP of a device of `P`, created and not yet destroyed, for all of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(qp: *mut bindings::ib_qp) -> &'a Arc<P::Qp> {
    // SAFETY: The caller guarantees that `qp` is a QP of `P`, created and not yet destroyed (see
    // `# Safety`).
    unsafe { QpObject::<P>::get(qp.cast()) }
}

/// Implements `create_qp` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create<P: Provider>(
    qp: *mut bindings::ib_qp,
    init: *mut bindings::ib_qp_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::of_creation(udata) }?;
        if let Some(call) = &call {
            call.udata.require_zero_request()?;
            call.udata.require_response(2 * RingReply::SIZE)?;
        }
        // SAFETY: ib_core passes valid attributes.
        let init = unsafe { &mut *init };
        // SAFETY: This is the creation of `qp`, which is valid until the creation has failed or
        // `destroy` has returned. A failed creation and `destroy` revoke the upcall before they
        // return.
        let upcall = unsafe { Upcall::new(qp) }?;
        // SAFETY: The caller guarantees that these are the arguments of a creation on a device of
        // `P`.
        let created = unsafe { make::<P>(qp, init, call.as_ref(), upcall.clone()) }
            .inspect_err(|_| upcall.revoke())?;
        attributes::write_cap(&created.cap, &mut init.cap);
        // SAFETY: During the creation no other code accesses the object.
        unsafe { (*qp).qp_num = created.qpn.get() };
        // SAFETY: This is the creation operation, and ib_core allocated as many bytes as `size`
        // returns.
        unsafe { QpObject::<P>::store_with_upcall(qp, upcall, created.qp) };
        Ok(0)
    })
}

/// Creates the driver's QP. If `call` is given, creates it for a process and sends the response.
/// Destroys the QP if that fails.
///
/// # Safety
///
/// The arguments must be those that ib_core passes to the creation operation, on a device of `P`.
unsafe fn make<P: Provider>(
    qp: *mut bindings::ib_qp,
    init: &bindings::ib_qp_init_attr,
    call: Option<&UserCall<'_, P>>,
    upcall: QpUpcall,
) -> Result<QpCreated<P::Qp>> {
    // SAFETY: The caller guarantees that these are the arguments of a creation on a device of `P`.
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

/// Converts the attributes of a creation. Returns `EOPNOTSUPP` for types and flags that are not
/// supported, and `EINVAL` if an object is missing that the type needs, or if there is a receive CQ
/// and the type has no receives.
///
/// # Safety
///
/// The arguments must be those that ib_core passes to the creation operation, on a device of `P`.
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
    // SAFETY: ib_core sets the protection domain before it calls, to null for an XRC target QP.
    let pd = unsafe { (*qp).pd };
    // SAFETY: The CQ is null, or held by ib_core during the call.
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
    // Requests to an XRC target QP name their shared receive queues. The ioctl
    // `UVERBS_METHOD_QP_CREATE` nevertheless passes on a shared receive queue; the write command
    // and ib_core ignore it, and so does this driver.
    let (pd, srq) = match target {
        true => (None, None),
        false => {
            // SAFETY: ib_core holds the protection domain during the call.
            let pd = unsafe { Object::<P, _>::get(pd) };
            // SAFETY: The shared receive queue is null, or held by ib_core during the call.
            let srq = unsafe { srq::of::<P>(init.srq) };
            (Some(pd.clone()), srq.cloned())
        }
    };
    Ok(QpInit {
        kind,
        pd,
        send_cq,
        recv_cq,
        // SAFETY: The XRC domain is null, or held by ib_core during the call.
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

/// Implements `modify_qp` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    mask: c_int,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // For a bond, ib_core holds a reference to a slave of the bond during this call, and the
        // slave's unregistration waits for it (`_ib_modify_qp()`, verbs.c). So the operation
        // refuses a udata without a read of the process's memory, which may sleep for any time.
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { require_no_udata(udata) }?;
        // SAFETY: ib_core passes valid attributes.
        let attr = unsafe { &mut *attr };
        // SAFETY: The attributes are those of this operation, and the call is running.
        let change = unsafe { attributes::read(attr, mask as u32) }?;
        // SAFETY: The QP is alive while ib_core calls its operations.
        P::modify_qp(unsafe { of::<P>(qp) }, &change)?;
        if !udata.is_null() {
            // ib_core holds no lock while it replaces the reference to a GID in
            // `ib_qp.av_sgid_attr`, so two threads of a process would drop the same reference
            // (`rdma_update_sgid_attr()`, drivers/infiniband/core/verbs.c). Without the flag
            // ib_core stores no reference. The cleared flag has no other effect, since uverbs frees
            // these attributes after the call.
            attr.ah_attr.ah_flags &= !GRH;
        }
        Ok(0)
    })
}

/// Implements `query_qp` of `struct ib_device_ops`. Reports all attributes except the PSNs,
/// independent of the mask. Reports a PSN only if the mask asks for it.
///
/// Any user can dump the attributes of all QPs by netlink (`fill_res_qp_entry_query()`, nldev.c).
/// An attacker who can send packets with the address of a connected QP's peer breaks the connection
/// by one packet with the right PSN. The mask of the netlink dump is empty, so the dump contains no
/// PSN. The owner of a QP sets the mask.
///
/// `ib_uverbs_query_qp()` copies attributes to the process from memory that it doesn't initialise,
/// and `fill_res_qp_entry_query()` from its stack. So this function writes both structures as a
/// whole.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn query<P: Provider>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    mask: c_int,
    init: *mut bindings::ib_qp_init_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: The QP is alive while ib_core calls its operations.
        let found = P::query_qp(unsafe { of::<P>(qp) })?;
        // SAFETY: ib_core passes valid memory for the attributes.
        unsafe { attr.write(attributes::report(&found, mask as u32)) };
        // SAFETY: The QP is alive while ib_core calls its operations.
        let reported = unsafe { report_init(qp, &found) };
        // SAFETY: ib_core passes valid memory for the attributes.
        unsafe { init.write(reported) };
        Ok(0)
    })
}

/// Returns the attributes of the QP's creation.
///
/// # Safety
///
/// `qp` must be valid.
unsafe fn report_init(qp: *const bindings::ib_qp, found: &QpQuery) -> bindings::ib_qp_init_attr {
    // SAFETY: The caller guarantees that `qp` is valid.
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

/// Implements `destroy_qp` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(
    qp: *mut bindings::ib_qp,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: This is the destruction operation, and none of its steps can fail.
    unsafe { QpObject::<P>::destroy_with_upcall(qp, P::destroy_qp) }
}

/// Implements `post_send` of `struct ib_device_ops`. In-kernel consumers pass a list of work
/// requests. uverbs passes a null list as the doorbell of a process that has posted work requests
/// to its ring.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn post_send<P: Provider>(
    qp: *mut bindings::ib_qp,
    requests: *const bindings::ib_send_wr,
    failed: *mut *const bindings::ib_send_wr,
) -> c_int {
    from_result(|| {
        // SAFETY: The QP is alive while ib_core calls its operations.
        let kind = unsafe { (*qp).qp_type };
        // SAFETY: The QP is alive while ib_core calls its operations.
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
            // SAFETY: ib_core passes valid memory for the failed request along with a list.
            unsafe { failed.write(list.current()) };
        })?;
        Ok(0)
    })
}

/// Implements `post_recv` of `struct ib_device_ops`, for in-kernel consumers. Any context.
///
/// # Safety
///
/// Must be called only by ib_core, on a QP of `P`.
pub(crate) unsafe extern "C" fn post_recv<P: Provider>(
    qp: *mut bindings::ib_qp,
    requests: *const bindings::ib_recv_wr,
    failed: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: The QP is alive while ib_core calls its operations.
    let qp = unsafe { of::<P>(qp) };
    // SAFETY: ib_core's list is valid during the call, and ib_core passes valid memory for the
    // address of the request that fails.
    unsafe { RecvList::post(requests, failed, |list| P::post_recv(qp, list)) }
}
