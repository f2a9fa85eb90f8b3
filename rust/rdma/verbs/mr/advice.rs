// SPDX-License-Identifier: GPL-2.0

//! Advice about memory of on-demand regions.

use kernel::{error::from_result, ffi::c_int, prelude::*};
use roce::ids::Lkey;

use crate::{
    bindings, memory::odp::Fault, provider::Provider, support::error::unsupported,
    verbs::object::Object,
};

/// A range of a region that its owner gives advice about.
#[derive(Clone, Copy, Debug)]
pub struct Advised {
    /// The region.
    pub lkey: Lkey,
    /// The first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
}

/// Implements `advise_mr`: all advice is to have memory of on-demand regions resident.
///
/// # Safety
///
/// To be called by ib_core, on a protection domain of `P`.
pub(crate) unsafe extern "C" fn advise<P: Provider>(
    pd: *mut bindings::ib_pd,
    advice: bindings::ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut bindings::ib_sge,
    count: u32,
    _attributes: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        let how = match advice {
            bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Fault::Read,
            bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => {
                Fault::Write
            }
            bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => {
                Fault::Look
            }
            _ => return Err(unsupported()),
        };
        let wait = flags & bindings::ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0;
        let mut ranges = KVVec::with_capacity(count as usize, GFP_KERNEL_ACCOUNT)?;
        for index in 0..count as usize {
            // SAFETY: ib_core passes a list of `count` elements.
            let sge = unsafe { &*list.add(index) };
            let advised = Advised {
                lkey: Lkey(sge.lkey),
                addr: sge.addr,
                length: sge.length,
            };
            ranges.push(advised, GFP_KERNEL_ACCOUNT)?;
        }
        // SAFETY: `pd` is a protection domain of `P`, alive during the call.
        let pd = unsafe { Object::<P, _>::get(pd) };
        P::advise_mr(pd, &ranges, how, wait)?;
        Ok(0)
    })
}
