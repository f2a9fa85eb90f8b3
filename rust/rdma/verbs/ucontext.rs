// SPDX-License-Identifier: GPL-2.0

//! User contexts (`struct ib_ucontext`): one for each open of a device by a process.
//!
//! A context contains [`Mappings`], the memory that the process may map, and the driver's own
//! context. rrxe's own provider library negotiates features beyond the stock ABI when it creates a
//! context (`include/uapi/rdma/rrxe-abi.h`). Stock librxe negotiates nothing.

use core::ptr::NonNull;
use kernel::{error::from_result, ffi::c_int, prelude::*, sync::Arc};

use crate::{
    abi::{doorbell::PageReply, mmap::Mappings},
    bindings,
    device::of as device_of,
    provider::Provider,
    verbs::{object::Object, udata::Udata},
};

const DOORBELL: u32 = bindings::rrxe_feature_RRXE_FEATURE_DOORBELL;
const CQ_ARM: u32 = bindings::rrxe_feature_RRXE_FEATURE_CQ_ARM;
const CQ_NEWS: u32 = bindings::rrxe_feature_RRXE_FEATURE_CQ_NEWS;
const DM: u32 = bindings::rrxe_feature_RRXE_FEATURE_DM;

/// Ways in which a process's library arms CQs, beyond the stock ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arming {
    /// Whether the library arms a CQ by a word in the CQ's ring (`RRXE_FEATURE_CQ_ARM`).
    pub by_word: bool,
    /// Whether the library reads another word of the ring, which says whether there are completions
    /// that no notification has announced (`RRXE_FEATURE_CQ_NEWS`).
    pub sees_news: bool,
}

/// Features beyond the stock ABI that a process's library requests
/// (`struct rrxe_alloc_ucontext_req`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether the library requests a doorbell page (`RRXE_FEATURE_DOORBELL`).
    pub doorbells: bool,
    /// Requested ways to arm CQs without a system call.
    pub arming: Arming,
    /// Whether the library can map device memory (`RRXE_FEATURE_DM`). Every device grants this.
    device_memory: bool,
}

/// Arguments of a context's creation.
pub struct ContextInit<'a> {
    /// Memory that the process may map.
    pub mappings: &'a Arc<Mappings>,
    /// Features that the process's library requests.
    pub wanted: Wanted,
}

/// Results of a context's creation.
pub struct ContextCreated<C> {
    /// The driver's context.
    pub context: Arc<C>,
    /// Location of the process's doorbell page, if it was granted one.
    pub doorbells: Option<PageReply>,
    /// Granted ways to arm CQs without a system call.
    pub arming: Arming,
}

/// Driver's object behind a `struct ib_ucontext`.
pub(crate) struct UserContext<C> {
    /// Memory that the process may map.
    pub(crate) mappings: Arc<Mappings>,
    /// The driver's context.
    pub(crate) driver: Arc<C>,
    /// Whether the process's library can map device memory (`RRXE_FEATURE_DM`).
    pub(crate) device_memory: bool,
}

type ContextObject<P> = Object<P, bindings::ib_ucontext>;

/// Number of bytes that ib_core must allocate for a context of `P`.
pub(crate) const fn size<P: Provider>() -> usize {
    ContextObject::<P>::SIZE
}

/// Returns the object behind a process's context.
///
/// # Safety
///
/// `context` must be a context of a device of `P`, created and not yet destroyed, for all of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(
    context: *mut bindings::ib_ucontext,
) -> &'a UserContext<P::Context> {
    // SAFETY: The caller guarantees that `context` is a context of `P`, created and not yet
    // destroyed.
    unsafe { ContextObject::<P>::get(context) }
}

/// Implements `alloc_ucontext` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    context: *mut bindings::ib_ucontext,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are valid during the call.
        let udata = unsafe { Udata::from_raw(payload) }.ok_or(EINVAL)?;
        let wanted = wanted(&udata)?;
        let valid = NonNull::new(context).ok_or(EINVAL)?;
        // SAFETY: `context` is valid until this creation has failed or `dealloc` has returned. Both
        // close the mappings before.
        let mappings = unsafe { Mappings::new(valid) }?;
        let device_memory = wanted.is_some_and(|wanted| wanted.device_memory);
        let init = ContextInit {
            mappings: &mappings,
            wanted: wanted.unwrap_or_default(),
        };
        // SAFETY: ib_core sets the device before it calls.
        let device = unsafe { device_of::<P>((*context).device) };
        let driver =
            make::<P>(device, init, wanted.as_ref(), &udata).inspect_err(|_| mappings.close())?;
        let made = Arc::new(
            UserContext {
                mappings: mappings.clone(),
                driver: driver.clone(),
                device_memory,
            },
            GFP_KERNEL_ACCOUNT,
        )
        .inspect_err(|_| {
            P::close_context(&driver);
            mappings.close();
        })?;
        // SAFETY: This is the creation operation, and the object has the size that the table of
        // operations (`ops::table`) states.
        unsafe { ContextObject::<P>::store(context, made) };
        Ok(0)
    })
}

/// Creates the driver's context. Sends the granted features to a library that negotiates
/// (`wanted`), and an empty response to any other. Closes the context if that fails.
fn make<P: Provider>(
    device: &Arc<P::Device>,
    init: ContextInit<'_>,
    wanted: Option<&Wanted>,
    udata: &Udata<'_>,
) -> Result<Arc<P::Context>> {
    let created = P::alloc_context(device, init)?;
    let told = match wanted {
        Some(wanted) => udata.respond(&reply(&created, wanted)),
        None => udata.respond(&[]),
    };
    if let Err(error) = told {
        P::close_context(&created.context);
        return Err(error);
    }
    Ok(created.context)
}

/// Returns the features that the library requests, or `None` if the library doesn't negotiate.
///
/// # Errors
///
/// `EINVAL` for a request that is too short or whose version is zero, `EOPNOTSUPP` for a request
/// that is longer than the known structure and not zero beyond it, `EFAULT`.
fn wanted(udata: &Udata<'_>) -> Result<Option<Wanted>> {
    if udata.request_len() == 0 {
        return Ok(None);
    }
    let request: [u8; size_of::<bindings::rrxe_alloc_ucontext_req>()] = udata.request()?;
    let [a, b, c, d, rest @ ..] = request;
    if u32::from_ne_bytes([a, b, c, d]) == 0 {
        return Err(EINVAL);
    }
    let features = u32::from_ne_bytes(rest);
    Ok(Some(Wanted {
        doorbells: features & DOORBELL != 0,
        arming: Arming {
            by_word: features & CQ_ARM != 0,
            sees_news: features & CQ_NEWS != 0,
        },
        device_memory: features & DM != 0,
    }))
}

/// Size of the response in bytes.
const REPLY: usize = size_of::<bindings::rrxe_alloc_ucontext_resp>();

/// Returns the bytes of `struct rrxe_alloc_ucontext_resp`.
fn reply<C>(created: &ContextCreated<C>, wanted: &Wanted) -> [u8; REPLY] {
    let page = created.doorbells.unwrap_or_default();
    let doorbells = created.doorbells.map_or(0, |_| DOORBELL);
    let arms = if created.arming.by_word { CQ_ARM } else { 0 };
    let news = if created.arming.sees_news { CQ_NEWS } else { 0 };
    let memory = if wanted.device_memory { DM } else { 0 };
    let mut bytes = [0; REPLY];
    let fields = [
        &bindings::RRXE_ABI_VERSION.to_ne_bytes()[..],
        &(doorbells | arms | news | memory).to_ne_bytes(),
        &page.offset.to_ne_bytes(),
        &page.size.to_ne_bytes(),
    ];
    for (place, byte) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
        *place = *byte;
    }
    bytes
}

/// Implements `query_ucontext` of `struct ib_device_ops`. It reports driver data to a process that
/// received the context of another process. This driver has no such data.
///
/// # Safety
///
/// Must be called only by ib_core.
pub(crate) unsafe extern "C" fn query(
    _context: *mut bindings::ib_ucontext,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    0
}

/// Implements `dealloc_ucontext` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(context: *mut bindings::ib_ucontext) {
    // SAFETY: This is the destruction operation, which can't fail.
    let context = unsafe { ContextObject::<P>::take(context) };
    P::close_context(&context.driver);
    context.mappings.close();
}

/// Implements `disassociate_ucontext` of `struct ib_device_ops`. Without this operation ib_core
/// could not take a device away from running processes. The operation has nothing to do: ib_core
/// destroys their objects itself, and mapped rings are ordinary memory, which the processes keep.
///
/// # Safety
///
/// Must be called only by ib_core.
pub(crate) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}
