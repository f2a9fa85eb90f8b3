// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues: what their verbs take and return, and the operations on `ib_srq`.

use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    abi::post::RecvList,
    bindings,
    provider::Provider,
    support::error::unsupported,
    verbs::{
        cq,
        object::{Object, Raising},
        qp::RingReply,
        udata::{RingChange, UserCall},
        upcall::{SrqUpcall, Upcall},
        xrcd,
    },
};

/// What a shared receive queue is made of.
pub struct SrqInit {
    /// The WQEs asked for.
    pub max_wr: u32,
    /// The SGEs of a WQE asked for.
    pub max_sge: u32,
    /// Where its events go.
    pub upcall: SrqUpcall,
}

/// What a shared receive queue of an XRC domain is made of besides.
pub struct XrcInit<P: Provider> {
    /// The domain.
    pub xrcd: Arc<P::Xrcd>,
    /// Where completions of receives go.
    pub cq: Arc<P::Cq>,
}

impl<P: Provider> XrcInit<P> {
    /// What `init` says of the domain; `None` for a queue without.
    ///
    /// # Safety
    ///
    /// `init` must be ib_core's, of a creation on a device of `P`.
    unsafe fn read(init: &bindings::ib_srq_init_attr) -> Result<Option<Self>> {
        match init.srq_type {
            bindings::ib_srq_type_IB_SRQT_BASIC => return Ok(None),
            bindings::ib_srq_type_IB_SRQT_XRC => {}
            _ => return Err(unsupported()),
        }
        // SAFETY: The type of the queue says which of the union's fields is set.
        let xrcd = unsafe { init.ext.__bindgen_anon_1.xrc.xrcd };
        // SAFETY: Null, or held by ib_core during the call.
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

/// A new shared receive queue.
pub struct SrqCreated<S> {
    /// The queue.
    pub srq: Arc<S>,
    /// The WQEs granted: at least those asked for.
    pub max_wr: u32,
    /// The SGEs granted.
    pub max_sge: u32,
    /// What the process's library is told.
    pub reply: SrqReply,
}

/// What a process's library is told of a new shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqReply {
    /// Where the WQEs are.
    pub ring: RingReply,
    /// The number of the queue.
    pub number: u32,
}

impl SrqReply {
    /// Bytes of the structure.
    const SIZE: usize = RingReply::SIZE + 8;

    /// `struct rxe_create_srq_resp` of `rdma_user_rxe.h`: ring, number, padding.
    fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let (ring, rest) = bytes.split_at_mut(RingReply::SIZE);
        ring.copy_from_slice(&self.ring.to_bytes());
        let (number, _padding) = rest.split_at_mut(4);
        number.copy_from_slice(&self.number.to_ne_bytes());
        bytes
    }
}

/// What `modify_srq` changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqModify {
    /// Room for this many WQEs.
    pub max_wr: Option<u32>,
    /// An event when fewer WQEs than this are left; zero for none.
    pub limit: Option<u32>,
}

/// What `query_srq` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Room for this many WQEs.
    pub max_wr: u32,
    /// SGEs of a WQE.
    pub max_sge: u32,
    /// The limit that is armed; zero for none.
    pub limit: u32,
}

type SrqObject<P> = Object<P, Raising<bindings::ib_srq>>;

/// Bytes that ib_core is to allocate for a shared receive queue of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    SrqObject::<P>::SIZE
}

/// The driver's queue behind `base`, if there is one.
///
/// # Safety
///
/// `base` must be null or a shared receive queue of `P` that exists for ib_core during `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(base: *mut bindings::ib_srq) -> Option<&'a Arc<P::Srq>> {
    if base.is_null() {
        return None;
    }
    // SAFETY: The caller's promise.
    Some(unsafe { SrqObject::<P>::get(base.cast()) })
}

/// Implements `create_srq`.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create<P: Provider>(
    base: *mut bindings::ib_srq,
    init: *mut bindings::ib_srq_init_attr,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::of_creation(payload) }?;
        if let Some(call) = &call {
            call.udata.refuse_request()?;
            call.udata.require_response(SrqReply::SIZE)?;
        }
        // SAFETY: ib_core passes valid attributes.
        let init = unsafe { &mut *init };
        // SAFETY: ib_core passes valid attributes, whose objects it holds.
        let xrc = unsafe { XrcInit::<P>::read(init) }?;
        let is_xrc = xrc.is_some();
        // SAFETY: ib_core sets the domain before it calls, and holds it.
        let pd = unsafe { Object::<P, _>::get((*base).pd) };
        // SAFETY: `base` is valid until `destroy`, which revokes the upcall, or until this fails,
        // before which it is revoked as well.
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
            // SAFETY: During creation nobody else accesses the object.
            unsafe { (*base).ext.__bindgen_anon_1.xrc.srq_num = created.reply.number };
        }
        // SAFETY: During creation nobody else accesses the object; ib_core allocated as much as
        // `size` says.
        unsafe { SrqObject::<P>::store_raising(base, upcall, created.srq) };
        Ok(0)
    })
}

/// Tells the process's library where the ring is; a queue of which it can't be told is undone.
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

/// Implements `modify_srq`. A process's library says in its request
/// (`struct rxe_modify_srq_cmd`) where it wants to be told of a new ring.
///
/// # Safety
///
/// To be called by ib_core, on a queue of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    base: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
    mask: bindings::ib_srq_attr_mask,
    payload: *mut bindings::ib_udata,
) -> c_int {
    const MAX_WR: u32 = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
    const LIMIT: u32 = bindings::ib_srq_attr_mask_IB_SRQ_LIMIT;
    from_result(|| {
        // SAFETY: ib_core's buffers are null or valid during the call.
        let call = unsafe { UserCall::<P>::from_raw(payload) };
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

/// Implements `post_srq_recv`, for the kernel. Any context.
///
/// # Safety
///
/// To be called by ib_core, on a queue of `P`.
pub(crate) unsafe extern "C" fn post_recv<P: Provider>(
    base: *mut bindings::ib_srq,
    requests: *const bindings::ib_recv_wr,
    failed: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: The queue is alive while ib_core calls its operations.
    let srq = unsafe { SrqObject::<P>::get(base.cast()) };
    // SAFETY: ib_core's list is valid during the call, and it passes a place to fill along with it.
    unsafe { RecvList::post(requests, failed, |list| P::post_srq_recv(srq, list)) }
}

/// Implements `query_srq`.
///
/// # Safety
///
/// To be called by ib_core, on a queue of `P`.
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
        // SAFETY: ib_core passes attributes to fill.
        unsafe { attr.write(found) };
        Ok(0)
    })
}

/// Implements `destroy_srq`.
///
/// # Safety
///
/// To be called by ib_core, on a queue of `P`.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(
    base: *mut bindings::ib_srq,
    _payload: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: This is the destruction, past the point where it can fail.
    unsafe { SrqObject::<P>::destroy_raising(base, P::destroy_srq) }
}
