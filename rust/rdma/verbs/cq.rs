// SPDX-License-Identifier: GPL-2.0

//! Completion queues: the arguments and results of their verbs, and the operations on
//! `struct ib_cq`.

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
    abi::replies::RingReply,
    bindings,
    provider::Provider,
    support::error::unsupported,
    verbs::{
        object::{Object, WithUpcall},
        udata::{RingChange, UserCall},
        upcall::{CqUpcall, Upcall},
    },
};

/// Arguments of a CQ's creation.
pub struct CqInit {
    /// Requested number of entries, at least one.
    pub capacity: u32,
    /// Whether the CQ drops completions for which it has no room
    /// (`IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`). Otherwise such a completion is an error of the CQ.
    pub ignore_overrun: bool,
    /// Upcall for completion notifications and asynchronous events of the CQ.
    pub upcall: CqUpcall,
    /// View of the notifications that the CQ's process has not read. `None` for a CQ of an
    /// in-kernel consumer, or if the list of notifications in uverbs has an unknown layout.
    pub events: Option<CqEvents>,
}

/// Results of a CQ's creation.
pub struct CqCreated<C> {
    /// The CQ.
    pub cq: Arc<C>,
    /// Granted number of entries: at least the requested one.
    pub capacity: u32,
    /// Location of the ring, for the process's library. Not used for a CQ of an in-kernel consumer.
    pub reply: RingReply,
}

/// Moderation of a CQ's notifications. A notification is delivered when one of the two limits is
/// reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moderation {
    /// Number of completions.
    pub count: u16,
    /// Number of microseconds since the first of those completions.
    pub period: u16,
}

/// The completion that causes the next notification (`enum ib_cq_notify_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotifyWhen {
    /// A completion that the sender solicited, or one in error.
    Solicited,
    /// Any completion.
    Next,
}

/// The most urgent completion that no notification has announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unannounced {
    /// No such completion.
    #[default]
    None,
    /// At least one such completion, but none that is solicited or in error.
    Any,
    /// At least one such completion that is solicited or in error.
    Solicited,
}

/// The only supported creation flag. Completion timestamps
/// (`IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION`) are not supported.
const IGNORE_OVERRUN: u32 =
    bindings::ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;

type CqObject<P> = Object<P, WithUpcall<bindings::ib_cq>>;

/// Number of bytes that ib_core must allocate for a CQ of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    CqObject::<P>::SIZE
}

/// Returns the driver's CQ behind `base`.
///
/// # Safety
///
/// `base` must be a CQ of a device of `P`, created and not yet destroyed, for all of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(base: *mut bindings::ib_cq) -> &'a Arc<P::Cq> {
    // SAFETY: The caller guarantees that `base` is a CQ of `P`, created and not yet destroyed (see
    // `# Safety`).
    unsafe { CqObject::<P>::get(base.cast()) }
}

/// Implements `create_user_cq` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create_user<P: Provider>(
    base: *mut bindings::ib_cq,
    init: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's bundle is valid during the call.
        let udata = unsafe { &raw mut (*attrs).__bindgen_anon_1.__bindgen_anon_1.driver_udata };
        // SAFETY: ib_core calls this operation for processes only, with the `driver_udata` of the
        // call.
        let call = unsafe { UserCall::<P>::from_raw(udata) }.ok_or(EINVAL)?;
        call.udata.require_zero_request()?;
        call.udata.require_response(RingReply::SIZE)?;
        // SAFETY: ib_core passes valid arguments of a creation, on a device of `P`.
        unsafe {
            make::<P>(base, init, |device, init| {
                let created = P::create_user_cq(device, init, &call)?;
                respond::<P>(created, &call)
            })
        }?;
        Ok(0)
    })
}

/// Creates the driver's CQ by `create` and stores it behind `base`.
///
/// # Safety
///
/// The arguments must be those that ib_core passes to the creation operation, on a device of `P`.
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
    // SAFETY: This is the creation of `base`, which is valid until the creation has failed or
    // `destroy` has returned. A failed creation and `destroy` revoke the upcall before they return.
    let upcall = unsafe { Upcall::new(base) }?;
    let init = CqInit {
        capacity,
        ignore_overrun: flags & IGNORE_OVERRUN != 0,
        upcall: upcall.clone(),
        // SAFETY: ib_core is creating the CQ, and the upcall is of this CQ.
        events: unsafe { CqEvents::of(base, &upcall) },
    };
    let created = create(device, init).inspect_err(|_| upcall.revoke())?;
    // SAFETY: During the creation no other code accesses the object.
    unsafe { (*base).cqe = created.capacity as c_int };
    // SAFETY: This is the creation operation, and ib_core allocated as many bytes as `size`
    // returns.
    unsafe { CqObject::<P>::store_with_upcall(base, upcall, created.cq) };
    Ok(())
}

/// Implements `create_cq` of `struct ib_device_ops`, for in-kernel consumers.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn create_kernel<P: Provider>(
    base: *mut bindings::ib_cq,
    init: *const bindings::ib_cq_init_attr,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core passes valid arguments of a creation, on a device of `P`.
        unsafe { make::<P>(base, init, P::create_kernel_cq) }?;
        Ok(0)
    })
}

/// Implements `poll_cq` of `struct ib_device_ops`. Any context.
///
/// # Safety
///
/// Must be called only by ib_core, on a CQ of `P`. `completions` must have room for `room` entries.
pub(crate) unsafe extern "C" fn poll<P: Provider>(
    base: *mut bindings::ib_cq,
    room: c_int,
    completions: *mut bindings::ib_wc,
) -> c_int {
    // SAFETY: The CQ is alive while ib_core calls its operations.
    let cq = unsafe { of::<P>(base) };
    let room = if P::polls_singly(cq) {
        room.min(1)
    } else {
        room
    };
    let mut polled = 0;
    while polled < room {
        let Some(cqe) = P::poll_cq(cq) else { break };
        // SAFETY: `polled` is less than `room`, and the caller guarantees that `completions` has
        // room for as many entries, which only this call accesses.
        cqe.write(unsafe { &mut *completions.add(polled as usize) });
        polled = polled.wrapping_add(1);
    }
    polled
}

/// Sends the process's library the location of the ring. Destroys the CQ if that fails.
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

/// Implements `resize_user_cq` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a CQ of `P`.
pub(crate) unsafe extern "C" fn resize_user<P: Provider>(
    base: *mut bindings::ib_cq,
    capacity: c_uint,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core calls this operation for processes only, with the `driver_udata` of the
        // call.
        let call = unsafe { UserCall::<P>::from_raw(udata) }.ok_or(EINVAL)?;
        call.udata.require_zero_request()?;
        call.udata.require_response(RingReply::SIZE)?;
        // SAFETY: The CQ is alive while ib_core calls its operations.
        let cq = unsafe { of::<P>(base) };
        let granted = P::resize_cq(cq, capacity, &RingChange::new(&call, None))?;
        // SAFETY: The CQ is alive while ib_core calls its operations. The access is atomic, because
        // two threads of a process may resize the CQ at once.
        let entries = unsafe { AtomicI32::from_ptr(&raw mut (*base).cqe) };
        entries.store(granted as c_int, Ordering::Relaxed);
        Ok(0)
    })
}

/// Implements `modify_cq` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a CQ of `P`.
pub(crate) unsafe extern "C" fn modify<P: Provider>(
    base: *mut bindings::ib_cq,
    count: u16,
    period: u16,
) -> c_int {
    // SAFETY: The CQ is alive while ib_core calls its operations.
    P::moderate_cq(unsafe { of::<P>(base) }, Moderation { count, period });
    0
}

/// Implements `destroy_cq` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a CQ of `P`.
pub(crate) unsafe extern "C" fn destroy<P: Provider>(
    base: *mut bindings::ib_cq,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: This is the destruction operation, and none of its steps can fail.
    unsafe { CqObject::<P>::destroy_with_upcall(base, P::destroy_cq) }
}

/// Implements `req_notify_cq` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a CQ of `P`.
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
    let reports_missed = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
    // SAFETY: The CQ is alive while ib_core calls its operations.
    let unpolled = P::req_notify_cq(unsafe { of::<P>(base) }, when, reports_missed);
    c_int::from(unpolled && reports_missed)
}
