// SPDX-License-Identifier: GPL-2.0

//! Completion queues: what their verbs take and return, and the operations on `ib_cq`.

use core::sync::atomic::{AtomicI32, Ordering};

use kernel::{
    error::from_result,
    ffi::{c_int, c_uint},
    prelude::*,
    sync::Arc,
};

pub use crate::{
    abi::cqe::{Arrival, Cqe, CqeLayout},
    verbs::unread::CqEvents,
};
use crate::{
    bindings,
    provider::Provider,
    support::error::unsupported,
    verbs::{
        object::{Object, Raising},
        qp::RingReply,
        udata::{RingChange, UserCall},
        upcall::{CqUpcall, Upcall},
    },
};

/// What a CQ is made of.
pub struct CqInit {
    /// The entries asked for, at least one.
    pub capacity: u32,
    /// Completions without room are of no interest.
    pub ignore_overrun: bool,
    /// Where its notifications and events go.
    pub upcall: CqUpcall,
    /// Which of its notifications its process has not read, if that can be seen.
    pub events: Option<CqEvents>,
}

/// A new CQ.
pub struct CqCreated<C> {
    /// The CQ.
    pub cq: Arc<C>,
    /// The entries granted: at least those asked for.
    pub capacity: u32,
    /// Where the process finds them.
    pub reply: RingReply,
}

/// How notifications are to be moderated: whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moderation {
    /// So many completions are there.
    pub count: u16,
    /// So many microseconds have passed since the first of them.
    pub period: u16,
}

/// Which completion brings about the next notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotifyWhen {
    /// One that the sender solicited, or one with an error.
    Solicited,
    /// Any.
    Next,
}

/// The completions that no notification has told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// There are none.
    #[default]
    None,
    /// There are some, none of which is solicited or in error.
    Any,
    /// There are some, one of which is solicited or in error.
    Solicited,
}

/// Of completions there are no time stamps.
const IGNORE_OVERRUN: u32 =
    bindings::ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;

type CqObject<P> = Object<P, Raising<bindings::ib_cq>>;

/// Bytes that ib_core is to allocate for a CQ of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    CqObject::<P>::SIZE
}

/// The driver's CQ behind `base`.
///
/// # Safety
///
/// `base` must be a CQ of `P` that exists for ib_core during `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(base: *mut bindings::ib_cq) -> &'a Arc<P::Cq> {
    // SAFETY: The caller's promise.
    unsafe { CqObject::<P>::get(base.cast()) }
}

/// Implements `create_user_cq`.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create_user<P: Provider>(
    base: *mut bindings::ib_cq,
    init: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's bundle is valid during the call.
        let payload = unsafe { &raw mut (*attrs).__bindgen_anon_1.__bindgen_anon_1.driver_udata };
        // SAFETY: ib_core calls this for a process only, with its `driver_udata`.
        let call = unsafe { UserCall::<P>::from_raw(payload) }.ok_or(EINVAL)?;
        call.udata.refuse_request()?;
        call.udata.require_response(RingReply::SIZE)?;
        // SAFETY: ib_core passes its arguments of a creation.
        unsafe {
            make::<P>(base, init, |device, init| {
                let created = P::create_user_cq(device, init, &call)?;
                respond::<P>(created, &call)
            })
        }?;
        Ok(0)
    })
}

/// Makes the driver's CQ by `create` and puts it in place.
///
/// # Safety
///
/// The arguments must be ib_core's, of a creation on a device of `P`.
unsafe fn make<P: Provider>(
    base: *mut bindings::ib_cq,
    init: *const bindings::ib_cq_init_attr,
    create: impl FnOnce(&Arc<P::Device>, CqInit) -> Result<CqCreated<P::Cq>>,
) -> Result {
    // SAFETY: ib_core passes valid attributes.
    let (flags, capacity) = unsafe { ((*init).flags, (*init).cqe) };
    if flags & !IGNORE_OVERRUN != 0 {
        return Err(unsupported());
    }
    // SAFETY: ib_core sets the device before it calls.
    let device = unsafe { crate::device::of::<P>((*base).device) };
    // SAFETY: `base` is valid until `destroy`, which revokes the upcall, or until this fails,
    // before which it is revoked as well.
    let upcall = unsafe { Upcall::new(base) }?;
    let init = CqInit {
        capacity,
        ignore_overrun: flags & IGNORE_OVERRUN != 0,
        upcall: upcall.clone(),
        // SAFETY: ib_core makes the CQ, to which the upcall leads.
        events: unsafe { CqEvents::of(base, &upcall) },
    };
    let created = create(device, init).inspect_err(|_| upcall.revoke())?;
    // SAFETY: During creation nobody else accesses the object.
    unsafe { (*base).cqe = created.capacity as c_int };
    // SAFETY: As above; ib_core allocated as much as `size` says.
    unsafe { CqObject::<P>::store_raising(base, upcall, created.cq) };
    Ok(())
}

/// Implements `create_cq`, for the kernel.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create_kernel<P: Provider>(
    base: *mut bindings::ib_cq,
    init: *const bindings::ib_cq_init_attr,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core passes its arguments of a creation.
        unsafe { make::<P>(base, init, P::create_kernel_cq) }?;
        Ok(0)
    })
}

/// Implements `poll_cq`. Any context.
///
/// # Safety
///
/// To be called by ib_core, on a CQ of `P` that the kernel made, with room for `room` completions.
pub(crate) unsafe extern "C" fn poll<P: Provider>(
    base: *mut bindings::ib_cq,
    room: c_int,
    completions: *mut bindings::ib_wc,
) -> c_int {
    // SAFETY: `base` is a CQ of `P`, alive during the call.
    let cq = unsafe { of::<P>(base) };
    let room = if P::polls_singly(cq) {
        room.min(1)
    } else {
        room
    };
    let mut polled = 0;
    while polled < room {
        let Some(cqe) = P::poll_cq(cq) else { break };
        // SAFETY: `polled` is below the number of places, which the caller gave up to us.
        cqe.write(unsafe { &mut *completions.add(polled as usize) });
        polled = polled.wrapping_add(1);
    }
    polled
}

/// Tells the process's library where the ring is; a CQ of which it can't be told is undone.
fn respond<P: Provider>(
    created: CqCreated<P::Cq>,
    call: &UserCall<'_, P>,
) -> Result<CqCreated<P::Cq>> {
    match call.udata.respond(&created.reply.to_bytes()) {
        Ok(()) => Ok(created),
        Err(error) => {
            P::destroy_cq(&created.cq);
            Err(error)
        }
    }
}

/// Implements `resize_user_cq`.
///
/// # Safety
///
/// To be called by ib_core, on a CQ of `P`.
pub(crate) unsafe extern "C" fn resize_user<P: Provider>(
    base: *mut bindings::ib_cq,
    capacity: c_uint,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core calls this for a process only, with its `driver_udata`.
        let call = unsafe { UserCall::<P>::from_raw(payload) }.ok_or(EINVAL)?;
        call.udata.refuse_request()?;
        call.udata.require_response(RingReply::SIZE)?;
        // SAFETY: `base` is a CQ of `P`, alive during the call.
        let cq = unsafe { of::<P>(base) };
        let granted = P::resize_cq(cq, capacity, &RingChange::new(&call, None))?;
        // SAFETY: As above; a process may resize a CQ twice at a time.
        let entries = unsafe { AtomicI32::from_ptr(&raw mut (*base).cqe) };
        entries.store(granted as c_int, Ordering::Relaxed);
        Ok(0)
    })
}

/// Implements `modify_cq`.
///
/// # Safety
///
/// To be called by ib_core, on a CQ of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    base: *mut bindings::ib_cq,
    count: u16,
    period: u16,
) -> c_int {
    // SAFETY: `base` is a CQ of `P`, alive during the call.
    P::moderate_cq(unsafe { of::<P>(base) }, Moderation { count, period });
    0
}

/// Implements `destroy_cq`.
///
/// # Safety
///
/// To be called by ib_core, on a CQ of `P`.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(
    base: *mut bindings::ib_cq,
    _payload: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: This is the destruction, past the point where it can fail.
    unsafe { CqObject::<P>::destroy_raising(base, P::destroy_cq) }
}

/// Implements `req_notify_cq`.
///
/// # Safety
///
/// To be called by ib_core, on a CQ of `P`.
pub(crate) unsafe extern "C" fn req_notify<P: Provider>(
    base: *mut bindings::ib_cq,
    flags: bindings::ib_cq_notify_flags,
) -> c_int {
    let mask = bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK;
    let when = if flags & mask == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED {
        NotifyWhen::Solicited
    } else {
        NotifyWhen::Next
    };
    let asks = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
    // SAFETY: `base` is a CQ of `P`, alive during the call.
    let unfetched = P::req_notify_cq(unsafe { of::<P>(base) }, when, asks);
    c_int::from(unfetched && asks)
}
