// SPDX-License-Identifier: GPL-2.0

//! Negotiation of features beyond the stock ABI (that of C rxe), when a process opens a device
//! (`include/uapi/rdma/rrxe-abi.h`). Stock librxe negotiates nothing.

use kernel::prelude::*;

use crate::{abi::doorbell::PageReply, bindings, verbs::udata::Udata};

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
pub struct RequestedFeatures {
    /// Whether the library requests a doorbell page (`RRXE_FEATURE_DOORBELL`).
    pub doorbells: bool,
    /// Requested ways to arm CQs without a system call.
    pub arming: Arming,
    /// Whether the library can map device memory (`RRXE_FEATURE_DM`). Every device grants this.
    pub(crate) device_memory: bool,
}

/// Returns the features that the library requests, or `None` if the library doesn't negotiate.
///
/// # Errors
///
/// `EINVAL` for a request that is too short or whose version is zero, `EOPNOTSUPP` for a request
/// that is longer than the known structure and not zero beyond it, `EFAULT`.
pub(crate) fn requested(udata: &Udata<'_>) -> Result<Option<RequestedFeatures>> {
    if udata.request_len() == 0 {
        return Ok(None);
    }
    let request: [u8; size_of::<bindings::rrxe_alloc_ucontext_req>()] = udata.request()?;
    let [a, b, c, d, rest @ ..] = request;
    if u32::from_ne_bytes([a, b, c, d]) == 0 {
        return Err(EINVAL);
    }
    let features = u32::from_ne_bytes(rest);
    Ok(Some(RequestedFeatures {
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

/// Returns the bytes of `struct rrxe_alloc_ucontext_resp`: the version of the interface, the
/// features that the device grants, and the offset and size of the doorbell page, which are 0 if
/// the process has none.
pub(crate) fn granted(
    page: Option<PageReply>,
    arming: Arming,
    requested: &RequestedFeatures,
) -> [u8; REPLY] {
    let doorbells = page.map_or(0, |_| DOORBELL);
    let page = page.unwrap_or_default();
    let arms = if arming.by_word { CQ_ARM } else { 0 };
    let news = if arming.sees_news { CQ_NEWS } else { 0 };
    let memory = if requested.device_memory { DM } else { 0 };
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
