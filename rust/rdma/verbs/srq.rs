// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues: the arguments and results of their verbs, and the operations on
//! `struct ib_srq`.

use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    abi::{post::RecvList, replies::SrqReply},
    bindings,
    provider::Provider,
    support::error::unsupported,
    verbs::{
        cq,
        object::{Object, WithUpcall},
        udata::{RingChange, UserCall},
        upcall::{SrqUpcall, Upcall},
        xrcd,
    },
};

/// Arguments of a shared receive queue's creation.
pub struct SrqInit {
    /// Requested number of WQEs.
    pub max_wr: u32,
    /// Requested number of SGEs in a WQE.
    pub max_sge: u32,
    /// Upcall for asynchronous events of the queue.
    pub upcall: SrqUpcall,
}

/// Further arguments of the creation of a shared receive queue of an XRC domain.
pub struct XrcInit<P: Provider> {
    /// XRC domain of the queue.
    pub xrcd: Arc<P::Xrcd>,
    /// CQ for completions of receives.
    pub cq: Arc<P::Cq>,
}

impl<P: Provider> XrcInit<P> {
    /// Reads the arguments for an XRC domain from `init`. Returns `None` for a queue without an XRC
    /// domain.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for other types of queues, `EINVAL` if the XRC domain or the CQ is missing.
    ///
    /// # Safety
    ///
    /// `init` must be the argument that ib_core passes to `create_srq`, on a device of `P`.
    unsafe fn read(init: &bindings::ib_srq_init_attr) -> Result<Option<Self>> {
        match init.srq_type {
            bindings::ib_srq_type_IB_SRQT_BASIC => return Ok(None),
            bindings::ib_srq_type_IB_SRQT_XRC => {}
            _ => return Err(unsupported()),
        }
        // SAFETY: `xrc` is the valid member of the union, because the type was checked above.
        let xrcd = unsafe { init.ext.__bindgen_anon_1.xrc.xrcd };
        // SAFETY: The XRC domain is null, or held by ib_core during the call.
        let xrcd = unsafe { xrcd::of::<P>(xrcd) }.ok_or(EINVAL)?;
        if init.ext.cq.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: ib_core holds the CQ during the call.
        let cq = unsafe { cq::of::<P>(init.ext.cq) };
        Ok(Some(Self {
            xrcd: xrcd.clone(),
            cq: cq.clone(),
        }))
    }
}

/// Results of a shared receive queue's creation.
pub struct SrqCreated<S> {
    /// The shared receive queue.
    pub srq: Arc<S>,
    /// Granted number of WQEs: at least the requested one.
    pub max_wr: u32,
    /// Granted number of SGEs in a WQE.
    pub max_sge: u32,
    /// Response to the process's library. Not used for a queue of an in-kernel consumer.
    pub reply: SrqReply,
}

/// Changes of a shared receive queue by `modify_srq`. A field that is `None` is not changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqModify {
    /// New capacity, in WQEs.
    pub max_wr: Option<u32>,
    /// New limit: an event is raised when fewer WQEs than this are left. Zero disables the event.
    pub limit: Option<u32>,
}

/// Results of `query_srq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Capacity, in WQEs.
    pub max_wr: u32,
    /// Maximum number of SGEs in a WQE.
    pub max_sge: u32,
    /// Armed limit, or zero if none is armed.
    pub limit: u32,
}

type SrqObject<P> = Object<P, WithUpcall<bindings::ib_srq>>;

/// Number of bytes that ib_core must allocate for a shared receive queue of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    SrqObject::<P>::SIZE
}

/// Returns the driver's queue behind `base`, or `None` if `base` is null.
///
/// # Safety
///
/// `base` must be null or a shared receive queue of a device of `P`, created and not yet destroyed,
/// for all of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(base: *mut bindings::ib_srq) -> Option<&'a Arc<P::Srq>> {
    if base.is_null() {
        return None;
    }
    // SAFETY: `base` isn't null. The caller guarantees that it is a queue of `P`, created and not
    // yet destroyed.
    Some(unsafe { SrqObject::<P>::get(base.cast()) })
}

/// Implements `create_srq` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create<P: Provider>(
    base: *mut bindings::ib_srq,
    init: *mut bindings::ib_srq_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::of_creation(udata) }?;
        if let Some(call) = &call {
            call.udata.require_zero_request()?;
            call.udata.require_response(SrqReply::SIZE)?;
        }
        // SAFETY: ib_core passes valid attributes.
        let init = unsafe { &mut *init };
        // SAFETY: ib_core passes valid attributes, whose objects it holds.
        let xrc = unsafe { XrcInit::<P>::read(init) }?;
        let is_xrc = xrc.is_some();
        // SAFETY: ib_core sets the domain before it calls, and holds it during the call.
        let pd = unsafe { Object::<P, _>::get((*base).pd) };
        // SAFETY: This is the creation of `base`, which is valid until the creation has failed or
        // `destroy` has returned. A failed creation and `destroy` revoke the upcall before they
        // return.
        let upcall = unsafe { Upcall::new(base) }?;
        let asked = SrqInit {
            max_wr: init.attr.max_wr,
            max_sge: init.attr.max_sge,
            upcall: upcall.clone(),
        };
        let created = match (&call, xrc) {
            (None, None) => P::create_kernel_srq(pd, asked),
            (None, Some(_)) => Err(unsupported()),
            (Some(call), xrc) => P::create_user_srq(pd, asked, xrc, call)
                .and_then(|created| respond::<P>(created, call)),
        };
        let created = created.inspect_err(|_| upcall.revoke())?;
        init.attr.max_wr = created.max_wr;
        init.attr.max_sge = created.max_sge;
        if is_xrc {
            // SAFETY: During the creation no other code accesses the object.
            unsafe { (*base).ext.__bindgen_anon_1.xrc.srq_num = created.reply.number };
        }
        // SAFETY: This is the creation operation, and ib_core allocated as many bytes as `size`
        // returns.
        unsafe { SrqObject::<P>::store_with_upcall(base, upcall, created.srq) };
        Ok(0)
    })
}

/// Sends the process's library the location of the ring and the number of the queue. Destroys the
/// queue if that fails.
fn respond<P: Provider>(
    created: SrqCreated<P::Srq>,
    call: &UserCall<'_, P>,
) -> Result<SrqCreated<P::Srq>> {
    match call.udata.respond(&created.reply.to_bytes()) {
        Ok(()) => Ok(created),
        Err(error) => {
            P::destroy_srq(&created.srq);
            Err(error)
        }
    }
}

/// Implements `modify_srq` of `struct ib_device_ops`. The request of a process's library contains
/// the address to which the location of a new ring is written.
///
/// # Safety
///
/// Must be called only by ib_core, on a queue of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    base: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
    mask: bindings::ib_srq_attr_mask,
    udata: *mut bindings::ib_udata,
) -> c_int {
    const MAX_WR: u32 = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
    const LIMIT: u32 = bindings::ib_srq_attr_mask_IB_SRQ_LIMIT;
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::from_raw(udata) };
        let change = match &call {
            None => None,
            Some(call) => {
                let address = u64::from_ne_bytes(call.udata.request()?);
                Some(RingChange::new(call, Some(address)))
            }
        };
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(EINVAL);
        }
        // SAFETY: ib_core passes valid attributes.
        let attr = unsafe { &*attr };
        let modify = SrqModify {
            max_wr: (mask & MAX_WR != 0).then_some(attr.max_wr),
            limit: (mask & LIMIT != 0).then_some(attr.srq_limit),
        };
        // SAFETY: The queue is alive while ib_core calls its operations.
        let srq = unsafe { SrqObject::<P>::get(base.cast()) };
        P::modify_srq(srq, &modify, change.as_ref())?;
        Ok(0)
    })
}

/// Implements `post_srq_recv` of `struct ib_device_ops`, for in-kernel consumers. Any context.
///
/// # Safety
///
/// Must be called only by ib_core, on a queue of `P`.
pub(crate) unsafe extern "C" fn post_recv<P: Provider>(
    base: *mut bindings::ib_srq,
    requests: *const bindings::ib_recv_wr,
    failed: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: The queue is alive while ib_core calls its operations.
    let srq = unsafe { SrqObject::<P>::get(base.cast()) };
    // SAFETY: ib_core's list is valid during the call, and ib_core passes valid memory for the
    // address of the request that fails.
    unsafe { RecvList::post(requests, failed, |list| P::post_srq_recv(srq, list)) }
}

/// Implements `query_srq` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a queue of `P`.
pub(crate) unsafe extern "C" fn query<P: Provider>(
    base: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: The queue is alive while ib_core calls its operations.
        let found = P::query_srq(unsafe { SrqObject::<P>::get(base.cast()) })?;
        let found = bindings::ib_srq_attr {
            max_wr: found.max_wr,
            max_sge: found.max_sge,
            srq_limit: found.limit,
        };
        // SAFETY: ib_core passes valid memory for the attributes.
        unsafe { attr.write(found) };
        Ok(0)
    })
}

/// Implements `destroy_srq` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a queue of `P`.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(
    base: *mut bindings::ib_srq,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: This is the destruction operation, and none of its steps can fail.
    unsafe { SrqObject::<P>::destroy_with_upcall(base, P::destroy_srq) }
}
