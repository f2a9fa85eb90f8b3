// SPDX-License-Identifier: GPL-2.0

//! Advice about memory of on-demand regions (`ibv_advise_mr()`).

use kernel::{error::from_result, ffi::c_int, prelude::*};
use roce::ids::Lkey;

use crate::{
    bindings, memory::odp::Fault, provider::Provider, support::error::unsupported,
    verbs::object::Object,
};

/// A range of a region, about which the region's owner gives advice.
#[derive(Clone, Copy, Debug)]
pub struct Advised {
    /// Local key of the region.
    pub lkey: Lkey,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
}

/// Implements `advise_mr` of `struct ib_device_ops`. All supported advice is to prefetch memory of
/// on-demand regions.
///
/// # Safety
///
/// Must be called only by ib_core, on a protection domain of `P`.
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
                Fault::MappedOnly
            }
            _ => return Err(unsupported()),
        };
        let flush = flags & bindings::ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0;
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
        // SAFETY: The protection domain is alive while ib_core calls its operations.
        let pd = unsafe { Object::<P, _>::get(pd) };
        P::advise_mr(pd, &ranges, how, flush)?;
        Ok(0)
    })
}
