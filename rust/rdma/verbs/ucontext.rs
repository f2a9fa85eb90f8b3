// SPDX-License-Identifier: GPL-2.0

//! User contexts: one for each time that a process opens a device.
//!
//! A context holds what the process may map, [`Mappings`], and the driver's own context. What our
//! own provider library asks for beyond the stock ABI is negotiated when a context is made
//! (`include/uapi/rdma/rrxe-abi.h`); stock librxe asks for nothing.

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

/// How a process's library arms CQs beyond the stock ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arming {
    /// By a word in the CQ's ring.
    pub by_word: bool,
    /// It looks at another word whether completions are there that no notification has told of.
    pub sees_news: bool,
}

/// What a process's library wants beyond the stock ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// A page of doorbells.
    pub doorbells: bool,
    /// How it arms CQs without a call.
    pub arming: Arming,
    /// Device memory, which every device has.
    device_memory: bool,
}

/// What a context is made of.
pub struct ContextInit<'a> {
    /// What the process may map.
    pub mappings: &'a Arc<Mappings>,
    /// What its library wants.
    pub wanted: Wanted,
}

/// A new context.
pub struct ContextCreated<C> {
    /// The driver's context.
    pub context: Arc<C>,
    /// Where the process finds its page of doorbells, if it gets one.
    pub doorbells: Option<PageReply>,
    /// How it may arm CQs without a call.
    pub arming: Arming,
}

/// What lies behind ib_core's context.
pub(crate) struct UserContext<C> {
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) driver: Arc<C>,
    /// The process's library knows how to map device memory.
    pub(crate) device_memory: bool,
}

type ContextObject<P> = Object<P, bindings::ib_ucontext>;

/// What to ask ib_core to allocate.
pub(crate) const fn size<P: Provider>() -> usize {
    ContextObject::<P>::SIZE
}

/// A process's context.
///
/// # Safety
///
/// `context` must be a context of `P` that exists for ib_core during all of `'a`.
pub(crate) unsafe fn of<'a, P: Provider>(
    context: *mut bindings::ib_ucontext,
) -> &'a UserContext<P::Context> {
    // SAFETY: As the caller promises.
    unsafe { ContextObject::<P>::get(context) }
}

/// Implements `alloc_ucontext`.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    context: *mut bindings::ib_ucontext,
    payload: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core's buffers are valid during the call.
        let udata = unsafe { Udata::from_raw(payload) }.ok_or(EINVAL)?;
        let wanted = wanted(&udata)?;
        let valid = NonNull::new(context).ok_or(EINVAL)?;
        // SAFETY: `dealloc` closes the mappings before the context is freed, and so does a failure.
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
        // SAFETY: This is the creation, of the size that the operations table says.
        unsafe { ContextObject::<P>::store(context, made) };
        Ok(0)
    })
}

/// Makes the driver's context and tells a library that negotiates.
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

/// What the library wants; `None` of one that doesn't negotiate.
///
/// # Errors
///
/// `EINVAL` for a request that is too short or of no version, `EOPNOTSUPP` for one with more than is
/// known, `EFAULT`.
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

/// Bytes of the response.
const REPLY: usize = size_of::<bindings::rrxe_alloc_ucontext_resp>();

/// `struct rrxe_alloc_ucontext_resp`.
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

/// Implements `query_ucontext`: what a process learns that was given another's context. Of this driver
/// there is nothing to be told.
///
/// # Safety
///
/// To be called by ib_core.
pub(crate) unsafe extern "C" fn query(
    _context: *mut bindings::ib_ucontext,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    0
}

/// Implements `dealloc_ucontext`.
///
/// # Safety
///
/// To be called by ib_core, on a device of `P`.
pub(crate) unsafe extern "C" fn dealloc<P: Provider>(context: *mut bindings::ib_ucontext) {
    // SAFETY: This is the destruction, which can't fail.
    let context = unsafe { ContextObject::<P>::take(context) };
    P::close_context(&context.driver);
    context.mappings.close();
}

/// Implements `disassociate_ucontext`: that it exists lets ib_core take a device away from running
/// processes. Nothing is to be done: ib_core destroys their objects itself, and mapped rings are
/// ordinary memory, which stays theirs.
///
/// # Safety
///
/// To be called by ib_core.
pub(crate) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}
